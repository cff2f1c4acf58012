"""The lab's folder: the only place on the host that it changes."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from lab.problem import LabProblem

_NEEDED_BYTES = 1 << 30
"""For the kernels of the list and their modules."""
_WORK = "rtdebug-lab-"
_MAKING_S = 60.0
"""A work folder that has not been made after so long never will be."""


def lab_folder() -> Path:
    """$RTDEBUG_LAB, else rtdebug-lab below $XDG_CACHE_HOME, else /var/cache/rtdebug-lab. Made if missing.

    Raises LabProblem when it cannot be made or its disk is nearly full.
    """
    chosen = os.environ.get("RTDEBUG_LAB")
    folder = Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or "/var/cache") / "rtdebug-lab"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LabProblem(f"cannot make {folder}: {error.strerror}; set RTDEBUG_LAB to a folder of yours") from error
    check_space(folder, _NEEDED_BYTES)
    return folder


def check_space(folder: Path, needed_bytes: int) -> None:
    """Raise LabProblem when the disk below `folder` is nearly full."""
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes:
        raise LabProblem(
            f"{folder} has {free_bytes >> 20} MiB left, and the lab needs {needed_bytes >> 20} MiB; "
            "set RTDEBUG_LAB to a folder on another disk"
        )


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Nobody else fills the folder meanwhile."""
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def keyed(folder: Path, kind: str, sources: Iterable[str | Path], fresh: bool = False) -> Path:
    """Where the cache keeps what is made from these files: another place when one of them changes.

    What was made from older files, or with `fresh` from these, is removed.
    """
    key = hashlib.sha256(b"".join(Path(source).read_bytes() for source in sources)).hexdigest()[:12]
    chosen = folder / f"{kind}-{key}"
    for old in folder.glob(f"{kind}-*"):
        if fresh or old != chosen:
            shutil.rmtree(old) if old.is_dir() else old.unlink()
    return chosen


@contextmanager
def work_folder() -> Iterator[Path]:
    """A folder that is gone afterwards. What a killed run could not remove, the next one does."""
    for old in Path(tempfile.gettempdir()).glob(f"{_WORK}*"):
        _remove_if_left(old)
    with tempfile.TemporaryDirectory(prefix=_WORK) as name, (Path(name) / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        print("locked", file=file, flush=True)
        yield Path(name)


def _remove_if_left(folder: Path) -> None:
    """Whoever uses it holds its lock; for a moment while it is made, that is not there, or empty."""
    with suppress(OSError), ExitStack() as stack:
        lock, made = folder / "lock", False
        if lock.exists():
            file = stack.enter_context(lock.open())
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            made = bool(file.read())
        if made or time.time() - folder.stat().st_mtime > _MAKING_S:
            shutil.rmtree(folder)
