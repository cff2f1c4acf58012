"""A file that somebody asked for by name: whole or not there, and nothing but a file ever replaced.

rtdebug runs as root: to rename onto /dev/null or /dev/stdout would take them away from the whole host.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from rtdebug.errors import RtdebugError, UsageProblem


class TakenProblem(UsageProblem):
    """A file of that name is there already."""


def refuse_taken(path: Path, replace: bool) -> None:
    """Raises TakenProblem: a file is there and may not be replaced; UsageProblem: what is there is no file."""
    try:
        mode = path.lstat().st_mode
    except OSError:  # nothing is there; what else is wrong shows when it is written
        return
    if not stat.S_ISREG(mode):
        what = "a link" if stat.S_ISLNK(mode) else "a folder" if stat.S_ISDIR(mode) else "no ordinary file"
        raise UsageProblem(f"{path} is {what}: it is not replaced", "give the name of a file that is to be made")
    if not replace:
        raise TakenProblem(f"{path} is there already", "give another name, or --force to replace it")


@contextmanager
def placed_file(path: Path, replace: bool, mode: int = 0o600) -> Iterator[BinaryIO]:
    """Write beside `path`; at the end of the block it is moved there, after an error it is removed.

    Raises UsageProblem as refuse_taken() does, RtdebugError if it cannot be written.
    """
    refuse_taken(path, replace)
    unfinished = path.with_name(f".rtdebug-{os.getpid()}-{time.monotonic_ns()}")
    try:
        fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(fd, "wb") as file:
            yield file
        _move(unfinished, path, replace)
    except OSError as error:
        raise RtdebugError(f"cannot write {path}: {error.strerror}", "give another place") from None
    finally:
        with suppress(OSError):
            unfinished.unlink()


def _move(unfinished: Path, path: Path, replace: bool) -> None:
    """What came there meanwhile, of another rtdebug perhaps, is not replaced either."""
    if not replace:
        try:
            path.hardlink_to(unfinished)
            return
        except FileExistsError:
            refuse_taken(path, replace)
        except OSError:  # a file system without hard links
            pass
    refuse_taken(path, replace)
    unfinished.replace(path)
