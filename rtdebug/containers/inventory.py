"""All containers of this host: what runc says runs, what the runtimes call it, what only cgroups show."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from rtdebug.containers.cgroup_path import parse_cgroup_path
from rtdebug.containers.model import Container
from rtdebug.containers.roots import HostRoots
from rtdebug.containers.runtimes import containerd, docker, podman, runc
from rtdebug.containers.runtimes.ask import ask_all, is_installed
from rtdebug.containers.runtimes.daemons import Daemon, find_daemons
from rtdebug.errors import UsageProblem
from rtdebug.host.cgroup import (
    MemoryHierarchy,
    ancestors,
    child_cgroups,
    find_memory_hierarchy,
    is_within,
    memory_cgroup_of,
    pids_of,
)
from rtdebug.host.mounts import read_mountinfo
from rtdebug.host.process import read_stat
from rtdebug.host.text import is_dir

NAMING_RUNTIMES = frozenset({"docker", "containerd", "podman"})
"""Runtimes that have names of their own, and must be asked for them."""

Answer = tuple[Container, ...]


@dataclass(frozen=True, slots=True)
class Inventory:
    """Who is on this host, at one moment."""

    containers: tuple[Container, ...]
    """Running ones first; stopped ones as far as their runtime was asked and remembers them."""
    notes: tuple[str, ...]
    """Whom we could not ask, and why: the rest is complete without them."""
    hierarchy: MemoryHierarchy
    host: HostRoots = field(default_factory=HostRoots)


def list_containers(
    runc_roots: Iterable[Path] = (),
    host: HostRoots | None = None,
    ask: frozenset[str] = NAMING_RUNTIMES,
) -> Inventory:
    """Find the containers of every runtime, each once.

    `runc_roots` are further `--root` folders of runc or crun. `ask` says which daemons are asked for names
    and for stopped containers; all questions together take at most about two seconds. Raises HostUnable if
    there is no memory controller, UsageProblem if one of `runc_roots` does not exist.
    """
    host = host or HostRoots()
    hierarchy = find_memory_hierarchy(host.proc)
    daemons = find_daemons(host.proc)
    extra_roots = tuple(map(_existing, runc_roots))
    roots = runc.find_roots(extra_roots, daemons, host)
    lists: dict[str, Callable[[], Answer]] = {
        f"runc root {root.path}": partial(runc.list_root, root, host.proc) for root in roots
    }
    answers, notes = ask_all({**lists, **_naming_questions(daemons, host, ask)})

    started = [_with_cgroup(container, hierarchy, host.proc) for name in lists for container in answers.get(name, ())]
    live = [*started, *_seen_only_in_cgroups(hierarchy, started, host.proc)]
    named = [container for name, answer in answers.items() if name not in lists for container in answer]
    # Cut off again: conmon outlives its container, alone it proves nothing.
    hinted = merge(live, tuple(podman.named_by_conmon(daemons)))[: len(live)]
    merged = merge(hinted, named)
    running_first = sorted(merged, key=lambda container: not container.is_running)
    return Inventory(tuple(running_first), tuple(notes), hierarchy, host)


def merge(live: Sequence[Container], named: Sequence[Container]) -> tuple[Container, ...]:
    """One entry per container: `live` as runc or a cgroup shows it, completed by what its runtime calls it.

    What is only in `named` follows: stopped containers, mostly.
    """
    merged = list(live)
    only_named: list[Container] = []
    for other in named:
        matches = [index for index, container in enumerate(merged) if _is_same(container, other)]
        for index in matches:
            merged[index] = _completed(merged[index], other)
        if not matches:
            only_named.append(other)
    return (*merged, *_each_once(only_named))


def container_cgroup(pid: int, container_id: str, hierarchy: MemoryHierarchy, proc: Path) -> str | None:
    """The memory cgroup of the container whose init process is `pid`; None if it has exited.

    Init may have moved to a cgroup below the container's (systemd does: init.scope). The container's is the
    one named after it, else the one that it sees mounted as its /sys/fs/cgroup, else that of init.
    """
    cgroup = memory_cgroup_of(pid, proc, hierarchy)
    if cgroup is None:
        return None
    if container_id in cgroup:
        for ancestor in ancestors(cgroup):
            parsed = parse_cgroup_path(ancestor)
            if parsed.container_id == container_id and parsed.container_cgroup == ancestor:
                return ancestor
    return max(_mounted_inside(pid, cgroup, proc), key=len, default=cgroup)


def _existing(root: Path) -> Path:
    if not is_dir(root):
        raise UsageProblem(f"--runc-root {root}: there is no such folder", "give the --root of runc or crun")
    return root


def _naming_questions(
    daemons: Iterable[Daemon], host: HostRoots, ask: frozenset[str]
) -> dict[str, Callable[[], Answer]]:
    questions: dict[str, Callable[[], Answer]] = {}
    if "docker" in ask:
        for path in docker.find_sockets(daemons, host):
            questions[f"docker at {path}"] = partial(docker.list_containers, path)
    if "containerd" in ask and is_installed("ctr"):
        for address in containerd.find_addresses(daemons, host):
            questions[f"containerd at {address}"] = partial(containerd.list_containers, address)
    if "podman" in ask and is_installed("podman"):
        for store in podman.find_stores(daemons, host):
            questions[" ".join(("podman", *store))] = partial(podman.list_containers, store)
    return questions


def _with_cgroup(container: Container, hierarchy: MemoryHierarchy, proc: Path) -> Container:
    if container.pid is None:
        return container
    return replace(container, cgroup=container_cgroup(container.pid, container.id, hierarchy, proc))


def _mounted_inside(pid: int, cgroup: str, proc: Path) -> Iterator[str]:
    for mount in read_mountinfo(pid, proc):
        has_memory = mount.fstype == "cgroup2" or "memory" in mount.super_options
        is_its_own = mount.fstype.startswith("cgroup") and mount.mount_point.startswith("/sys/fs/cgroup")
        if has_memory and is_its_own and mount.root != "/" and is_within(cgroup, mount.root):
            yield mount.root


def _seen_only_in_cgroups(hierarchy: MemoryHierarchy, known: Sequence[Container], proc: Path) -> Iterator[Container]:
    """Containers that no runc root holds: LXC, other OCI runtimes, nested ones; all, if roots are unreadable.

    An id that is known already is left out: a container can give a cgroup of its own any name.
    """
    ids = {container.id for container in known}
    cgroups = {container.cgroup for container in known}
    for folder in child_cgroups(hierarchy.mount_point):
        cgroup = hierarchy.cgroup(folder)
        if cgroup is None or cgroup in cgroups:
            continue
        parsed = parse_cgroup_path(cgroup)
        container_id = parsed.container_id or parsed.lxc_name
        if parsed.container_cgroup != cgroup or container_id is None or container_id in ids:
            continue
        init = _oldest(pids_of(folder), proc)
        if init is not None:
            yield Container(
                id=container_id,
                name=parsed.lxc_name if parsed.container_id is None else None,
                runtime=parsed.runtime,
                pid=init,
                status="running",
                cgroup=cgroup,
            )


def _oldest(pids: Iterable[int], proc: Path) -> int | None:
    stats = [stat for pid in pids if (stat := read_stat(pid, proc)) is not None]
    return min(stats, key=lambda stat: (stat.start_ticks, stat.pid)).pid if stats else None


def _is_same(live: Container, named: Container) -> bool:
    """docker's and podman's ids are random; in containerd an id is unique in its namespace only."""
    if live.id != named.id:
        return False
    if named.runtime != "containerd" or live.runc_root is None:
        return True
    return live.runtime == "containerd" and Path(live.runc_root).name == named.namespace


def _completed(live: Container, named: Container) -> Container:
    """Names from the runtime, everything else as it really is."""
    return replace(
        live,
        name=named.name or live.name,
        runtime=named.runtime or live.runtime,
        namespace=named.namespace if named.pod else live.namespace or named.namespace,
        pod=named.pod or live.pod,
        image=named.image or live.image,
        sandbox=live.sandbox or named.sandbox,
    )


def _each_once(named: Sequence[Container]) -> Iterator[Container]:
    """Two answers about one container are one: podman may also serve docker's socket."""
    by_key: dict[tuple[str, str | None], Container] = {}
    for container in named:
        key = (container.id, container.namespace)
        by_key[key] = _completed(by_key[key], container) if key in by_key else container
    yield from by_key.values()
