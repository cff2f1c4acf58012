"""ShmObject: one piece of shared memory, whatever made it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ObjectKind(StrEnum):
    """What made it."""

    POSIX = "posix"
    """A file in /dev/shm: shm_open(3), sem_open(3), or any other way to make a file there."""
    FILE = "file"
    """A file in another tmpfs."""
    DELETED = "deleted"
    """A file of a tmpfs without a name, or under another mount: its memory goes with its last user."""
    MEMFD = "memfd"
    SYSV = "sysv"
    ANONYMOUS = "anonymous"
    """Memory without a name that processes share: mmap(2) with MAP_SHARED | MAP_ANONYMOUS."""


@dataclass(frozen=True, slots=True)
class User:
    """A process that has it mapped or open."""

    pid: int
    """On the host."""
    comm: str | None
    in_container: bool
    """No: of the host, or of another container."""


@dataclass(frozen=True, slots=True)
class Creator:
    """Who made it, as far as that can be known afterwards."""

    uid: int | None
    """Of the owner, as the host counts."""
    pid: int | None = None
    """On the host. Told by the kernel for a SysV segment only, and by a trace that saw it made."""
    comm: str | None = None
    """None: it has exited, or is not known."""


@dataclass(frozen=True, slots=True)
class ShmObject:
    """One object. None: not known."""

    kind: ObjectKind
    name: str
    """A path as the container sees it; `memfd:NAME`; of a SysV segment its key (0x00000000: private)."""
    device_id: int | None
    """st_dev; None for a SysV segment that nobody has attached."""
    inode_id: int
    """Of a SysV segment its shmid."""
    size_bytes: int | None
    """What was asked for."""
    allocated_bytes: int | None
    """What it takes, in memory or swap."""
    creator: Creator
    changed_ns: int | None
    """Unix time of its last change that the kernel notes. Stores through a mapping are not noted."""
    charged_to: tuple[str, ...] | None
    """The memory cgroups that pay for the pages that were looked at; None: not looked, or not known."""
    mappers: tuple[User, ...]
    holders: tuple[User, ...]
    """Who has it open."""
    attached: int | None
    """SysV: how many times it is attached; None for others."""
    orphan: bool | None
    """Nobody has it mapped or open, and it stays until somebody removes it. None: not all processes could be seen."""
    shared: bool
    """It lies where others than this container may use it by name: the host's /dev/shm or IPC namespace."""

    @property
    def users(self) -> tuple[User, ...]:
        """Who maps or holds it, each once."""
        return tuple(dict.fromkeys((*self.mappers, *self.holders)))

    def age_ns(self, now_ns: int) -> int | None:
        """Since the last change that the kernel noted."""
        return None if self.changed_ns is None else max(0, now_ns - self.changed_ns)
