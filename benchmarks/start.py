"""From the start of the process until all events are attached."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.calls import caller
from benchmarks.figure import Figure, Result, ratio_of_least, sampled
from benchmarks.probes import bpftrace_bare, bpftrace_same_events, full_headers
from benchmarks.tracers import Tracer, bpftrace, rtdebug, stock_bcc

ROUNDS = 7


def measure() -> Result:
    """Warm: the compiled programs lie in the cache. Cold: the first trace on this host ever."""
    with caller() as traced, full_headers() as (headers, arguments), TemporaryDirectory() as cache:
        _seconds(rtdebug(traced.target, cache=Path(cache)))
        taken = sampled(
            ROUNDS,
            {
                "rtdebug": lambda: _seconds(rtdebug(traced.target, cache=Path(cache))),
                "rtdebug, empty cache": lambda: _cold(traced.target),
                "bpftrace, same events": lambda: _seconds(bpftrace(bpftrace_same_events())),
                "bpftrace, count() alone": lambda: _seconds(bpftrace(bpftrace_bare())),
                "bcc, full headers": lambda: _seconds(stock_bcc(arguments, headers)),
            },
        )
    warm, cold, same, bare, bcc = taken
    return Result(
        (
            Figure("start / bpftrace, same events", ratio_of_least("warm", warm, same), "x", 1.0),
            Figure("start / stock bcc, full headers", ratio_of_least("warm", warm, bcc), "x", 0.5),
            Figure("start, empty cache / bpftrace, same events", ratio_of_least("cold", cold, same), "x", 1.0),
            Figure("start, empty cache / stock bcc, full headers", ratio_of_least("cold", cold, bcc), "x", 0.5),
            Figure("start / bpftrace, count() without arguments", ratio_of_least("warm", warm, bare), "x"),
        ),
        tuple(taken),
        "s",
    )


def _seconds(tracer: AbstractContextManager[Tracer]) -> float:
    started = time.perf_counter()
    with tracer:
        return time.perf_counter() - started


def _cold(target: str) -> float:
    with TemporaryDirectory() as cache:
        return _seconds(rtdebug(target, cache=Path(cache)))
