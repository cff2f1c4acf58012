"""Every piece of shared memory of a container: files of its tmpfs, memfds, SysV segments, shared anonymous memory."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rtdebug.host.fds import FileKey, FileUse, FileUses, internal_devices
from rtdebug.host.inside import open_regular_in_root
from rtdebug.host.process import namespace_id, read_comm
from rtdebug.host.sysv import SysvSegment, read_sysv_shm
from rtdebug.shm.charges import Charges
from rtdebug.shm.files import MOST_FILES, FoundFile, walk
from rtdebug.shm.model import Creator, ObjectKind, ShmObject, User
from rtdebug.shm.mounts import SHM_PATH, TmpfsMount
from rtdebug.shm.uses import read_host_uses
from rtdebug.shm.volumes import VolumeKind

_INTERNAL = (
    ("/memfd:", ObjectKind.MEMFD),
    ("/dev/zero", ObjectKind.ANONYMOUS),
    ("/anon_hugepage", ObjectKind.ANONYMOUS),
)


@dataclass(frozen=True, slots=True)
class ShmObjects:
    """What was found, and how completely."""

    objects: tuple[ShmObject, ...]
    """The largest first."""
    cut: tuple[str, ...]
    """Mounts with more files than are read (files.MOST_FILES): the rest is missing."""
    segments_seen: bool
    """Whether its IPC namespace could be entered: if not, SysV segments are missing."""
    unseen_pids: tuple[int, ...]
    """Processes that may not be looked at, and so may use an object that seems to be an orphan."""


def read_objects(
    pid: int,
    members: Collection[int],
    mounts: Iterable[TmpfsMount],
    charges: Charges | None = None,
    proc: Path = Path("/proc"),
    known: FileUses | None = None,
) -> ShmObjects:
    """The objects of the container of `pid`, whose processes are `members`.

    With `charges`, also who pays for each. `known` are uses that were read before, for several containers.
    """
    mounts = tuple(mounts)
    internal = internal_devices()
    devices = internal | {mount.device_id for mount in mounts}
    is_known = known is not None and devices <= known.device_ids
    uses = known if known is not None and is_known else read_host_uses(devices, proc)
    looker = _Looker(frozenset(members), uses, charges, proc, since_ns=uses.time_ns if is_known else None)
    segments = read_sysv_shm(pid, proc)
    found = [
        *looker.files(pid, mounts),
        *looker.nameless(mounts, internal),
        *looker.segments(pid, segments or ()),
    ]
    found.sort(key=lambda each: (-(each.allocated_bytes or 0), each.name))
    return ShmObjects(tuple(found), tuple(looker.cut), segments is not None, tuple(sorted(uses.unseen)))


class _Looker:
    """Joins what was found by name with who uses it."""

    def __init__(
        self, members: frozenset[int], uses: FileUses, charges: Charges | None, proc: Path, since_ns: int | None
    ) -> None:
        self._members = members
        self._uses = uses.by_key
        self._since_ns = since_ns
        self._all_seen = not uses.unseen & members
        self._charges = charges
        self._proc = proc
        self._comms: dict[int, str | None] = {}
        self._named: set[FileKey] = set()
        self.cut: list[str] = []

    def files(self, pid: int, mounts: Iterable[TmpfsMount]) -> Iterator[ShmObject]:
        """Files with a name, each once, though hard links and mounts may show it twice."""
        for mount in mounts:
            if mount.covered:
                continue
            for path in (mount.path, *(mount.also_at if mount.root != "/" or mount.is_file else ())):
                files = tuple(walk(pid, path, mount.device_id, self._proc))
                if len(files) >= MOST_FILES:
                    self.cut.append(path)
                yield from self._new(pid, files, mount)

    def _new(self, pid: int, files: Iterable[FoundFile], mount: TmpfsMount) -> Iterator[ShmObject]:
        for file in sorted(files, key=lambda file: -file.allocated_bytes):  # charges are asked for the first only
            key = FileKey(file.device_id, file.inode_id)
            if key not in self._named:
                self._named.add(key)
                yield self._file(file, mount, self._uses.get(key), self._paying(pid, file))

    def nameless(self, mounts: Iterable[TmpfsMount], internal: Collection[int]) -> Iterator[ShmObject]:
        """Memfds, anonymous memory, and files that only their users keep: of processes of the container."""
        tmpfs = {mount.device_id for mount in mounts}
        for key, use in self._uses.items():
            if key in self._named or not self._members & (use.mappers | use.holders):
                continue
            kind = _internal_kind(use.name) if key.device_id in internal else ObjectKind.DELETED
            if kind is not None and (key.device_id in internal or key.device_id in tmpfs):
                yield self._nameless(kind, use)

    def segments(self, pid: int, segments: Iterable[SysvSegment]) -> Iterator[ShmObject]:
        """The SysV segments of the container's IPC namespace; of the host's only those that it attaches."""
        namespace = namespace_id(pid, "ipc", self._proc)
        is_host = namespace in (namespace_id("self", "ipc", self._proc), namespace_id(1, "ipc", self._proc))
        by_id = {
            key.inode_id: use for key, use in self._uses.items() if key.ipc_namespace_id in (namespace, 0)
        }
        for segment in segments:
            use = by_id.get(segment.shm_id)
            if not is_host or (use and self._members & use.mappers) or segment.creator_pid in self._members:
                yield self._segment(segment, use, is_host)

    def _paying(self, pid: int, file: FoundFile) -> tuple[str, ...] | None:
        root = self._proc / str(pid) / "root"
        opener = partial(open_regular_in_root, root, file.path, file.inode_id)
        return self._charges.of([opener]) if self._charges and file.allocated_bytes else None

    def _paying_for(self, use: FileUse | None) -> tuple[str, ...] | None:
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
        openers = [partial(os.open, path, flags) for path in use.paths[:3]] if use else []
        return self._charges.of(openers) if self._charges else None

    def _file(
        self, file: FoundFile, mount: TmpfsMount, use: FileUse | None, charged_to: tuple[str, ...] | None
    ) -> ShmObject:
        kind = ObjectKind.POSIX if file.path.startswith(f"{SHM_PATH}/") else ObjectKind.FILE
        return ShmObject(
            kind=kind,
            name=file.path,
            device_id=file.device_id,
            inode_id=file.inode_id,
            size_bytes=file.size_bytes,
            allocated_bytes=file.allocated_bytes,
            creator=Creator(file.uid),
            changed_ns=file.changed_ns,
            charged_to=charged_to,
            mappers=self._users(use.mappers if use else ()),
            holders=self._users(use.holders if use else ()),
            attached=None,
            orphan=self._is_orphan(kind, use, file.changed_ns),
            shared=mount.volume.kind is VolumeKind.HOST,
        )

    def _nameless(self, kind: ObjectKind, use: FileUse) -> ShmObject:
        name = use.name.removeprefix("/") if kind is ObjectKind.MEMFD else use.name
        return ShmObject(
            kind=kind,
            name=name,
            device_id=use.key.device_id,
            inode_id=use.key.inode_id,
            size_bytes=use.size_bytes,
            allocated_bytes=use.allocated_bytes,
            creator=Creator(use.uid),
            changed_ns=use.changed_ns,
            charged_to=self._paying_for(use),
            mappers=self._users(use.mappers),
            holders=self._users(use.holders),
            attached=None,
            orphan=False,
            shared=False,
        )

    def _segment(self, segment: SysvSegment, use: FileUse | None, is_host: bool) -> ShmObject:
        creator = segment.creator_pid
        return ShmObject(
            kind=ObjectKind.SYSV,
            name=f"{segment.key:#010x}",
            device_id=use.key.device_id if use else None,
            inode_id=segment.shm_id,
            size_bytes=segment.size_bytes,
            allocated_bytes=segment.allocated_bytes,
            creator=Creator(segment.uid, creator, None if creator is None else self._comm(creator)),
            changed_ns=segment.changed_ns,
            charged_to=self._paying_for(use),
            mappers=self._users(use.mappers if use else ()),
            holders=(),
            attached=segment.attached,
            orphan=segment.attached == 0,
            shared=is_host,
        )

    def _is_orphan(self, kind: ObjectKind, use: FileUse | None, changed_ns: int) -> bool | None:
        """A file elsewhere than in /dev/shm is no orphan: files are meant to stay when nobody has them open.

        Of one that is younger than the look at its users nobody knows.
        """
        if use is not None or kind is not ObjectKind.POSIX:
            return False
        is_younger = self._since_ns is not None and changed_ns >= self._since_ns
        return True if self._all_seen and not is_younger else None

    def _users(self, pids: Iterable[int]) -> tuple[User, ...]:
        return tuple(User(pid, self._comm(pid), pid in self._members) for pid in sorted(pids))

    def _comm(self, pid: int) -> str | None:
        if pid not in self._comms:
            self._comms[pid] = read_comm(pid, self._proc)
        return self._comms[pid]


def _internal_kind(name: str) -> ObjectKind | None:
    """What lies on the kernel's own mount; None for a SysV segment (told by its namespace) and graphics buffers."""
    return next((kind for prefix, kind in _INTERNAL if name.startswith(prefix)), None)
