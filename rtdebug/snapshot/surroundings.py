"""What is around the processes: the namespaces they are in, and the figures of the host."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from rtdebug.host.meminfo import read_buddyinfo, read_meminfo, read_vmstat
from rtdebug.host.text import read_text
from rtdebug.host.thp import read_thp
from rtdebug.snapshot.model import HostRecord, NamespaceRecord, ProcessRecord
from rtdebug.snapshot.process import read_namespaces


def collect_namespaces(records: Iterable[ProcessRecord], proc: Path = Path("/proc")) -> tuple[NamespaceRecord, ...]:
    """The namespaces that the processes are in, those with most of them first within a kind.

    More than one of a kind: a process has entered or made one of its own.
    """
    host = read_namespaces(proc / "1")
    members: dict[tuple[str, int], list[int]] = {}
    for record in records:
        for kind, inode in record.namespaces.items():
            members.setdefault((kind, inode), []).append(record.pid)
    found = [
        NamespaceRecord(kind, inode, tuple(pids), is_host=host.get(kind) == inode)
        for (kind, inode), pids in members.items()
    ]
    return tuple(sorted(found, key=lambda each: (each.kind, -len(each.pids), each.inode_id)))


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
