"""Snapshots made by hand: a container with two processes, whose figures add up."""

from __future__ import annotations

from dataclasses import replace

from rtdebug.containers.model import Container
from rtdebug.host.descriptors import FdGroup, FdKind
from rtdebug.host.maps import MappingKind, MemoryUse
from rtdebug.host.memcg import MemoryState
from rtdebug.host.meminfo import BuddyZone
from rtdebug.shm.model import Creator, ObjectKind, ShmObject
from rtdebug.snapshot.model import (
    CgroupRecord,
    HostRecord,
    LinkRecord,
    MappingGroup,
    NamespaceRecord,
    NetworkRecord,
    ProcessRecord,
    RuntimeRecord,
    SharedMemory,
    Snapshot,
)

MIB = 1 << 20
HOSTILE = "a \x1b[31mred\nname \u202e\udcff/../x"


def memory_state(version=1, usage=100 * MIB, **stat):
    """A cgroup's figures; `stat` replaces memory.stat."""
    v1 = {"total_rss": 60 * MIB, "total_cache": 35 * MIB, "total_shmem": 20 * MIB, "total_mapped_file": 16 * MIB}
    return MemoryState(
        version=version, usage_bytes=usage, limit_bytes=192 * MIB, high_bytes=None, peak_bytes=120 * MIB, failcnt=3,
        swap_usage_bytes=MIB, swap_limit_bytes=None, kmem_usage_bytes=4 * MIB if version == 1 else None,
        stat=stat or v1, events={"oom_kill": 1}, events_local={}, pressure=None, oom_group=None,
        oom_kill_disable=False, under_oom=False,
    )  # fmt: skip


def use(anon=0, file=0, shmem=0, **more):
    """A smaps_rollup with these PSS."""
    total = anon + file + shmem
    figures = {"pss_anon_bytes": anon, "pss_file_bytes": file, "pss_shmem_bytes": shmem, "swap_bytes": 0}
    return MemoryUse(rss_bytes=total, pss_bytes=total, **(figures | more))


def mapping(path="/usr/lib/libc.so.6", pss=MIB, kind=MappingKind.FILE, **more):
    """A group of one mapping."""
    group = MappingGroup(
        kind=kind, path=path, deleted=False, perms="r-xp", device=(8, 1), inode_id=77, vm_flags="rd ex mr mw me",
        thp_eligible=False, count=1, length_bytes=2 * pss, use=MemoryUse(rss_bytes=pss, pss_bytes=pss),
    )  # fmt: skip
    return replace(group, **more)


def process(pid=41, **more):
    """A process with 40 MiB anonymous, 3 MiB of files and 12 MiB shmem."""
    record = ProcessRecord(
        pid=pid, ns_pids=(pid, pid - 40), ppid=1, comm="app", cmdline=("app", "--serve"), state="S", threads=3, uid=0,
        start_ticks=1000 + pid, start_time_ns=1_700_000_000_000_000_000, oom_score=600, oom_score_adj=0,
        cgroup="/box", namespaces={"mnt": 5, "net": 6}, memory=use(40 * MIB, 3 * MIB, 12 * MIB),
        page_table_bytes=MIB, mapping_count=1, mappings=(mapping(),), fd_count=2,
        fds=(FdGroup(FdKind.SOCKET, "socket", False, 2, None, None, None, None),),
    )  # fmt: skip
    return replace(record, **more)


def shm_object(name="/dev/shm/lonely", allocated=5 * MIB, **more):
    """A file in /dev/shm that nobody uses."""
    found = ShmObject(
        kind=ObjectKind.POSIX, name=name, device_id=30, inode_id=9, size_bytes=allocated, allocated_bytes=allocated,
        creator=Creator(uid=0), changed_ns=1_700_000_000_000_000_000, charged_to=None, mappers=(), holders=(),
        attached=None, orphan=True, shared=False,
    )  # fmt: skip
    return replace(found, **more)


def snapshot(**more):
    """All of it."""
    taken = Snapshot(
        version="1.2.3", time_ns=1_700_000_100_000_000_000, took_ns=50_000_000, frozen=False,
        container=Container("c" * 64, "web", "docker", 41, "running", "/box"), cgroup_version=1,
        runtime=RuntimeRecord({"ociVersion": "1.0"}, {"linux": {"resources": {"memory": {"limit": 5}}}}),
        processes=(process(), process(42, ppid=41, memory=use(19 * MIB, MIB, MIB), cmdline=("worker",), mappings=())),
        namespaces=(NamespaceRecord("mnt", 5, (41, 42), False),),
        cgroups=(
            CgroupRecord("/box", memory_state(), {"pids.current": "2\n"}),
            CgroupRecord("/", replace(memory_state(), limit_bytes=None), {}),
        ),
        network=NetworkRecord(
            6, False, (LinkRecord(1, "lo", None, "UNKNOWN", 65536, None, ("127.0.0.1/8",), 5, 6),),
            ("default via 10.0.0.1 dev eth0",), {"TCP.inuse": 1}, 1, 0, 0,
        ),
        shared=SharedMemory(41, (), (shm_object(),), (), "tmpfs", True, ()),
        host=HostRecord(
            "6.1.0", "x86_64", 2, 4096, {"MemTotal": 8 << 30}, {}, (BuddyZone(0, "Normal", (1,) * 11),), None, {},
        ),
    )  # fmt: skip
    return replace(taken, **more)


def hostile():
    """A snapshot in which everything a container chooses is meant to harm."""
    nasty = process(
        comm=HOSTILE[:15], cmdline=(HOSTILE,), mappings=(mapping(HOSTILE),),
        fds=(FdGroup(FdKind.MEMFD, HOSTILE, True, 1, 1, 2, MIB, MIB),), environ=(f"KEY={HOSTILE}",),
    )  # fmt: skip
    base = snapshot()
    return replace(
        base,
        container=replace(base.container, name=HOSTILE, image=HOSTILE, bundle=HOSTILE),
        processes=(nasty,),
        cgroups=(replace(base.cgroups[0], path=f"/{HOSTILE}"),),
        shared=replace(base.shared, shm=(shm_object(HOSTILE),)),
        network=replace(base.network, routes=(HOSTILE,), links=(replace(base.network.links[0], name=HOSTILE),)),
        runtime=RuntimeRecord(
            {HOSTILE: HOSTILE}, {"mounts": [{"destination": HOSTILE}], "linux": {"resources": HOSTILE}}
        ),
        notes=(HOSTILE,),
    )
