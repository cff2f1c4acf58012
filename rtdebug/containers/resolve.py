"""From what the user calls it to the container: every form of target that rtdebug takes."""

from __future__ import annotations

import difflib
import os
import posixpath
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from rtdebug.containers.cgroup_path import container_id_of_mounts
from rtdebug.containers.inventory import NAMING_RUNTIMES, Inventory, list_containers
from rtdebug.containers.model import Container
from rtdebug.containers.roots import HostRoots
from rtdebug.errors import AmbiguousTarget, HostUnable, NotRunning, TargetError, UsageProblem
from rtdebug.host.cgroup import ancestors, memory_cgroup_of, pids_of
from rtdebug.host.mounts import read_mountinfo
from rtdebug.host.process import is_running, namespace_id, read_comm, read_ids
from rtdebug.host.text import parse_int

__all__ = ["FORMS", "Inventory", "called", "find_container", "list_containers", "note_on", "resolve"]

FORMS = (
    "an id or the beginning of one, a name, pod/NAMESPACE/NAME, runc:ID, docker:NAME, containerd:NAME, "
    "podman:NAME, cri-o:NAME, cgroup:PATH or pid:N"
)

_RUNTIMES = ("docker", "containerd", "podman", "cri-o", "lxc")
_OTHER_ROOT = "a container of a runc or crun that keeps its state elsewhere is found with --runc-root DIR"
_MOST_CANDIDATES = 12
"""So many are listed: an error message is to be read."""


class _UnknownError(TargetError):
    """None of those who were asked knows it."""


def find_container(
    target: str, runc_roots: Iterable[Path] = (), host: HostRoots | None = None
) -> tuple[Container, tuple[str, ...]]:
    """The container that `target` names, and notes for the user.

    Asks only the runtimes that this form of target can mean. Raises as resolve() and list_containers() do.
    """
    ask = _runtimes_to_ask(target)
    inventory = list_containers(runc_roots, host, ask=ask)
    try:
        container = resolve(target, inventory)
    except _UnknownError as error:
        if ask == NAMING_RUNTIMES:
            raise _with_notes(error, inventory.notes) from None
        inventory = list_containers(runc_roots, host)  # all of them, for the error names what is near
        try:
            container = resolve(target, inventory)
        except _UnknownError as error:
            raise _with_notes(error, inventory.notes) from None
    note = note_on(container)
    return container, (*inventory.notes, *([note] if note else []))


def resolve(target: str, inventory: Inventory) -> Container:
    """The one container, cgroup or process that `target` names (see FORMS).

    Raises TargetError: no such one (with near misses), several (with all of them), stopped, or just exited;
    UsageProblem for what cannot be a target.
    """
    form, separator, rest = target.partition(":")
    if form == "pid" and separator:
        return _process(rest, inventory)
    if form == "cgroup" and separator:
        return _cgroup(rest, inventory)
    if target.startswith("pod/"):
        return _pod(target, inventory)
    if form == "runc" and separator:
        known = [container for container in inventory.containers if container.runc_root is not None]
        return _named(target, rest, known, inventory)
    if form in _RUNTIMES and separator:
        known = [container for container in inventory.containers if container.runtime == form]
        return _named(target, rest, known, inventory)
    return _named(target, target, inventory.containers, inventory)


def called(target: str, inventory: Inventory) -> tuple[Container, ...]:
    """All containers that `target` names, whether they run or not; stopped ones as far as their runtime tells.

    Of a pod all of its containers, the pause container aside. Nothing is raised for a name that nobody knows.
    """
    form, separator, rest = target.partition(":")
    if target.startswith("pod/"):
        return tuple(
            container
            for container in inventory.containers
            if container.pod and f"pod/{container.namespace or ''}/{container.pod}" == target and not container.sandbox
        )
    if not separator or form not in (*_RUNTIMES, "runc"):
        return tuple(_called(target, inventory.containers))
    known = [each for each in inventory.containers if form in (each.runtime, "runc" if each.runc_root else None)]
    return tuple(_called(rest, known)) if rest else ()


def note_on(container: Container) -> str | None:
    """What the user should know when the target is no container of a runtime; None for a container."""
    if container.runtime is not None:
        return None
    if container.id.startswith("pid:"):
        where = f"; its memory is counted in cgroup {container.cgroup}" if container.cgroup else ""
        return f"process {container.pid} ({container.name!r}) is not in a container{where}"
    if container.id == container.cgroup:
        return f"cgroup {container.cgroup!r} is not a container's: all of its processes are meant"
    return None


def _runtimes_to_ask(target: str) -> frozenset[str]:
    form = target.partition(":")[0]
    if form in ("cri-o", "lxc"):
        return frozenset()
    return frozenset({form}) if form in NAMING_RUNTIMES else NAMING_RUNTIMES


def _named(target: str, wanted: str, known: Sequence[Container], inventory: Inventory) -> Container:
    """An exact id wins over an exact name, and that over the beginning of an id; running over stopped."""
    if not wanted:
        raise UsageProblem(f"target {target!r} names nothing", f"a target is {FORMS}")
    if found := _called(wanted, known):
        return _the_one(target, found, inventory)
    if elsewhere := _called(wanted, inventory.containers):
        raise _UnknownError(f"no container {target!r}", _with_their_runtimes(elsewhere, wanted))
    raise _UnknownError(f"no container {target!r}{_unseen()}", _near_misses(target, wanted, inventory))


def _unseen() -> str:
    """Runtimes keep what they know from other users: without root hardly any container is seen."""
    return "" if os.geteuid() == 0 else " that can be seen without root"


def _with_notes(error: TargetError, notes: Sequence[str]) -> TargetError:
    """Whom we could not ask may know it."""
    if not notes:
        return error
    return _UnknownError(f"{error.message}, as far as could be seen", "\n".join((*notes[:3], error.hint)))


def _with_their_runtimes(containers: Sequence[Container], wanted: str) -> str:
    """Somebody else's containers of that name: as a target that says whose."""
    ids = Counter(container.id for container in containers)
    targets = []
    for container in containers:
        form = container.runtime if container.runtime in _RUNTIMES else "runc" if container.runc_root else None
        name = repr(wanted)[1:-1] if container.name == wanted else _exact_target(container, ids)
        targets.append(f"{form}:{name}" if form and not name.startswith("pid:") else name)
    return "do you mean " + " or ".join(dict.fromkeys(targets[:_MOST_CANDIDATES])) + "?"


def _called(wanted: str, known: Sequence[Container]) -> list[Container]:
    return (
        [container for container in known if container.id == wanted]
        or [container for container in known if container.name == wanted]
        or [container for container in known if container.id.startswith(wanted)]
    )


def _the_one(target: str, found: Sequence[Container], inventory: Inventory) -> Container:
    running = [container for container in found if container.is_running]
    if len(running) > 1:
        raise AmbiguousTarget(
            f"{target!r} is ambiguous: {len(running)} running containers",
            f"say which one:\n{_listed(running)}",
        )
    if not running:
        raise _not_running(target, found[0])
    return _still_there(target, running[0], inventory)


def _not_running(target: str, container: Container) -> TargetError:
    if container.status == "stopped":
        return NotRunning(
            f"container {target!r} is stopped",
            "`rtdebug diagnose` says why it died, `rtdebug trace --follow` waits for it, `rtdebug ps` lists what runs",
        )
    return TargetError(
        f"container {target!r} is {container.status!r}, but this host shows no process of it",
        "run rtdebug on the host that the container runs on",
    )


def _still_there(target: str, container: Container, inventory: Inventory) -> Container:
    if container.pid is None or not is_running(container.pid, inventory.host.proc):
        raise NotRunning(f"container {target!r} has just exited", "start it again; `rtdebug ps` lists what runs now")
    return container


def _pod(target: str, inventory: Inventory) -> Container:
    """The pod's only container, its pause container aside."""
    parts = target.split("/")
    if len(parts) != 3 or not all(parts):
        raise UsageProblem(f"{target!r} is not the name of a pod", "give pod/NAMESPACE/NAME")
    _, namespace, name = parts
    pods = [container for container in inventory.containers if container.pod is not None]
    in_pod = [container for container in pods if container.pod == name and (container.namespace or "") == namespace]
    if not in_pod:
        raise TargetError(f"no pod {target!r} on this host", _near_pods(target, pods))
    applications = [container for container in in_pod if not container.sandbox]
    return _the_one(target, applications or in_pod, inventory)


def _cgroup(path: str, inventory: Inventory) -> Container:
    hierarchy = inventory.hierarchy
    if path.startswith("/sys/fs/cgroup/") and not Path(path).is_relative_to(hierarchy.mount_point):
        raise TargetError(
            f"{path!r} is not in the memory controller's hierarchy",
            f"that is mounted at {hierarchy.mount_point}; give cgroup:PATH below it",
        )
    if ".." in path.split("/") or "\0" in path:
        raise UsageProblem(f"{path!r} is not the path of a cgroup", "give it without '..'")
    inside = hierarchy.cgroup(Path(path)) if path.startswith("/") else None
    cgroup = inside or posixpath.normpath("/" + path.strip("/"))
    try:
        folder = hierarchy.path(cgroup)
    except HostUnable as error:
        raise TargetError(error.message, error.hint) from None
    if not folder.is_dir():
        raise TargetError(f"no memory cgroup {cgroup!r}", _near_cgroups(cgroup, folder.parent, inventory))
    owner = next((container for container in inventory.containers if container.cgroup == cgroup), None)
    return owner or Container(
        id=cgroup,
        name=None,
        runtime=None,
        pid=None,
        status="running" if pids_of(folder) else "stopped",
        cgroup=cgroup,
    )


def _process(text: str, inventory: Inventory) -> Container:
    given = parse_int(text) if text.isascii() and text.isdecimal() else None
    if not given:
        raise UsageProblem(f"{text!r} is not a process id", "give pid:N with the pid on this host")
    proc = inventory.host.proc
    ids = read_ids(given, proc)
    pid = ids.tgid if ids else given  # a thread stands for its process
    if ids is None or not is_running(pid, proc):
        raise TargetError(f"no process {given}", "it may have exited; pids are the host's, not the container's")
    cgroup = memory_cgroup_of(pid, proc, inventory.hierarchy)
    return _container_of(pid, cgroup, inventory) or Container(
        id=f"pid:{pid}",
        name=read_comm(pid, proc),
        runtime=None,
        pid=pid,
        status="running",
        cgroup=cgroup,
    )


def _container_of(pid: int, cgroup: str | None, inventory: Inventory) -> Container | None:
    """The innermost container around the process: by its cgroup, else by what its mounts give away."""
    running = [container for container in inventory.containers if container.is_running]
    for ancestor in ancestors(cgroup or "/"):
        here = [container for container in running if container.cgroup == ancestor != "/"]
        if here:
            return _in_pid_namespace_of(pid, here, inventory.host.proc) or here[0]
    by_mounts = container_id_of_mounts(read_mountinfo(pid, inventory.host.proc))
    return next((container for container in running if container.id == by_mounts), None)


def _in_pid_namespace_of(pid: int, containers: Sequence[Container], proc: Path) -> Container | None:
    """Of several containers in one cgroup, the one whose init shares its pid namespace with `pid`."""
    own = namespace_id(pid, "pid", proc)
    return next(
        (
            container
            for container in containers
            if container.pid is not None and own is not None and namespace_id(container.pid, "pid", proc) == own
        ),
        None,
    )


def _listed(containers: Sequence[Container]) -> str:
    """Candidates, one a line, each with a target that means it alone; repr() makes the texts safe."""
    ids = Counter(container.id for container in containers)
    lines = [f"  {_exact_target(container, ids)}  {_described(container)}" for container in containers]
    more = len(lines) - _MOST_CANDIDATES
    return "\n".join(lines[:_MOST_CANDIDATES] + ([f"  and {more} more: rtdebug ps"] if more > 0 else []))


def _exact_target(container: Container, ids: Counter[str]) -> str:
    if ids[container.id] > 1 and container.pid is not None:
        return f"pid:{container.pid}"
    return repr(container.id[:12] if len(container.id) == 64 else container.id)[1:-1]


def _described(container: Container) -> str:
    pod = f"pod/{container.namespace}/{container.pod}" if container.pod else None
    parts = (container.runtime, container.name, pod, container.status)
    return " ".join(repr(part)[1:-1] for part in parts if part)


def _near_misses(target: str, wanted: str, inventory: Inventory) -> str:
    names = {
        text: container
        for container in inventory.containers
        for text in (container.name, container.id, container.id[:12])
        if text is not None
    }
    near = difflib.get_close_matches(wanted, names, n=4, cutoff=0.5)
    near += [text for text in names if wanted in text and text not in near][:4]
    containers = list(dict.fromkeys(names[text] for text in near))
    if containers:
        elsewhere = f"\n{_OTHER_ROOT}" if target.startswith("runc:") else ""
        return f"do you mean one of these?\n{_listed(containers)}{elsewhere}"
    if not any(container.is_running for container in inventory.containers):
        return "no container runs on this host that rtdebug knows of; see --runc-root, and `rtdebug doctor`"
    return f"`rtdebug ps` lists the running ones; a target is {FORMS}\n{_OTHER_ROOT}"


def _near_pods(target: str, pods: Iterable[Container]) -> str:
    names = {f"pod/{container.namespace}/{container.pod}" for container in pods}
    near = difflib.get_close_matches(target, names, n=4, cutoff=0.5)
    if near:
        return "do you mean " + " or ".join(repr(name) for name in near) + "?"
    return "`rtdebug ps` lists the pods of this host" if names else "no pod runs on this host"


def _near_cgroups(target: str, folder: Path, inventory: Inventory) -> str:
    try:
        siblings = [inventory.hierarchy.cgroup(path) for path in folder.iterdir() if path.is_dir()]
    except OSError:
        siblings = []
    near = difflib.get_close_matches(target, [path for path in siblings if path], n=4, cutoff=0.5)
    if near:
        return "do you mean " + " or ".join(repr(path) for path in near) + "?"
    return f"give a path below {inventory.hierarchy.mount_point}"
