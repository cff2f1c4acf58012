"""Sibling: the cgroups right below one whose limit was hit. One of them may hold what another is killed for."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from rtdebug.containers.model import Container
from rtdebug.errors import HostUnable
from rtdebug.host.cgroup import MemoryHierarchy, Version
from rtdebug.host.text import parse_int, read_text

_USAGE_FILE: dict[Version, str] = {1: "memory.usage_in_bytes", 2: "memory.current"}
_READ_AT_MOST = 1000

OwnerOf = Callable[[int, str], Container | None]
"""From a cgroup's kernfs id and path to its container."""


@dataclass(frozen=True, slots=True)
class Sibling:
    """A child of the limited cgroup."""

    cgroup: str
    usage_bytes: int | None
    """With all below it."""
    container_id: str | None = None
    """None: it is no container's own cgroup, or it is not known whose."""
    container_name: str | None = None


def read_siblings(hierarchy: MemoryHierarchy, parent: str, owner_of: OwnerOf) -> tuple[Sibling, ...] | None:
    """Read the usage of each cgroup right below `parent`; None when that is gone or out of sight."""
    try:
        folder = hierarchy.path(parent)
        with os.scandir(folder) as entries:
            children = (entry for entry in entries if entry.is_dir(follow_symlinks=False))
            found = [(entry.name, entry.inode()) for entry in islice(children, _READ_AT_MOST)]
    except (HostUnable, OSError, ValueError):
        return None
    file = _USAGE_FILE[hierarchy.version]
    return tuple(
        _sibling(f"{parent.rstrip('/')}/{name}", inode, folder / name / file, owner_of) for name, inode in found
    )


def _sibling(cgroup: str, memcg_id: int, file: Path, owner_of: OwnerOf) -> Sibling:
    owner = owner_of(memcg_id, cgroup)
    own = owner if owner is not None and owner.cgroup == cgroup else None
    return Sibling(
        cgroup=cgroup,
        usage_bytes=parse_int(read_text(file)),
        container_id=own.id if own else None,
        container_name=own.name if own else None,
    )
