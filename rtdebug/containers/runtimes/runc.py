"""runc and crun: what runs under each `--root`, and where those roots are.

Every other runtime here starts its containers with one of the two, so this is the primary source for pid,
status and bundle. Sources: runc-list(8), runc-state(8), crun(1), the OCI runtime specification ("State").
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rtdebug.containers.model import Container
from rtdebug.containers.roots import HostRoots
from rtdebug.containers.runtimes import ask
from rtdebug.containers.runtimes.daemons import Daemon, option
from rtdebug.containers.runtimes.labels import names_in
from rtdebug.containers.runtimes.records import (
    Record,
    as_int,
    as_object,
    as_pid,
    as_text,
    parse_object,
    parse_records,
)
from rtdebug.errors import RtdebugError
from rtdebug.host.process import read_stat
from rtdebug.host.text import file_mode, is_dir, read_regular

Tool = Literal["runc", "crun"]

_STATE_FILE: Mapping[Tool, str] = {"runc": "state.json", "crun": "status"}
_DOCKER_NAMESPACE = "moby"
_LIST_TIMEOUT_S = 1.0
"""Half of what all runtimes get together: time is left to read the files."""


@dataclass(frozen=True, slots=True)
class RuncRoot:
    """A `--root` of runc or crun."""

    path: Path
    runtime: str | None = None
    """Whose it is: docker, containerd; None: runc's or crun's own, or shared (podman, CRI-O)."""
    namespace: str | None = None
    """containerd's namespace."""


@dataclass(frozen=True, slots=True)
class StateFile:
    """What runc or crun keep of a container on disk."""

    pid: int | None
    start_ticks: int | None
    """Of the init process, as in /proc/PID/stat: tells it from a later process with its pid."""
    bundle: str | None
    annotations: Mapping[str, str]


def find_roots(extra: Iterable[Path], daemons: Iterable[Daemon], host: HostRoots) -> tuple[RuncRoot, ...]:
    """The roots of this host that exist, each once: the known ones, those of running daemons, `extra`."""
    found: dict[Path, RuncRoot] = {}
    for root in (*_known_roots(host.run), *_daemon_roots(daemons, host), *map(RuncRoot, extra)):
        path = root.path.resolve()
        if is_dir(path):
            found.setdefault(path, RuncRoot(path, root.runtime, root.namespace))
    return tuple(found.values())


def list_root(root: RuncRoot, proc: Path = Path("/proc")) -> tuple[Container, ...]:
    """The containers under one root, without their cgroups.

    Asked of `runc list` or `crun list`. Where the program is missing, hangs or leaves one out, the state
    files are read instead. Raises RtdebugError if we may not read the root.
    """
    containers: list[Container] = []
    for tool, file_name in _STATE_FILE.items():
        states = _state_files(root.path, file_name)
        if states:
            containers += _list_with(tool, root, states, proc)
    return tuple(containers)


def parse_list(text: str, tool: Tool, root: RuncRoot) -> tuple[Container, ...]:
    """Output of `runc list --format json` or crun's. Raises RtdebugError if it is something else."""
    return tuple(_container(record, tool, root) for record in parse_records(text, "id", f"{tool} list"))


def parse_runc_state(text: str) -> StateFile:
    """runc's own state.json (libcontainer/container_linux.go). Raises ValueError if it is not that."""
    state = parse_object(text)
    labels = as_object(state.get("config")).get("labels")
    labels = labels if isinstance(labels, list) else []
    pairs = dict(label.partition("=")[::2] for label in labels if isinstance(label, str))
    return StateFile(
        pid=as_int(state.get("init_process_pid")),
        start_ticks=as_int(state.get("init_process_start")),
        bundle=pairs.get("bundle"),
        annotations=pairs,
    )


def parse_crun_status(text: str) -> StateFile:
    """crun's own `status` file (src/libcrun/status.c). Raises ValueError if it is not that."""
    state = parse_object(text)
    return StateFile(
        pid=as_int(state.get("pid")),
        start_ticks=as_int(state.get("process-start-time")),
        bundle=as_text(state.get("bundle")),
        annotations={},
    )


def _known_roots(run: Path) -> Iterator[RuncRoot]:
    for base in (run, *run.glob("user/*")):
        yield from (RuncRoot(base / tool) for tool in _STATE_FILE)
        for path in base.glob("docker/runtime-*/*"):
            yield _namespaced(path)
        for path in base.glob("containerd/runc/*"):
            yield _namespaced(path)


def _daemon_roots(daemons: Iterable[Daemon], host: HostRoots) -> Iterator[RuncRoot]:
    for daemon in daemons:
        if not daemon.shares_mounts:
            continue
        if daemon.comm == "dockerd":
            for exec_root in option(daemon.argv, "--exec-root"):
                yield from map(_namespaced, Path(exec_root).glob("runtime-*/*"))
        elif daemon.comm == "containerd-shim":
            yield from _shim_roots(daemon, host)
        elif daemon.comm == "conmon":
            arguments = tuple(option(daemon.argv, "--runtime-arg"))
            yield from (RuncRoot(Path(root)) for root in option(arguments, "--root"))


def _shim_roots(shim: Daemon, host: HostRoots) -> Iterator[RuncRoot]:
    """The shim works in its bundle; containerd leaves the runtime's options there (runtime/v2/bundle.go)."""
    text = read_regular(host.proc / str(shim.pid) / "cwd" / "options.json")
    try:
        root = parse_object(text or "").get("root")
    except ValueError:
        root = None
    base = Path(root) if isinstance(root, str) and root else host.run / "containerd" / "runc"
    for namespace in option(shim.argv, "-namespace", "--namespace"):
        yield _namespaced(base / namespace)


def _namespaced(path: Path) -> RuncRoot:
    runtime = "docker" if path.name == _DOCKER_NAMESPACE else "containerd"
    return RuncRoot(path, runtime, path.name)


def _state_files(root: Path, file_name: str) -> dict[str, Path]:
    """Container id -> its state file, for every folder in the root that has one."""
    try:
        folders = sorted(root.iterdir())
    except PermissionError:
        raise RtdebugError("may not be read: run rtdebug as root") from None
    except OSError:  # removed since we looked
        return {}
    return {folder.name: folder / file_name for folder in folders if file_mode(folder / file_name) is not None}


def _list_with(tool: Tool, root: RuncRoot, states: Mapping[str, Path], proc: Path) -> tuple[Container, ...]:
    listed: tuple[Container, ...] = ()
    if ask.is_installed(tool):
        argv = (tool, "--root", str(root.path), "list", "--format", "json")
        with contextlib.suppress(RtdebugError):  # then the files say it
            listed = parse_list(ask.run(argv, _LIST_TIMEOUT_S), tool, root)
    if {container.id for container in listed} >= states.keys():
        return listed
    found = (_read_state_file(tool, root, container_id, path, proc) for container_id, path in states.items())
    return tuple(container for container in found if container is not None)


def _read_state_file(tool: Tool, root: RuncRoot, container_id: str, path: Path, proc: Path) -> Container | None:
    """None if the file has been removed since we looked, or is something else."""
    text = read_regular(path)
    try:
        state = None if text is None else _PARSE[tool](text)
    except ValueError:
        return None
    if state is None:
        return None
    record = {
        "id": container_id,
        "pid": state.pid,
        "status": _status(state, path.parent, proc),
        "bundle": state.bundle,
        "annotations": state.annotations,
    }
    return _container(record, tool, root)


_PARSE: Mapping[Tool, Callable[[str], StateFile]] = {"runc": parse_runc_state, "crun": parse_crun_status}


def _status(state: StateFile, folder: Path, proc: Path) -> str:
    """As the programs find it, but that a paused container counts as running."""
    stat = None if state.pid is None else read_stat(state.pid, proc)
    if stat is None or stat.state in "ZX" or state.start_ticks not in (None, stat.start_ticks):
        return "stopped"
    return "created" if (folder / "exec.fifo").exists() else "running"


def _container(record: Record, tool: Tool, root: RuncRoot) -> Container:
    container_id = str(record["id"])
    annotations = as_object(record.get("annotations")) or _crun_annotations(root.path / container_id)
    names = names_in(annotations)
    status = as_text(record.get("status")) or "stopped"
    return Container(
        id=container_id,
        name=names.name,
        runtime=names.manager or root.runtime or tool,
        pid=None if status == "stopped" else as_pid(record.get("pid")),
        status=status,
        cgroup=None,
        bundle=as_text(record.get("bundle")),
        namespace=names.namespace or root.namespace,
        pod=names.pod,
        image=names.image,
        runc_root=str(root.path),
        sandbox=names.sandbox,
    )


def _crun_annotations(folder: Path) -> Record:
    """`crun list` does not print them, but crun keeps a copy of the bundle's config.json."""
    try:
        return as_object(parse_object(read_regular(folder / "config.json") or "").get("annotations"))
    except ValueError:
        return {}
