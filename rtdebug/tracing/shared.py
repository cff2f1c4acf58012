"""Shared memory as the events tell it: who created it, how large it became, whether it was unlinked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from rtdebug.tracing.line import EventLine, Value
from rtdebug.tracing.totals import int_of, keep_largest

_KEPT = 1024

Kind = Literal["posix", "sysv", "memfd"]
CREATED_BY: Mapping[Kind, str] = {"posix": "shm_open", "sysv": "shmget", "memfd": "memfd_create"}
"""Which event tells of a creation."""
_UNLINKED_BY: Mapping[Kind, str] = {"posix": "shm_unlink", "sysv": "shmctl"}

Creation = Literal["seen", "not_seen", "not_traced"]


class SharedKey(NamedTuple):
    """Which piece of shared memory. `name`: the path, the id of a SysV segment as text."""

    kind: Kind
    container_id: str | None
    name: str


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """One piece of shared memory that was created in the trace, or that was found linked at its end."""

    key: SharedKey
    container_name: str | None
    length_bytes: int | None
    pid: int | None
    """Who created it; None: its creation was not seen."""
    comm: str | None
    linked: bool | None
    """Does its name (its id) still exist; None: a memfd, which has none, or nobody looked."""
    creation: Creation = "seen"
    """`not_seen`: all creations were traced, but it was there before, or somebody outside the trace made it.
    `not_traced`: this kind of creation, or not everyone's, was among what was asked for."""


class SharedObjects:
    """Follows what is created, resized and unlinked."""

    def __init__(self, shown: frozenset[str], everyone: bool) -> None:
        """`shown`: the events that are traced. `everyone`: of all processes, not of chosen ones."""
        self.created: dict[Kind, int] = {}
        self.dropped = 0
        self._shown = shown
        self._everyone = everyone
        self._objects: dict[SharedKey, SharedMemory] = {}
        self._files: dict[tuple[Value, Value], SharedKey] = {}
        self._followers = {
            "shm_open": self._shm_open,
            "shm_unlink": self._shm_unlink,
            "ftruncate": self._ftruncate,
            "memfd_create": self._memfd_create,
            "shmget": self._shmget,
            "shmctl": self._shmctl,
        }

    def apply(self, line: EventLine) -> None:
        """Take in a line of a call that succeeded."""
        if follower := self._followers.get(line.event):
            follower(line)

    def finish(
        self,
        still_linked: Mapping[SharedKey, int | None] | None,
        last_sizes: Mapping[SharedKey, int | None],
        names: Mapping[str, str],
    ) -> Iterable[SharedMemory]:
        """All that was created or is there at the end; see SummaryBuilder.finish. `names`: of containers, by id."""
        for key, length in last_sizes.items():
            if length is not None:
                self._change(key, length_bytes=length)
        if still_linked is None:
            return [self._as_told(found) for found in self._objects.values()]
        objects = {
            key: found if found.linked is None else replace(found, linked=key in still_linked)
            for key, found in self._objects.items()
        }
        for key, length in still_linked.items():
            before = objects.get(key) or self._found(key, names)
            objects[key] = replace(before, length_bytes=before.length_bytes if length is None else length)
        return objects.values()

    def _as_told(self, found: SharedMemory) -> SharedMemory:
        """Nobody looked whether it is still linked: the events know only if they tell of everyone's unlinking."""
        event = _UNLINKED_BY.get(found.key.kind)
        return replace(found, linked=None) if found.linked and not self._traces(event) else found

    def _found(self, key: SharedKey, names: Mapping[str, str]) -> SharedMemory:
        creation: Creation = "not_seen" if self._traces(CREATED_BY.get(key.kind)) else "not_traced"
        name = names.get(key.container_id) if key.container_id else None
        return SharedMemory(key, name, None, None, None, True, creation)

    def _traces(self, event: str | None) -> bool:
        return self._everyone and event in self._shown

    def _create(self, kind: Kind, name: str, line: EventLine, linked: bool | None) -> None:
        if len(self._objects) >= _KEPT:
            self._drop()
        self.created[kind] = self.created.get(kind, 0) + 1
        key = SharedKey(kind, line.container_id, name)
        # A SysV segment has its size from the start. A new file is empty, which says nothing of its end.
        length = int_of(line.fields.get("length_bytes")) if kind == "sysv" else None
        self._objects[key] = SharedMemory(key, line.container_name, length, line.pid, line.comm, linked)

    def _drop(self) -> None:
        """Make room: first what is gone, then, in a storm of leaks, the smallest."""
        self.dropped += keep_largest(self._objects, _KEPT // 2, lambda _, found: shared_rank(found))
        self._files = {file: key for file, key in self._files.items() if key in self._objects}

    def _change(self, key: SharedKey, **change: int | bool | None) -> None:
        if found := self._objects.get(key):
            self._objects[key] = replace(found, **change)  # type: ignore[arg-type]

    def _shm_open(self, line: EventLine) -> None:
        path = line.fields.get("path")
        if line.fields.get("created") and isinstance(path, str):
            self._create("posix", path, line, linked=True)
            self._files[_file(line)] = SharedKey("posix", line.container_id, path)

    def _shm_unlink(self, line: EventLine) -> None:
        """The path is as the process wrote it, relative perhaps: the inode is surer."""
        path = line.fields.get("path")
        by_path = SharedKey("posix", line.container_id, str(path))
        self._change(self._files.get(_file(line), by_path), linked=False)

    def _ftruncate(self, line: EventLine) -> None:
        length = int_of(line.fields.get("length_bytes"))
        if line.fields.get("memfd"):
            self._change(SharedKey("memfd", line.container_id, _memfd_name(line)), length_bytes=length)
        else:
            path = line.fields.get("path")
            self._change(SharedKey("posix", line.container_id, str(path)), length_bytes=length)

    def _memfd_create(self, line: EventLine) -> None:
        self._create("memfd", _memfd_name(line), line, linked=None)

    def _shmget(self, line: EventLine) -> None:
        """The kernel does not say whether shmget made the segment: IPC_CREAT for an id not seen yet did."""
        fields = line.fields
        shm_id, flags = fields.get("shm_id"), fields.get("flags")
        asked = fields.get("key") == 0 or (isinstance(flags, list | str) and "IPC_CREAT" in flags)
        known = self._objects.get(SharedKey("sysv", line.container_id, str(shm_id)))
        if shm_id is not None and asked and not (known and known.linked):
            self._create("sysv", str(shm_id), line, linked=True)

    def _shmctl(self, line: EventLine) -> None:
        if line.fields.get("command") == "IPC_RMID":
            name = str(line.fields.get("shm_id"))
            self._change(SharedKey("sysv", line.container_id, name), linked=False)


def shared_rank(found: SharedMemory) -> tuple[bool, int, str, str]:
    """What is still linked first, then by size; equal ones in one order, whatever order they came in."""
    return bool(found.linked), found.length_bytes or 0, found.key.kind, found.key.name


def _file(line: EventLine) -> tuple[Value, Value]:
    """Device and inode; where those are not known, the path in its container."""
    fields = line.fields
    inode_id = fields.get("inode_id")
    return (fields.get("device_id"), inode_id) if inode_id is not None else (line.container_id, fields.get("path"))


def _memfd_name(line: EventLine) -> str:
    """A memfd's name need not be its own: the inode tells two of them apart."""
    fields = line.fields
    name, inode_id = fields.get("path") or fields.get("name") or "", fields.get("inode_id")
    return f"{name} (inode {inode_id})" if inode_id is not None else f"{name} (pid {line.pid})"
