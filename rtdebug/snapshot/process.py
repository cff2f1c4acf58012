"""One process of a container, as /proc shows it. It may exit at any moment: then there is no record of it."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rtdebug.host.cgroup import memory_entry, parse_proc_cgroup
from rtdebug.host.descriptors import FdGroup, MountTable, read_fds
from rtdebug.host.maps import MapsError, MemoryUse, parse_smaps_rollup
from rtdebug.host.process import ProcessStat, parse_cmdline, parse_status_ids, read_stat
from rtdebug.host.text import decode, parse_int, read_text
from rtdebug.snapshot.model import MappingGroup, ProcessRecord
from rtdebug.snapshot.smaps import SmapsReader

NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts")
_INODE = re.compile(r"\w+:\[(\d+)\]")
_MOST_ENVIRON_BYTES = 1 << 20
_MOST_CMDLINE_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class ProcessReader:
    """Reads one process after the other, with what is the same for all of them."""

    smaps: SmapsReader
    mounts: MountTable
    proc: Path = Path("/proc")
    boot_time_ns: int | None = None
    with_environ: bool = False
    with_mappings: bool = True

    def read(self, pid: int) -> ProcessRecord | None:
        """The record of `pid`; None if it has exited, or another process has got its pid meanwhile."""
        before = read_stat(pid, self.proc)
        status = read_text(self.proc / str(pid) / "status")
        ids = parse_status_ids(status) if status else None
        if before is None or ids is None or status is None:
            return None
        record = self._record(before, ids.ns_pids, ids.uid, status)
        after = read_stat(pid, self.proc)
        return record if after is not None and after.start_ticks == before.start_ticks else None

    def _record(self, stat: ProcessStat, ns_pids: tuple[int, ...], uid: int, status: str) -> ProcessRecord:
        folder = self.proc / str(stat.pid)
        unread: list[str] = []
        cgroup = memory_entry(parse_proc_cgroup(read_text(folder / "cgroup") or ""))
        mappings = self._mappings(stat, unread)
        fds = self._fds(stat, unread)
        return ProcessRecord(
            pid=stat.pid,
            ns_pids=ns_pids,
            ppid=stat.ppid,
            comm=stat.comm,
            cmdline=parse_cmdline(read_bounded(folder / "cmdline", _MOST_CMDLINE_BYTES) or ""),
            state=stat.state,
            threads=status_value(status, "Threads"),
            uid=uid,
            start_ticks=stat.start_ticks,
            start_time_ns=self._start_time_ns(stat.start_ticks),
            oom_score=parse_int(read_text(folder / "oom_score")),
            oom_score_adj=parse_int(read_text(folder / "oom_score_adj")),
            cgroup=cgroup.path if cgroup else None,
            namespaces=read_namespaces(folder),
            memory=self._rollup(stat, unread),
            page_table_bytes=_kib(status_value(status, "VmPTE")),
            mapping_count=None if mappings is None else sum(group.count for group in mappings),
            mappings=mappings or (),
            fd_count=fds[0] if fds else None,
            fds=fds[1] if fds else (),
            environ=self._environ(folder),
            unread=tuple(unread),
        )

    def _mappings(self, stat: ProcessStat, unread: list[str]) -> tuple[MappingGroup, ...] | None:
        if not self.with_mappings or stat.state in "ZX":
            return None
        try:
            return self.smaps.read(stat.pid, self.proc)
        except (OSError, MapsError):
            unread.append("smaps")
            return None

    def _rollup(self, stat: ProcessStat, unread: list[str]) -> MemoryUse | None:
        if stat.state in "ZX":
            return None
        text = read_text(self.proc / str(stat.pid) / "smaps_rollup")
        if text is None:
            unread.append("smaps_rollup")
        try:
            return parse_smaps_rollup(text) if text else None
        except MapsError:
            unread.append("smaps_rollup")
            return None

    def _fds(self, stat: ProcessStat, unread: list[str]) -> tuple[int, tuple[FdGroup, ...]] | None:
        fds = read_fds(stat.pid, self.mounts, self.proc)
        if fds is None:
            unread.append("fd")
        return fds

    def _start_time_ns(self, start_ticks: int) -> int | None:
        if self.boot_time_ns is None:
            return None
        return self.boot_time_ns + start_ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")

    def _environ(self, folder: Path) -> tuple[str, ...] | None:
        if not self.with_environ:
            return None
        text = read_bounded(folder / "environ", _MOST_ENVIRON_BYTES)
        return None if text is None else parse_cmdline(text)


def read_namespaces(folder: Path) -> dict[str, int]:
    """Kind to inode number, of the folder /proc/PID; without those that may not be read."""
    found: dict[str, int] = {}
    try:
        folder_fd = os.open(folder / "ns", os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return found
    try:
        for kind in NAMESPACES:
            with suppress(OSError):
                match = _INODE.fullmatch(os.readlink(kind, dir_fd=folder_fd))
                if match:
                    found[kind] = int(match[1])
    finally:
        os.close(folder_fd)
    return found


def read_boot_time_ns(proc: Path = Path("/proc")) -> int | None:
    """Unix time of the boot, from `btime` of /proc/stat: whole seconds, as the clock is set now."""
    match = re.search(r"^btime (\d+)$", read_text(proc / "stat") or "", re.MULTILINE)
    return int(match[1]) * 1_000_000_000 if match else None


def read_bounded(path: Path, limit_bytes: int) -> str | None:
    """The first `limit_bytes` of a file that a process fills; None if it cannot be read."""
    try:
        with path.open("rb") as file:
            return decode(file.read(limit_bytes))
    except OSError:
        return None


def status_value(status: str, key: str) -> int | None:
    """The number behind `key` in /proc/PID/status."""
    match = re.search(rf"^{key}:\s*(\d+)", status, re.MULTILINE)
    return int(match[1]) if match else None


def _kib(count: int | None) -> int | None:
    return None if count is None else count * 1024
