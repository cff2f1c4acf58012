"""The network namespace of a process: interfaces, addresses, routes, and the memory of its sockets.

Asked over netlink by a forked child that enters the namespace: rtdebug itself stays where it is.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rtdebug.errors import RtdebugError
from rtdebug.host.child import Child
from rtdebug.host.process import namespace_id
from rtdebug.host.text import parse_int, read_text
from rtdebug.snapshot.model import LinkRecord, NetworkRecord
from rtdebug.snapshot.surroundings import host_namespaces

_CLONE_NEWNET = 0x40000000
_MAIN_TABLE = 254
_UNICAST = 1
_SKMEMINFO = 1 << 6  # INET_DIAG_SKMEMINFO - 1, include/uapi/linux/inet_diag.h
_PROTOCOLS = (socket.IPPROTO_TCP, socket.IPPROTO_UDP)


@dataclass(frozen=True, slots=True)
class _Answer:
    links: tuple[LinkRecord, ...]
    routes: tuple[str, ...]
    sockets: tuple[int, int, int] | None


class NetworkQuestion:
    """A namespace that is being asked about, beside other work."""

    def __init__(self, pid: int, proc: Path = Path("/proc")) -> None:
        self._pid, self._proc = pid, proc
        self._child = Child(partial(_ask, pid, proc))

    def answer(self) -> NetworkRecord:
        """The found. Raises RtdebugError."""
        found = self._child.result()
        own = namespace_id(self._pid, "net", self._proc)
        count, rmem, wmem = found.sockets or (None, None, None)
        return NetworkRecord(
            inode_id=own,
            is_host=None if own is None else own == host_namespaces(self._proc).get("net"),
            links=found.links,
            routes=found.routes,
            sockets=read_sockstat(self._pid, self._proc),
            socket_count=count,
            socket_rmem_bytes=rmem,
            socket_wmem_bytes=wmem,
        )


def read_sockstat(pid: int, proc: Path = Path("/proc")) -> dict[str, int]:
    """/proc/PID/net/sockstat and sockstat6 as `TCP.inuse`, `UDP6.inuse`, ...; empty if they cannot be read."""
    texts = (read_text(proc / str(pid) / "net" / name) or "" for name in ("sockstat", "sockstat6"))
    return {key: value for text in texts for key, value in parse_sockstat(text).items()}


def parse_sockstat(text: str) -> dict[str, int]:
    """`TCP: inuse 5 orphan 0` lines; a line of another form is left out."""
    figures = {}
    for line in text.splitlines():
        name, colon, rest = line.partition(":")
        words = rest.split()
        for key, word in zip(words[::2], words[1::2], strict=False):
            value = parse_int(word)
            if colon and value is not None:
                figures[f"{name}.{key}"] = value
    return figures


def add_memory(infos: Iterable[str]) -> tuple[int, int, int]:
    """How many sockets, and what they have allocated for receiving and for sending, of SK_MEMINFO arrays in hex."""
    count = received = sent = 0
    for info in infos:
        words = struct.unpack_from("=6I", bytes.fromhex(info.replace(":", "")))
        count += 1
        received += words[0]
        sent += words[2] + words[5]
    return count, received, sent


def _ask(pid: int, proc: Path) -> _Answer:
    from pyroute2 import IPRoute

    _enter(pid, proc)
    with IPRoute() as netlink:
        names = {link["index"]: str(link.get_attr("IFLA_IFNAME")) for link in netlink.get_links()}
        addresses = [
            (int(each["index"]), f"{each.get_attr('IFA_ADDRESS')}/{each['prefixlen']}") for each in netlink.get_addr()
        ]
        links = tuple(_link(link, addresses) for link in netlink.get_links())
        routes = tuple(
            _route(route, names)
            for route in netlink.get_routes()
            if route.get_attr("RTA_TABLE") == _MAIN_TABLE and route["type"] == _UNICAST
        )
    return _Answer(links, routes, _socket_memory())


def _enter(pid: int, proc: Path) -> None:
    try:
        fd = os.open(proc / str(pid) / "ns" / "net", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise RtdebugError(f"the network namespace of process {pid} cannot be opened: {error.strerror}") from None
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(fd, _CLONE_NEWNET) != 0:
        reason = os.strerror(ctypes.get_errno())
        raise RtdebugError(f"the network namespace of process {pid} cannot be entered: {reason}")
    os.close(fd)


def _link(link: Any, addresses: Iterable[tuple[int, str]]) -> LinkRecord:  # noqa: ANN401 - pyroute2 has no types
    statistics: Mapping[str, int] = link.get_attr("IFLA_STATS64") or {}
    info = link.get_attr("IFLA_LINKINFO")
    return LinkRecord(
        index_id=int(link["index"]),
        name=str(link.get_attr("IFLA_IFNAME")),
        kind=info.get_attr("IFLA_INFO_KIND") if info else None,
        state=link.get_attr("IFLA_OPERSTATE"),
        mtu_bytes=link.get_attr("IFLA_MTU"),
        address=link.get_attr("IFLA_ADDRESS"),
        addresses=tuple(address for index, address in addresses if index == link["index"]),
        rx_bytes=statistics.get("rx_bytes"),
        tx_bytes=statistics.get("tx_bytes"),
    )


def _route(route: Any, names: Mapping[int, str]) -> str:  # noqa: ANN401
    destination = route.get_attr("RTA_DST")
    gateway = route.get_attr("RTA_GATEWAY")
    device = names.get(route.get_attr("RTA_OIF"))
    words = [f"{destination}/{route['dst_len']}" if destination else "default"]
    words += ["via", str(gateway)] if gateway else []
    words += ["dev", device] if device else []
    return " ".join(words)


def _socket_memory() -> tuple[int, int, int] | None:
    """None where the kernel has no inet_diag."""
    from pyroute2 import DiagSocket

    infos = []
    try:
        with DiagSocket() as diag:
            diag.bind()
            for family in (socket.AF_INET, socket.AF_INET6):
                for protocol in _PROTOCOLS:
                    found = diag.get_sock_stats(family=family, protocol=protocol, extensions=_SKMEMINFO)
                    infos += [info for each in found if (info := each.get_attr("INET_DIAG_SKMEMINFO"))]
    except Exception:  # pyroute2 raises errors of its own for a protocol that this kernel cannot tell
        return None
    return add_memory(infos)
