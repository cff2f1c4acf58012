"""The knobs of a memory cgroup that limit or protect it, under one name each for cgroup v1 and v2.

Sources: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rtdebug.errors import HostUnable
from rtdebug.host.cgroup import MemoryHierarchy, Version, ancestors
from rtdebug.host.memcg import MemoryState, parse_limit, read_memory
from rtdebug.host.text import parse_int, read_text

FILES: Mapping[Version, Mapping[str, str]] = {
    1: {
        "low": "memory.soft_limit_in_bytes",
        "max": "memory.limit_in_bytes",
        "memsw": "memory.memsw.limit_in_bytes",
    },
    2: {
        "min": "memory.min",
        "low": "memory.low",
        "high": "memory.high",
        "max": "memory.max",
        "swap": "memory.swap.max",
    },
}
"""Which file is which knob. v1's soft limit is the nearest it has to `low`: above it, memory is taken first."""

UNLIMITED_TEXT: Mapping[Version, str] = {1: "-1", 2: "max"}


@dataclass(frozen=True, slots=True)
class Knob:
    """One knob as it stands."""

    file: str
    value_bytes: int | None
    """None: no limit (`max`); for `low` and `min` 0 is no protection."""


@dataclass(frozen=True, slots=True)
class Level:
    """A cgroup with its knobs and figures."""

    cgroup: str
    path: Path
    knobs: Mapping[str, Knob]
    """By the names of FILES; those this kernel or cgroup does not have are absent."""
    memory: MemoryState
    use_hierarchy: bool | None = None
    """v1: whether its limit counts for those below it too; None on v2."""

    @property
    def version(self) -> Version:
        """Of its hierarchy."""
        return self.memory.version

    def value(self, name: str) -> int | None:
        """The knob's bytes; None if it has no limit or there is no such knob."""
        knob = self.knobs.get(name)
        return knob.value_bytes if knob else None

    def has(self, name: str) -> bool:
        """Whether there is such a knob here."""
        return name in self.knobs


def read_level(hierarchy: MemoryHierarchy, cgroup: str) -> Level | None:
    """One cgroup; None if it has vanished or has no memory controller."""
    path = hierarchy.path(cgroup)
    memory = read_memory(path)
    if memory is None:
        return None
    hierarchical = parse_int(read_text(path / "memory.use_hierarchy"))
    return Level(
        cgroup,
        path,
        _read_knobs(path, memory.version),
        memory,
        None if hierarchical is None else hierarchical != 0,
    )


def read_chain(hierarchy: MemoryHierarchy, cgroup: str) -> tuple[Level, ...]:
    """The cgroup and all above it that are in sight, the root last."""
    levels = []
    for each in ancestors(cgroup):
        try:
            level = read_level(hierarchy, each)
        except HostUnable:  # above what is mounted here
            break
        if level is not None:
            levels.append(level)
    return tuple(levels)


def value_text(value_bytes: int | None, version: Version) -> str:
    """What is written into a knob's file."""
    return UNLIMITED_TEXT[version] if value_bytes is None else str(value_bytes)


def _read_knobs(path: Path, version: Version) -> dict[str, Knob]:
    texts = {name: (file, read_text(path / file)) for name, file in FILES[version].items()}
    return {
        name: Knob(file, parse_limit(text)) for name, (file, text) in texts.items() if text is not None
    }
