"""Who does the work: processes of this machine, or the workers of a Dask cluster."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Any

from rtdebug.errors import HostUnable, RtdebugError

_PATIENCE_S = 20


@contextmanager
def workers(count: int | None = None, scheduler: str | None = None) -> Iterator[Executor | None]:
    """Give an executor: of the Dask cluster at `scheduler`, else of `count` processes (None: one for each CPU).

    None where one process is enough. Raises HostUnable without Dask, RtdebugError when the scheduler does not answer.
    """
    if scheduler is not None:
        with _cluster(scheduler) as executor:
            yield executor
        return
    count = count or len(os.sched_getaffinity(0))
    if count < 2:
        _give_memory_back()
        yield None
        return
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    with ProcessPoolExecutor(count, multiprocessing.get_context("fork"), _give_memory_back) as executor:
        yield executor


def _give_memory_back() -> None:
    """Arrow's own allocator keeps what it once had: three times as much, for a day of 10,000 containers."""
    import pyarrow as pa

    pa.set_memory_pool(pa.system_memory_pool())


@contextmanager
def _cluster(address: str) -> Iterator[Executor]:
    try:
        distributed: Any = importlib.import_module("distributed")
    except ImportError as error:
        raise HostUnable("a Dask cluster needs dask and distributed", "pip install 'rtdebug[dask]'") from error
    try:
        client = distributed.Client(address, timeout=_PATIENCE_S)
    except (OSError, ValueError, TimeoutError) as error:
        hint = "give what `dask scheduler` printed: tcp://HOST:8786"
        raise RtdebugError(f"no Dask scheduler answers at {address}", hint) from error
    try:
        yield client.get_executor()
    finally:
        client.close()
