"""Who pays for an object: the memory cgroups that its pages were charged to."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from rtdebug.host.cgroup import MemoryHierarchy, cgroup_id, child_cgroups
from rtdebug.host.page_owner import PageOwners

Opener = Callable[[], int]
"""Opens the object for reading; may raise OSError."""

_MOST_OBJECTS = 2_000


class Charges:
    """Asks the kernel for up to 2,000 objects; close() it."""

    def __init__(self, hierarchy: MemoryHierarchy | None, proc: Path = Path("/proc")) -> None:
        self._hierarchy = hierarchy
        self._owners = PageOwners(proc)
        self._left = _MOST_OBJECTS
        self._cgroups: dict[int, str] | None = None

    def __enter__(self) -> Charges:
        return self

    def __exit__(self, *_: object) -> None:
        self._owners.close()

    def of(self, openers: Iterable[Opener]) -> tuple[str, ...] | None:
        """The cgroups that pay, by the first of the openers that works; None: not known."""
        if not self._owners.available or self._hierarchy is None:
            return None
        for opener in openers:
            with suppress(OSError):
                return self._of(opener())
        return None

    def _of(self, fd: int) -> tuple[str, ...] | None:
        try:
            if self._left <= 0:
                return None
            self._left -= 1
            ids = self._owners.cgroup_ids(fd)
        finally:
            os.close(fd)
        known = self._known()
        found = tuple(sorted(known[each] for each in ids if each in known))
        return found or None

    def _known(self) -> dict[int, str]:
        """Every memory cgroup by its id, looked up once."""
        if self._cgroups is None:
            self._cgroups = {}
            assert self._hierarchy is not None
            for folder in child_cgroups(self._hierarchy.mount_point):
                with suppress(OSError):
                    self._cgroups[cgroup_id(folder)] = self._hierarchy.cgroup(folder) or "/"
        return self._cgroups
