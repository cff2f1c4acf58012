"""Which containers are sampled: all of the host's, or those of the targets; kept right while they come and go."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from rtdebug.containers.inventory import Inventory, list_containers
from rtdebug.containers.model import Container
from rtdebug.containers.owners import OwnerOf, owners
from rtdebug.containers.resolve import note_on, resolve
from rtdebug.errors import RtdebugError, TargetError
from rtdebug.host.cgroup import MemoryHierarchy, child_cgroups
from rtdebug.host.child import Child
from rtdebug.leaks.sample import is_process

_ROUTINE_S = 300.0
"""So often the runtimes are asked what runs; sooner when a cgroup appears that nobody has named."""
_SOONEST_S = 10.0

Answer = tuple[tuple[Container, ...], tuple[str, ...]]


def _place(container: Container) -> str:
    """What there is one container of."""
    return container.id if is_process(container) or container.cgroup is None else container.cgroup


def find_all(runc_roots: Sequence[Path], targets: Sequence[str]) -> Answer:
    """The running containers, or those that `targets` name, and notes. Call it in a child: it asks the runtimes.

    Raises TargetError or UsageProblem for a target as resolve() does.
    """
    inventory = list_containers(runc_roots)
    if not targets:
        return tuple(container for container in inventory.containers if container.is_running), inventory.notes
    found = tuple(dict.fromkeys(resolve(target, inventory) for target in targets))
    return found, (*inventory.notes, *(note for container in found if (note := note_on(container))))


def _find_those_there(runc_roots: Sequence[Path], targets: Sequence[str]) -> Answer:
    """As find_all(), without those targets that do not run now."""
    inventory = list_containers(runc_roots)
    if not targets:
        return find_all(runc_roots, targets)
    found = [container for target in targets if (container := _resolved(target, inventory)) is not None]
    return tuple(dict.fromkeys(found)), inventory.notes


def _resolved(target: str, inventory: Inventory) -> Container | None:
    try:
        return resolve(target, inventory)
    except TargetError:
        return None


class Selection:
    """The containers of now. `first` is what find_all() gave at the start."""

    def __init__(
        self,
        hierarchy: MemoryHierarchy,
        first: Sequence[Container],
        targets: Sequence[str],
        runc_roots: Sequence[Path],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._hierarchy = hierarchy
        self._find = partial(_find_those_there, tuple(runc_roots), tuple(targets))
        self._everyone = not targets
        self._now_s = now_s
        self._asking: Child[Answer] | None = None
        self._asked_s = now_s()
        self._wanted = False
        """Ask soon: something came or went that has no name yet."""
        self._seen: set[str] = set()
        self._owner_of: dict[str, Container | None] = {}
        self._named: tuple[Container, ...] = ()
        self._owner: OwnerOf
        self._take(first)

    def containers(self) -> list[Container]:
        """Those to sample now; their cgroups may have gone. Asks the runtimes again now and then, without waiting."""
        self._collect()
        found = {_place(container): container for container in self._named}
        news = False
        if self._everyone:
            cgroups = set(self._cgroups())
            for cgroup in cgroups:
                owner = self._owned(cgroup)
                if owner is not None and owner.cgroup is not None:
                    found.setdefault(owner.cgroup, owner)
            news = bool(self._seen) and not cgroups <= self._seen
            self._seen = cgroups
        else:
            news = any(not self._hierarchy.path(each.cgroup).exists() for each in self._named if each.cgroup)
        self._ask_if_due(news)
        return list(found.values())

    def close(self) -> None:
        """Wait for a question that is still open."""
        if self._asking is not None:
            self._collect(wait=True)

    def _take(self, containers: Sequence[Container]) -> None:
        self._named = tuple(containers)
        self._owner = owners(containers)
        self._owner_of.clear()

    def _cgroups(self) -> list[str]:
        cgroups = map(self._hierarchy.cgroup, child_cgroups(self._hierarchy.mount_point))
        return [cgroup for cgroup in cgroups if cgroup is not None and cgroup != "/"]

    def _owned(self, cgroup: str) -> Container | None:
        if cgroup not in self._owner_of:
            self._owner_of[cgroup] = self._owner(cgroup)
        return self._owner_of[cgroup]

    def _ask_if_due(self, news: bool) -> None:
        waited_s = self._now_s() - self._asked_s
        self._wanted = self._wanted or news
        if self._asking is None and waited_s >= (_SOONEST_S if self._wanted else _ROUTINE_S):
            self._asking = Child(self._find)
            self._asked_s = self._now_s()
            self._wanted = False

    def _collect(self, wait: bool = False) -> None:
        if self._asking is None or not (wait or self._asking.is_done()):
            return
        asking, self._asking = self._asking, None
        try:
            containers, _ = asking.result()
        except RtdebugError:
            return  # what we knew stays; it is asked again
        self._take(containers)
