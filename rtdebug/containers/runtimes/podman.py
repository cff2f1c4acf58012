"""podman: names, images and pods of its containers, from `podman ps` and from conmon's command lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rtdebug.containers.model import Container
from rtdebug.containers.roots import HostRoots
from rtdebug.containers.runtimes import ask
from rtdebug.containers.runtimes.daemons import Daemon, option
from rtdebug.containers.runtimes.labels import names_in
from rtdebug.containers.runtimes.records import (
    Record,
    as_object,
    as_pid,
    as_text,
    first_text,
    parse_records,
)
from rtdebug.host.text import file_mode

_STORE_OPTIONS = ("--root", "--runroot", "--tmpdir")
"""Global options of podman that say which store it works on."""
_STATUS = {"exited": "stopped", "configured": "stopped", "removing": "stopped", "unknown": "stopped"}
"""podman's words for what OCI calls otherwise."""

Store = tuple[str, ...]
"""podman's global options for one store; empty: the default store."""


def find_stores(daemons: Iterable[Daemon], host: HostRoots) -> tuple[Store, ...]:
    """Root's stores: the default one if it holds containers, and those that running containers came from.

    conmon is told how to call podman when the container ends, and shows it in its arguments.
    """
    default = host.var_lib / "containers" / "storage"
    used = any(file_mode(default / name) is not None for name in ("libpod", "db.sql"))
    stores: list[Store] = [()] if used else []
    for conmon in daemons:
        if _is_podmans(conmon) and conmon.uid == 0 and conmon.shares_mounts:
            stores.append(_store(conmon))
    return tuple(dict.fromkeys(stores))


def list_containers(store: Store) -> tuple[Container, ...]:
    """All containers of a store, stopped ones too. Raises RtdebugError."""
    return parse_ps(ask.run(("podman", *store, "ps", "--all", "--format", "json")))


def parse_ps(text: str) -> tuple[Container, ...]:
    """Output of `podman ps --format json`. Raises RtdebugError if it is not that."""
    return tuple(map(_container, parse_records(text, "Id", "podman ps")))


def named_by_conmon(daemons: Iterable[Daemon]) -> Iterator[Container]:
    """Running containers as conmon names them: podman's also of other users, and CRI-O's.

    Only ids and names: enough to name what runc reports, also while podman hangs.
    """
    for conmon in daemons:
        container_id = next(option(conmon.argv, "-c", "--cid"), None) if conmon.comm == "conmon" else None
        if container_id:
            yield Container(
                id=container_id,
                name=next(option(conmon.argv, "-n", "--name"), None),
                runtime="podman" if _is_podmans(conmon) else None,
                pid=None,
                status="running",
                cgroup=None,
            )


def _container(record: Record) -> Container:
    labelled = names_in(as_object(record.get("Labels")))
    state = as_text(record.get("State")) or "unknown"
    status = _STATUS.get(state, state)
    return Container(
        id=record["Id"],
        name=first_text(record.get("Names")) or labelled.name,
        runtime="podman",
        pid=None if status == "stopped" else as_pid(record.get("Pid")),
        status=status,
        cgroup=None,
        namespace=labelled.namespace,
        pod=as_text(record.get("PodName")) or labelled.pod,
        image=as_text(record.get("Image")),
        sandbox=record.get("IsInfra") is True,
    )


def _is_podmans(conmon: Daemon) -> bool:
    return conmon.comm == "conmon" and any(
        command.rpartition("/")[2] == "podman" for command in option(conmon.argv, "--exit-command")
    )


def _store(conmon: Daemon) -> Store:
    arguments = tuple(option(conmon.argv, "--exit-command-arg"))
    options = ((name, value) for name in _STORE_OPTIONS for value in list(option(arguments, name))[:1] if value)
    return tuple(part for pair in options for part in pair)
