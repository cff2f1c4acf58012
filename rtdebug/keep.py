"""Keeping OOM reports: the last few on disk, each with a snapshot of what was left of the container's memory.

Each report is a folder `oom-TIME-PID` with `oom.json`, `oom.txt` and, where the container could still be looked at,
`memory.tar.gz` (see `rtdebug show`). A folder appears whole or not at all; only root may read it.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from rtdebug.errors import RtdebugError
from rtdebug.host.child import Child
from rtdebug.tracing.line import EventLine

_NAME = re.compile(r"oom-\d{8}T\d{6}\.\d{9}Z-\d+")
_UNFINISHED = re.compile(r"\.oom-\d{8}T\d{6}\.\d{9}Z-\d+\.(?P<pid>\d+)")
_NS = 1_000_000_000
_AT_ONCE = 4
"""So many kills are kept at the same time: a storm of them must not become a storm of helpers."""

Texts = Callable[[EventLine], tuple[str, str]]
"""From a line to its JSON and its text."""


class Keeper:
    """Keeps the last `count` reports below `folder`. The work is done by child processes; `notice` gets what failed.

    Raises RtdebugError when the folder cannot be made.
    """

    def __init__(self, folder: Path, count: int, texts: Texts, notice: Callable[[str], object]) -> None:
        self._folder = folder
        self._count = count
        self._texts = texts
        self._notice = notice
        self._running: list[Child[str | None]] = []
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for path in folder.iterdir():
                if _UNFINISHED.fullmatch(path.name):  # of a keeper that was killed
                    shutil.rmtree(path, ignore_errors=True)
        except OSError as error:
            raise RtdebugError(
                f"cannot keep reports in {folder}: {error.strerror}", "give another place with --keep-dir"
            ) from error

    def keep(self, line: EventLine) -> None:
        """Keep the report of an `oom_kill` line; returns at once unless many are under way."""
        self._reap(wait=len(self._running) >= _AT_ONCE)
        folder, count, texts = self._folder, self._count, self._texts
        self._running.append(Child(lambda: keep_report(folder, count, line, texts(line))))

    def close(self) -> None:
        """Wait for what is under way."""
        while self._running:
            self._reap(wait=True)

    def _reap(self, wait: bool) -> None:
        for child in list(self._running):
            if wait or child.is_done():
                self._running.remove(child)
                wait = False
                try:
                    problem = child.result()
                except RtdebugError as error:
                    problem = error.message
                if problem is not None:
                    self._notice(problem)


def keep_report(folder: Path, count: int, line: EventLine, texts: tuple[str, str]) -> str | None:
    """Write one report, and remove the oldest beyond `count`; return what the user should know."""
    name = _name(line)
    unfinished = folder / f".{name}.{os.getpid()}"
    try:
        unfinished.mkdir(mode=0o700)
        problem = _snapshot(line, unfinished / "memory.tar.gz")
        json_text, text = texts
        _write(unfinished / "oom.json", json_text + "\n")
        _write(unfinished / "oom.txt", f"{text}\n" + (f"\n{problem}\n" if problem else ""))
        unfinished.rename(folder / name)
        prune(folder, count)
    except OSError as error:
        return f"cannot keep the report of pid {line.pid} in {folder}: {error.strerror}"
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return None


def prune(folder: Path, count: int) -> None:
    """Remove the oldest reports beyond `count`; nothing that has another name."""
    kept = sorted(path for path in folder.iterdir() if _NAME.fullmatch(path.name))
    for path in kept[: max(0, len(kept) - count)]:
        shutil.rmtree(path, ignore_errors=True)  # another watch may remove it too


def _name(line: EventLine) -> str:
    seconds, ns = divmod(line.time_ns, _NS)
    return f"oom-{time.strftime('%Y%m%dT%H%M%S', time.gmtime(seconds))}.{ns:09d}Z-{line.pid}"


def _write(path: Path, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)


def _snapshot(line: EventLine, path: Path) -> str | None:
    """Write what is left of the container; return why there is none."""
    from rtdebug.containers.resolve import find_container
    from rtdebug.snapshot.archive import write_archive
    from rtdebug.snapshot.take import take_snapshot

    own_cgroup = line.cgroup if line.cgroup not in (None, "/") else None
    target = line.container_id or (f"cgroup:{own_cgroup}" if own_cgroup else None)
    if target is None:
        return "No snapshot: the killed process was in no container and no cgroup of its own."
    try:
        container, _ = find_container(target)
        write_archive(take_snapshot(container), path)
    except (RtdebugError, OSError) as error:
        with suppress(OSError):
            path.unlink()
        return f"No snapshot, the container was gone already: {error}"
    return None
