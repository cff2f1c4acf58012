"""One sample of a process: /proc/PID/status, its open files, and now and then smaps_rollup.

Man pages proc_pid_status(5), proc_pid_fd(5), proc_pid_smaps_rollup. Who a process is is read once, and again when it
has called exec.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Container
from dataclasses import dataclass
from pathlib import Path

from rtdebug.errors import RtdebugError
from rtdebug.host.maps import read_smaps_rollup
from rtdebug.host.process import parse_cmdline, parse_stat
from rtdebug.host.text import decode, valid_utf8
from rtdebug.leaks.identity import command_of, identity_of
from rtdebug.leaks.quick import read_bytes, status_of

PSS_EVERY_NS = 60_000_000_000
_PSS_NONE: tuple[int | None, ...] = (None, None, None, None)
_NS_PER_S = 1_000_000_000


@dataclass(slots=True)
class Known:
    """Who a process is, until it calls exec or exits."""

    inode_id: int
    """Of /proc/PID/fd: the pid's next owner has another."""
    name: bytes
    start_time_ns: int | None
    identity: str
    comm: str
    command: str | None
    pss_due_ns: int = 0


@dataclass(frozen=True, slots=True)
class ProcessFigures:
    """A process at one moment; None: the kernel does not say."""

    known: Known
    rss_anon_bytes: int | None
    rss_file_bytes: int | None
    rss_shmem_bytes: int | None
    swap_bytes: int | None
    page_tables_bytes: int | None
    threads: int | None
    fds: int | None


class ProcessReader:
    """Reads processes pass after pass. `proc` is a parameter for tests."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = str(proc)
        self._known: dict[int, Known] = {}
        self._boot_ns = _boot_time_ns(self._proc)
        self._tick_ns = _NS_PER_S // os.sysconf("SC_CLK_TCK")
        self._fd_size_counts = _fd_size_counts(self._proc)

    def read(self, pid: int) -> ProcessFigures | None:
        """The figures of `pid`; None if it has exited, or has no memory of its own (zombies, kernel threads)."""
        folder = f"{self._proc}/{pid}"
        status = read_bytes(f"{folder}/status")
        if status is None or b"\nVmRSS:" not in status:
            return None
        fd_folder = status_of(f"{folder}/fd")
        if fd_folder is None:
            return None
        name = status[6 : status.find(b"\n")]  # "Name:\t"
        known = self._known.get(pid)
        # without a command: seen in the middle of its exec, when it has its new name and no arguments yet
        if known is None or known.inode_id != fd_folder.st_ino or known.name != name or known.command is None:
            known = self._known[pid] = self._identify(folder, fd_folder.st_ino, name)
        return ProcessFigures(
            known,
            _kib(status, b"\nRssAnon:"),
            _kib(status, b"\nRssFile:"),
            _kib(status, b"\nRssShmem:"),
            _kib(status, b"\nVmSwap:"),
            _kib(status, b"\nVmPTE:"),
            _after(status, b"\nThreads:"),
            fd_folder.st_size if self._fd_size_counts else _count_entries(f"{folder}/fd"),
        )

    def read_pss(self, pid: int) -> tuple[int | None, ...]:
        """pss_bytes and its anon, file and shmem parts, of smaps_rollup: milliseconds for large processes."""
        try:
            use = read_smaps_rollup(pid, Path(self._proc))
        except RtdebugError:
            return _PSS_NONE
        if use is None:
            return _PSS_NONE
        return use.pss_bytes, use.pss_anon_bytes, use.pss_file_bytes, use.pss_shmem_bytes

    def forget_all_but(self, pids: Container[int]) -> None:
        """Let go of the processes that were not seen in this pass."""
        for pid in [pid for pid in self._known if pid not in pids]:
            del self._known[pid]

    def _identify(self, folder: str, inode_id: int, name: bytes) -> Known:
        stat = parse_stat(decode(read_bytes(f"{folder}/stat") or b""))
        arguments = parse_cmdline(decode(read_bytes(f"{folder}/cmdline") or b""))
        try:
            executable = str(Path(f"{folder}/exe").readlink())
        except OSError:
            executable = None
        return Known(
            inode_id=inode_id,
            name=name,
            start_time_ns=self._start_time_ns(stat.start_ticks) if stat else None,
            identity=identity_of(executable, arguments),
            comm=valid_utf8(decode(name)),
            command=command_of(arguments),
        )

    def _start_time_ns(self, start_ticks: int) -> int | None:
        return None if self._boot_ns is None else self._boot_ns + start_ticks * self._tick_ns


def take_pss(
    reader: ProcessReader,
    figures: dict[int, ProcessFigures],
    budget_ns: int,
    now_ns: Callable[[], int] = time.monotonic_ns,
) -> dict[int, tuple[int | None, ...]]:
    """Read smaps_rollup of those processes whose turn it is, the longest waiting first, as long as the budget lasts.

    Reading it holds up the process's own mmap and munmap, so nobody's comes more often than once a minute.
    """
    began_ns = now_ns()
    due = [(found.known.pss_due_ns, pid) for pid, found in figures.items() if found.known.pss_due_ns <= began_ns]
    taken: dict[int, tuple[int | None, ...]] = {}
    for _, pid in sorted(due):
        if now_ns() - began_ns > budget_ns:
            break
        taken[pid] = reader.read_pss(pid)
        figures[pid].known.pss_due_ns = began_ns + PSS_EVERY_NS
    return taken


def _kib(status: bytes, key: bytes) -> int | None:
    value = _after(status, key)
    return None if value is None else value * 1024


def _after(status: bytes, key: bytes) -> int | None:
    """The number that follows `key`."""
    found = status.find(key)
    if found < 0:
        return None
    return int(status[found + len(key) : status.find(b"\n", found + 1)].split(None, 1)[0])


def _boot_time_ns(proc: str) -> int | None:
    """btime of /proc/stat: the same after a restart of the recorder, so a process keeps its start time."""
    found = _after(read_bytes(f"{proc}/stat") or b"", b"\nbtime")
    return None if found is None else found * _NS_PER_S


def _fd_size_counts(proc: str) -> bool:
    """Is the size of /proc/PID/fd the number of open files? Commit f1f1f2569901 ("proc: report open files as size in
    stat() for /proc/pid/fd"), in v6.2.
    """
    status = status_of(f"{proc}/self/fd")
    return status is not None and status.st_size > 0


def _count_entries(folder: str) -> int | None:
    try:
        with os.scandir(folder) as entries:
            return sum(1 for _ in entries)
    except OSError:
        return None
