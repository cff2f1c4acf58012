"""Mounts, objects and reports of shared memory, made by hand."""

from __future__ import annotations

from dataclasses import replace

from rtdebug.containers.model import Container
from rtdebug.shm.limits import Limit, LimitKind
from rtdebug.shm.model import Creator, ObjectKind, ShmObject, User
from rtdebug.shm.mounts import TmpfsMount
from rtdebug.shm.report import ShmReport
from rtdebug.shm.volumes import Volume, VolumeKind

MIB = 1 << 20
NOW_NS = 1_700_000_000_000_000_000
SECOND = 1_000_000_000
DEVICE = 159


def limit(kind=LimitKind.MOUNT_SIZE, limit_bytes=64 * MIB, left_bytes=54 * MIB, cgroup=None):
    return Limit(kind, limit_bytes, left_bytes, cgroup)


def mount(**changes):
    base = TmpfsMount(
        path="/dev/shm",
        also_at=(),
        source="shm",
        root="/",
        device_id=DEVICE,
        is_file=False,
        covered=False,
        size_bytes=64 * MIB,
        used_bytes=10 * MIB,
        inodes=1000,
        inodes_left=990,
        options={"rw": None, "size": "65536k"},
        read_only=False,
        volume=Volume(VolumeKind.CONTAINER),
        limits=(limit(),),
    )
    return replace(base, **changes)


def found(**changes):
    """An orphan of 5 MiB, ten minutes old."""
    base = ShmObject(
        kind=ObjectKind.POSIX,
        name="/dev/shm/psm_1f2e",
        device_id=DEVICE,
        inode_id=7,
        size_bytes=6 * MIB,
        allocated_bytes=5 * MIB,
        creator=Creator(1000),
        changed_ns=NOW_NS - 600 * SECOND,
        charged_to=None,
        mappers=(),
        holders=(),
        attached=None,
        orphan=True,
        shared=False,
    )
    return replace(base, **changes)


def user(pid=4711, comm="python3", in_container=True):
    return User(pid, comm, in_container)


def container(**changes):
    return replace(Container("c" * 64, "web", "docker", 100, "running", "/docker/web"), **changes)


def report(**changes):
    base = ShmReport(
        container=container(),
        pid=100,
        time_ns=NOW_NS,
        mounts=(mount(),),
        objects=(found(),),
        dev_shm_fstype="tmpfs",
        comms=frozenset({"python3"}),
        segments_seen=True,
        unseen_pids=(),
    )
    return replace(base, **changes)
