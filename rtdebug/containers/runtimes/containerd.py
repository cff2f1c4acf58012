"""containerd: images of its containers, and those that are stopped, from `ctr`.

Names, pods and Kubernetes namespaces come from annotations (labels.names_in), pids from runc.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

from rtdebug.containers.model import Container
from rtdebug.containers.roots import HostRoots
from rtdebug.containers.runtimes import ask
from rtdebug.containers.runtimes.daemons import Daemon, option
from rtdebug.containers.runtimes.records import as_object, as_text
from rtdebug.host.text import is_socket, read_regular

_DOCKER_NAMESPACE = "moby"


def find_addresses(daemons: Iterable[Daemon], host: HostRoots) -> tuple[str, ...]:
    """Sockets of the containerds here, each once: the usual one, those of daemons and of shims that run."""
    usual = host.run / "containerd" / "containerd.sock"
    found = [str(usual)] if is_socket(usual) else []
    for daemon in daemons:
        if daemon.comm == "containerd" and daemon.shares_mounts:
            found += _configured(daemon)
        elif daemon.comm == "containerd-shim" and daemon.shares_mounts:
            found += option(daemon.argv, "-address", "--address")
    return tuple(dict.fromkeys(found))


def _configured(daemon: Daemon) -> Iterator[str]:
    yield from option(daemon.argv, "-a", "--address")
    for path in option(daemon.argv, "-c", "--config"):
        try:
            config = tomllib.loads(read_regular(Path(path)) or "")
        except tomllib.TOMLDecodeError:
            continue
        address = as_text(as_object(config.get("grpc")).get("address"))
        if address:
            yield address


def list_containers(address: str) -> tuple[Container, ...]:
    """All containers of one containerd but docker's; runc says which of them run. Raises RtdebugError."""
    ctr = ("ctr", "--address", address)
    namespaces = ask.run((*ctr, "namespaces", "list", "--quiet")).split()
    return tuple(
        container
        for namespace in namespaces
        if namespace != _DOCKER_NAMESPACE
        for container in parse_list(ask.run((*ctr, "--namespace", namespace, "containers", "list")), namespace)
    )


def parse_list(text: str, namespace: str) -> tuple[Container, ...]:
    """Output of `ctr containers list`: CONTAINER, IMAGE, RUNTIME in columns set apart by several blanks."""
    rows = (re.split(r" {2,}|\t+", line.strip()) for line in text.split("\n")[1:] if line.strip())
    return tuple(
        Container(
            id=row[0],
            name=None,
            runtime="containerd",
            pid=None,
            status="stopped",
            cgroup=None,
            namespace=namespace,
            image=row[1] if len(row) > 1 and row[1] != "-" else None,
        )
        for row in rows
    )
