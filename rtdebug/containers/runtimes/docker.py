"""docker: names, images and labels of its containers, from the daemon's socket.

The Engine API is plain HTTP on a Unix socket: one request, no `docker` program needed, and no remote
daemon asked by mistake. Source: https://docs.docker.com/reference/api/engine/
"""

from __future__ import annotations

import os
import re
import socket
import stat
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

_UNIX = "unix://"
_LIMIT_BYTES = 64 << 20
_STATUS = {"exited": "stopped", "dead": "stopped", "removing": "stopped", "restarting": "stopped"}
"""docker's words for what OCI calls otherwise."""


def find_sockets(
    daemons: Iterable[Daemon], host: HostRoots, environ: Mapping[str, str] = os.environ
) -> tuple[Path, ...]:
    """The sockets of docker daemons here: DOCKER_HOST, the usual places, `dockerd --host`; each once."""
    candidates = (*_from_environment(environ), *_usual_places(host.run), *_from_daemons(daemons))
    sockets = (path.resolve() for path in candidates if _is_socket(path))
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


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.stat().st_mode)
    except OSError:
        return False


def _get(path: Path, resource: str) -> bytes:
    # HTTP/1.0: the answer ends where the daemon closes, nothing comes in chunks. http.client would bring
    # OpenSSL and the email package into a process that goes on tracing: 5 MB, and 15 ms.
    request = f"GET {resource} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode()
    try:
        answer = _ask(path, request)
    except TimeoutError:
        raise RtdebugError(f"no answer within {TIMEOUT_S:g} s") from None
    except OSError as error:
        raise RtdebugError(str(error)) from None
    head, _, body = answer.partition(b"\r\n\r\n")
    status = re.match(rb"HTTP/1\.\d (\d{3})\b", head)
    if status is None:
        raise RtdebugError("answered something that is not HTTP")
    if status[1] != b"200":
        raise RtdebugError(f"answered {status[1].decode()} to {resource}")
    return body


def _ask(path: Path, request: bytes) -> bytes:
    """Send a request and return all that comes back until the other side closes, or the limit."""
    answer = bytearray()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(TIMEOUT_S)
        connection.connect(os.fspath(path))
        connection.sendall(request)
        while len(answer) < _LIMIT_BYTES and (part := connection.recv(1 << 16)):
            answer += part
    return bytes(answer)
