"""docker: names, images and labels of its containers, from the daemon's socket.

The Engine API is plain HTTP on a Unix socket: one request, no `docker` program needed, and no remote
daemon asked by mistake. Source: https://docs.docker.com/reference/api/engine/
"""

from __future__ import annotations

import http.client
import os
import socket
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from rtdebug.containers.model import Container
from rtdebug.containers.roots import HostRoots
from rtdebug.containers.runtimes.ask import TIMEOUT_S
from rtdebug.containers.runtimes.daemons import Daemon, option
from rtdebug.containers.runtimes.labels import names_in
from rtdebug.containers.runtimes.records import (
    Record,
    as_object,
    as_text,
    first_text,
    parse_records,
)
from rtdebug.errors import RtdebugError
from rtdebug.host.text import is_socket

_UNIX = "unix://"
_LIMIT_BYTES = 64 << 20
_STATUS = {"exited": "stopped", "dead": "stopped", "removing": "stopped", "restarting": "stopped"}
"""docker's words for what OCI calls otherwise."""


def find_sockets(
    daemons: Iterable[Daemon], host: HostRoots, environ: Mapping[str, str] = os.environ
) -> tuple[Path, ...]:
    """The sockets of docker daemons here: DOCKER_HOST, the usual places, `dockerd --host`; each once."""
    candidates = (*_from_environment(environ), *_usual_places(host.run), *_from_daemons(daemons))
    sockets = (path.resolve() for path in candidates if is_socket(path))
    return tuple(dict.fromkeys(sockets))


def list_containers(path: Path) -> tuple[Container, ...]:
    """All containers of the daemon behind the socket `path`, stopped ones too; pids are for runc to say.

    Raises RtdebugError.
    """
    return parse_containers(_get(path, "/containers/json?all=1"))


def parse_containers(text: str | bytes) -> tuple[Container, ...]:
    """The answer to GET /containers/json. Raises RtdebugError if it is something else."""
    return tuple(map(_container, parse_records(text, "Id", "docker")))


def _container(record: Record) -> Container:
    labelled = names_in(as_object(record.get("Labels")))
    own_name = (first_text(record.get("Names")) or "").removeprefix("/")
    state = as_text(record.get("State")) or "exited"
    return Container(
        id=record["Id"],
        name=own_name or labelled.name,
        runtime="docker",
        pid=None,
        status=_STATUS.get(state, state),
        cgroup=None,
        namespace=labelled.namespace,
        pod=labelled.pod,
        image=as_text(record.get("Image")),
        sandbox=labelled.sandbox,
    )


def _from_environment(environ: Mapping[str, str]) -> Iterator[Path]:
    host = environ.get("DOCKER_HOST", "")
    if host.startswith(_UNIX):
        yield Path(host.removeprefix(_UNIX))


def _usual_places(run: Path) -> Iterator[Path]:
    yield run / "docker.sock"
    yield from run.glob("user/*/docker.sock")  # rootless


def _from_daemons(daemons: Iterable[Daemon]) -> Iterator[Path]:
    for daemon in daemons:
        if daemon.comm == "dockerd" and daemon.shares_mounts:
            for address in option(daemon.argv, "-H", "--host"):
                if address.startswith(_UNIX):
                    yield Path(address.removeprefix(_UNIX))


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket instead of a host."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT_S)
        self.sock.connect(os.fspath(self._path))


def _get(path: Path, resource: str) -> bytes:
    connection = _UnixConnection(path)
    try:
        connection.request("GET", resource)
        response = connection.getresponse()
        body = response.read(_LIMIT_BYTES)
    except TimeoutError:
        raise RtdebugError(f"no answer within {TIMEOUT_S:g} s") from None
    except (OSError, http.client.HTTPException) as error:
        raise RtdebugError(str(error) or type(error).__name__) from None
    finally:
        connection.close()
    if response.status != http.client.OK:
        raise RtdebugError(f"answered {response.status} to {resource}")
    return body
