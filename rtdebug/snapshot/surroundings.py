"""What is around the processes: the namespaces they are in, and the figures of the host."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from rtdebug.host.cgroup import memory_entry, parse_proc_cgroup
from rtdebug.host.meminfo import read_buddyinfo, read_meminfo, read_vmstat
from rtdebug.host.process import pids
from rtdebug.host.text import read_text
from rtdebug.host.thp import read_thp
from rtdebug.snapshot.model import HostRecord, NamespaceRecord, ProcessRecord
from rtdebug.snapshot.process import read_namespaces

_MOST_CGROUPS = 10


def collect_namespaces(records: Sequence[ProcessRecord], proc: Path = Path("/proc")) -> tuple[NamespaceRecord, ...]:
    """The namespaces that the processes are in, those with most of them first within a kind.

    More than one of a kind: a process has entered or made one of its own.
    """
    host = host_namespaces(proc)
    members: dict[tuple[str, int], list[int]] = {}
    for record in records:
        for kind, inode in record.namespaces.items():
            members.setdefault((kind, inode), []).append(record.pid)
    own = {key for key in members if host.get(key[0]) not in (None, key[1])}
    others = _others(own, {record.pid for record in records}, proc)
    found = [
        NamespaceRecord(kind, inode, tuple(within), _is_host(host, kind, inode), others.get((kind, inode), ()))
        for (kind, inode), within in members.items()
    ]
    return tuple(sorted(found, key=lambda each: (each.kind, -len(each.pids), each.inode_id)))


def host_namespaces(proc: Path = Path("/proc")) -> dict[str, int]:
    """Those of the host's init; where that may not be looked at, those of rtdebug itself."""
    return read_namespaces(1, proc) or read_namespaces("self", proc)


def _is_host(host: Mapping[str, int], kind: str, inode: int) -> bool | None:
    return host[kind] == inode if kind in host else None


def _others(
    own: Collection[tuple[str, int]], members: Collection[int], proc: Path
) -> dict[tuple[str, int], tuple[str, ...]]:
    """For each of the namespaces `own` the memory cgroups of processes that are not members."""
    found: dict[tuple[str, int], dict[str, None]] = {}
    for pid in pids(proc):
        if pid in members:
            continue
        for key in read_namespaces(pid, proc).items():
            if key in own and len(found.setdefault(key, {})) < _MOST_CGROUPS:
                entry = memory_entry(parse_proc_cgroup(read_text(proc / str(pid) / "cgroup") or ""))
                found[key].update({entry.path: None} if entry else {})
    return {key: tuple(cgroups) for key, cgroups in found.items()}


def read_host(proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> HostRecord:
    """The host's figures, as far as its files can be read."""
    pressure = read_text(proc / "pressure" / "memory")
    system = os.uname()
    return HostRecord(
        kernel=system.release,
        machine=system.machine,
        cpus=os.cpu_count() or 1,
        page_bytes=os.sysconf("SC_PAGE_SIZE"),
        meminfo=read_meminfo(proc),
        vmstat=read_vmstat(proc),
        buddyinfo=read_buddyinfo(proc),
        thp=read_thp(sys),
        pressure={} if pressure is None else {"memory": pressure},
    )
