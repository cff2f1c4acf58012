"""Owners: whose cgroup it is, for a trace of the whole host."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from rtdebug.containers.cgroup_path import parse_cgroup_path
from rtdebug.containers.model import Container
from rtdebug.host.cgroup import ancestors

OwnerOf = Callable[[str], Container | None]
"""From a cgroup's path below the memory hierarchy's root to the container it belongs to."""


def owners(containers: Iterable[Container]) -> OwnerOf:
    """Return who knows the owner of every cgroup: of these containers, else as the path says.

    A container that has no cgroup any more, for it is stopped, is known by the id in the path.
    """
    every = tuple(containers)
    known = {container.cgroup: container for container in every if container.cgroup not in (None, "/")}
    stopped = {container.id: container for container in every if container.cgroup is None}

    def owner(cgroup: str) -> Container | None:
        running = next((known[above] for above in ancestors(cgroup) if above in known), None)
        return running or _named(owner_by_path(cgroup), stopped)

    return owner


def _named(found: Container | None, stopped: Mapping[str, Container]) -> Container | None:
    if found is None or found.id not in stopped:
        return found
    return replace(stopped[found.id], cgroup=found.cgroup, status=found.status)


def owner_by_path(cgroup: str) -> Container | None:
    """Return what a cgroup's path says of its container: id and runtime, no name."""
    found = parse_cgroup_path(cgroup)
    identity = found.container_id or found.lxc_name
    if found.kind not in ("container", "lxc") or identity is None:
        return None
    return Container(
        id=identity,
        name=found.lxc_name,
        runtime=found.runtime,
        pid=None,
        status="running",
        cgroup=found.container_cgroup or cgroup,
    )


def owners_when_asked(find: Callable[[], Iterable[Container]]) -> OwnerOf:
    """Return owners(find()), found at the first question."""
    known: list[OwnerOf] = []

    def owner(cgroup: str) -> Container | None:
        if not known:
            known.append(owners(find()))
        return known[0](cgroup)

    return owner
