"""What a snapshot holds. Names end in their unit; None: not known, by this kernel or because it had vanished.

Text is as the kernel gave it, bytes that are not UTF-8 as surrogate escapes: whoever shows it escapes it (D13).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rtdebug.containers.model import Container
from rtdebug.host.descriptors import FdGroup
from rtdebug.host.maps import MappingKind, MemoryUse
from rtdebug.host.memcg import MemoryState
from rtdebug.host.meminfo import BuddyZone
from rtdebug.host.thp import ThpSettings
from rtdebug.shm.model import ShmObject
from rtdebug.shm.mounts import TmpfsMount

SCHEMA_VERSION = 1
"""Of the file. A reader takes its own and older ones; keys it does not know it leaves alone."""

Json = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class MappingGroup:
    """The mappings of one process that are alike in all but their address, added up."""

    kind: MappingKind
    path: str
    """As in host.maps.Mapping: without ` (deleted)`; "" for unnamed memory and for a rest."""
    deleted: bool
    perms: str
    device: tuple[int, int]
    inode_id: int
    vm_flags: str | None
    """The letters of VmFlags, blank between them; None before Linux 3.8."""
    thp_eligible: bool | None
    count: int
    length_bytes: int
    use: MemoryUse
    is_rest: bool = False
    """Stands for all further mappings of this kind: there were more than a snapshot keeps."""


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """One process of the container."""

    pid: int
    ns_pids: tuple[int, ...]
    """Its pid in every pid namespace from the host's inwards."""
    ppid: int
    comm: str
    cmdline: tuple[str, ...]
    state: str
    """R, S, D, Z, T, t, X, I."""
    threads: int | None
    uid: int
    """Effective, as the host counts."""
    start_ticks: int
    """Since boot: with the pid it names one process for ever."""
    start_time_ns: int | None
    """Unix time, to a tick (10 ms) and the accuracy of the boot time."""
    oom_score: int | None
    oom_score_adj: int | None
    cgroup: str | None
    """The cgroup that counts its memory from now on; what it touched before a move stays with the old one."""
    namespaces: Mapping[str, int]
    """Kind (`mnt`, `pid`, `net`, ...) to inode number."""
    memory: MemoryUse | None
    """smaps_rollup; None for a zombie, and where it could not be read."""
    page_table_bytes: int | None
    mapping_count: int | None
    mappings: tuple[MappingGroup, ...]
    fd_count: int | None
    fds: tuple[FdGroup, ...]
    environ: tuple[str, ...] | None = None
    """Only with --with-environ."""
    unread: tuple[str, ...] = ()
    """Files that were there and could not be read."""


@dataclass(frozen=True, slots=True)
class NamespaceRecord:
    """One namespace that processes of the container are in."""

    kind: str
    inode_id: int
    pids: tuple[int, ...]
    is_host: bool | None
    """It is the host's: nothing is isolated there."""
    shared_with: tuple[str, ...] = ()
    """Memory cgroups of other processes in it: containers of a pod share some. Not looked for in the host's."""


@dataclass(frozen=True, slots=True)
class CgroupRecord:
    """One cgroup: the container's, or one above it."""

    path: str
    memory: MemoryState | None
    files: Mapping[str, str]
    """Text of what `memory` does not hold: pids.*, cpu.*, memory.numa_stat, memory.pressure, ..."""


@dataclass(frozen=True, slots=True)
class RuntimeRecord:
    """What the runtime says of the container."""

    state: Json | None
    """`runc state` or `crun state`."""
    config: Json | None
    """The part of the bundle's config.json that bears on memory. Without environment unless asked for."""


@dataclass(frozen=True, slots=True)
class LinkRecord:
    """One network interface."""

    index_id: int
    name: str
    kind: str | None
    """`veth`, `bridge`, ...; None for loopback and hardware."""
    state: str | None
    mtu_bytes: int | None
    address: str | None
    addresses: tuple[str, ...]
    """IP addresses with their prefix length."""
    rx_bytes: int | None
    tx_bytes: int | None


@dataclass(frozen=True, slots=True)
class NetworkRecord:
    """The network namespace."""

    inode_id: int | None
    is_host: bool | None
    links: tuple[LinkRecord, ...]
    routes: tuple[str, ...]
    """As `ip route` would say it: `default via 10.0.0.1 dev eth0`."""
    sockets: Mapping[str, int]
    """/proc/PID/net/sockstat and sockstat6: `TCP.inuse`, ... Its `mem` is the whole host's."""
    socket_count: int | None
    socket_rmem_bytes: int | None
    """Allocated for receiving, all IP sockets of the namespace together (sock_diag(7), SK_MEMINFO)."""
    socket_wmem_bytes: int | None
    """Allocated for sending, and queued."""


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """tmpfs, POSIX and SysV shared memory, memfds."""

    pid: int
    """The process whose view it is."""
    tmpfs: tuple[TmpfsMount, ...]
    shm: tuple[ShmObject, ...]
    """Files of tmpfs, memfds, anonymous shared memory; the largest first."""
    sysv: tuple[ShmObject, ...]
    """Segments of the IPC namespace: `name` is the key, `inode_id` the shmid."""
    dev_shm_fstype: str | None
    segments_seen: bool
    """Whether its SysV segments could be read."""
    unseen_pids: tuple[int, ...]
    """Processes that could not be asked whether they use it."""
    cut: tuple[str, ...] = ()
    """Mounts with more files than are read: the rest is missing."""


@dataclass(frozen=True, slots=True)
class HostRecord:
    """Figures of the host that explain the container's."""

    kernel: str
    machine: str
    cpus: int
    page_bytes: int
    meminfo: Mapping[str, int]
    vmstat: Mapping[str, int]
    buddyinfo: tuple[BuddyZone, ...]
    thp: ThpSettings | None
    pressure: Mapping[str, str]
    """Text of /proc/pressure/memory."""


@dataclass(frozen=True, slots=True)
class ResourceLimit:
    """As getrlimit(2) tells it; None: unlimited."""

    soft: int | None
    hard: int | None


@dataclass(frozen=True, slots=True)
class InsideRecord:
    """What a process sees and may do inside."""

    figures: Mapping[str, int]
    """`sysinfo_total_bytes`, `meminfo_total_bytes`, `cpus`, `thp_disabled`."""
    limits: Mapping[str, ResourceLimit]
    """Of a new process: `memlock`, `stack`, ..., in bytes or how many."""
    calls: Mapping[str, str | None]
    """Memory calls that were tried: the error (`EPERM`), None: it works."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The memory of a container at one moment."""

    version: str
    """Of the rtdebug that took it."""
    time_ns: int
    """Unix time at which it began."""
    took_ns: int
    """Figures are not of one instant: so long it took. With --freeze nothing changed meanwhile."""
    frozen: bool
    """All of it stood still until all was read."""
    container: Container
    cgroup_version: int | None
    runtime: RuntimeRecord
    processes: tuple[ProcessRecord, ...]
    namespaces: tuple[NamespaceRecord, ...]
    cgroups: tuple[CgroupRecord, ...]
    """The container's first, the root last."""
    network: NetworkRecord | None
    shared: SharedMemory | None
    host: HostRecord
    notes: tuple[str, ...] = ()
    """What vanished or could not be read."""
    schema: int = SCHEMA_VERSION
    inside: InsideRecord | None = None
    """With --exec."""
    frozen_ns: int | None = None
    """How long it was held still; None: it was not."""
