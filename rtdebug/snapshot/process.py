"""One process of a container, as /proc shows it. It may exit at any moment: then there is no record of it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from rtdebug.host.cgroup import memory_entry, parse_proc_cgroup
from rtdebug.host.descriptors import FdGroup, MountTable, read_fds
from rtdebug.host.maps import MapsError, MemoryUse, parse_smaps_rollup
from rtdebug.host.process import ProcessIds, ProcessStat, parse_cmdline, parse_stat, parse_status_ids
from rtdebug.host.process_folder import ProcessFolder
from rtdebug.host.text import parse_int, read_text
from rtdebug.snapshot.model import MappingGroup, ProcessRecord
from rtdebug.snapshot.smaps import SmapsReader

NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts")
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
        """The record of `pid`; None if it has exited, or exits meanwhile."""
        try:
            with ProcessFolder(pid, self.proc) as folder:
                return self._read(folder)
        except (FileNotFoundError, ProcessLookupError):
            return None

    def _read(self, folder: ProcessFolder) -> ProcessRecord | None:
        stat = parse_stat(folder.text("stat") or "")
        status = folder.text("status") or ""
        ids = parse_status_ids(status)
        if stat is None or ids is None:
            return None
        record = self._record(folder, stat, ids, status)
        return record if folder.text("stat") else None

    def _record(self, folder: ProcessFolder, stat: ProcessStat, ids: ProcessIds, status: str) -> ProcessRecord:
        unread: list[str] = []
        mappings = self._mappings(folder, stat, unread)
        fds = self._fds(folder, unread)
        return ProcessRecord(
            pid=stat.pid,
            ns_pids=ids.ns_pids,
            ppid=stat.ppid,
            comm=stat.comm,
            cmdline=parse_cmdline(folder.text("cmdline", _MOST_CMDLINE_BYTES) or ""),
            state=stat.state,
            threads=status_value(status, "Threads"),
            uid=ids.uid,
            start_ticks=stat.start_ticks,
            start_time_ns=self._start_time_ns(stat.start_ticks),
            oom_score=parse_int(folder.text("oom_score")),
            oom_score_adj=parse_int(folder.text("oom_score_adj")),
            cgroup=_memory_cgroup(folder.text("cgroup") or ""),
            namespaces=namespaces_of(folder),
            memory=self._rollup(folder, stat, unread),
            page_table_bytes=_kib(status_value(status, "VmPTE")),
            mapping_count=None if mappings is None else sum(group.count for group in mappings),
            mappings=mappings or (),
            fd_count=fds[0] if fds else None,
            fds=fds[1] if fds else (),
            environ=self._environ(folder),
            unread=tuple(unread),
        )

    def _mappings(self, folder: ProcessFolder, stat: ProcessStat, unread: list[str]) -> tuple[MappingGroup, ...] | None:
        if not self.with_mappings or stat.state in "ZX":
            return None
        try:
            return self.smaps.read(folder)
        except (OSError, MapsError):
            unread.append("smaps")
            return None

    def _rollup(self, folder: ProcessFolder, stat: ProcessStat, unread: list[str]) -> MemoryUse | None:
        if stat.state in "ZX":
            return None
        text = folder.text("smaps_rollup")
        if text is None:
            unread.append("smaps_rollup")
        try:
            return parse_smaps_rollup(text) if text else None
        except MapsError:
            unread.append("smaps_rollup")
            return None

    def _fds(self, folder: ProcessFolder, unread: list[str]) -> tuple[int, tuple[FdGroup, ...]] | None:
        fds = read_fds(folder, self.mounts)
        if fds is None:
            unread.append("fd")
        return fds

    def _start_time_ns(self, start_ticks: int) -> int | None:
        if self.boot_time_ns is None:
            return None
        return self.boot_time_ns + start_ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")

    def _environ(self, folder: ProcessFolder) -> tuple[str, ...] | None:
        if not self.with_environ:
            return None
        text = folder.text("environ", _MOST_ENVIRON_BYTES)
        return None if text is None else parse_cmdline(text)


@lru_cache(maxsize=64)
def _memory_cgroup(text: str) -> str | None:
    """Of the text of /proc/PID/cgroup, mostly the same for all processes of a container."""
    entry = memory_entry(parse_proc_cgroup(text))
    return entry.path if entry else None


def namespaces_of(folder: ProcessFolder) -> dict[str, int]:
    """Kind to inode number, without those that may not be read."""
    found = ((kind, folder.namespace_id(kind)) for kind in NAMESPACES)
    return {kind: inode for kind, inode in found if inode is not None}


def read_namespaces(pid: int | str, proc: Path = Path("/proc")) -> dict[str, int]:
    """As namespaces_of(); none of a process that has exited."""
    try:
        with ProcessFolder(pid, proc) as folder:
            return namespaces_of(folder)
    except OSError:
        return {}


def read_boot_time_ns(proc: Path = Path("/proc")) -> int | None:
    """Unix time of the boot, from `btime` of /proc/stat: whole seconds, as the clock is set now."""
    match = re.search(r"^btime (\d+)$", read_text(proc / "stat") or "", re.MULTILINE)
    return int(match[1]) * 1_000_000_000 if match else None


def status_value(status: str, key: str) -> int | None:
    """The number behind `key` in /proc/PID/status."""
    match = re.search(rf"^{key}:\s*(\d+)", status, re.MULTILINE)
    return int(match[1]) if match else None


def _kib(count: int | None) -> int | None:
    return None if count is None else count * 1024
