"""The endpoint: a process without any rights that hands out the last page it was given.

It sees no container and holds no capability, so whoever gets past its HTTP gets nothing else. A scrape never waits for
a look at a container. Connections are few and short: one that does not read, or sends byte by byte, is cut.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import ctypes
import gzip
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from rtdebug.errors import HostUnable, RtdebugError, UsageProblem
from rtdebug.export.helper import Helper
from rtdebug.export.messages import Receiver, send
from rtdebug.export.web_config import Door, WebConfig

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_MOST_CONNECTIONS = 16
_SILENCE_S = 10.0
_LONGEST_S = 30.0
"""A connection is cut when nothing moves, and in any case."""
_NOBODY = 65534
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_SYS_CAPSET = {"x86_64": 126, "aarch64": 91}
_CAPABILITY_VERSION_3 = 0x20080522
_HELP = b"<html><head><title>rtdebug</title></head><body><a href='/metrics'>Metrics of rtdebug</a></body></html>\n"


def listen(address: str) -> socket.socket:
    """A listening socket for HOST:PORT, [IPV6]:PORT or :PORT. Raises UsageProblem, or HostUnable for a taken port."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or not 0 <= int(port) < 65536:
        raise UsageProblem(f"--listen {address}: give HOST:PORT", "127.0.0.1:9435, [::1]:9435; :9435 is every address")
    bare = host.removeprefix("[").removesuffix("]")
    try:
        family, kind, _, _, where = socket.getaddrinfo(
            bare or None, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(where)
        listening.listen(_MOST_CONNECTIONS)
    except OSError as error:
        raise HostUnable(
            f"cannot listen on {address}: {error.strerror or error}",
            "give another --listen, or end what listens there (ss -ltnp shows it)",
        ) from error
    return listening


class Server:
    """The endpoint's process. A page is handed out for `stale_s`; after that there is none, so that it is noticed."""

    def __init__(self, listening: socket.socket, config: WebConfig, stale_s: float) -> None:
        read_fd, self._write_fd = os.pipe2(os.O_CLOEXEC)
        host, port = listening.getsockname()[:2]
        scheme, where = ("http" if config.tls is None else "https"), f"[{host}]" if ":" in host else host
        self.url = f"{scheme}://{where}:{port}/metrics"
        self._helper = Helper(lambda: _serve(listening, config, stale_s, read_fd), (read_fd, listening.fileno()))
        os.close(read_fd)
        listening.close()

    def publish(self, page: bytes) -> None:
        """Hand this page out from now on. Raises RtdebugError when the endpoint has died."""
        try:
            send(self._write_fd, page)
        except BrokenPipeError:
            self.check()

    def check(self) -> None:
        """Raise RtdebugError when the endpoint has died."""
        if self._helper.is_over():
            raise RtdebugError("the process that serves the metrics died", "start it again; perhaps memory ran out")

    def close(self) -> None:
        """End it."""
        os.close(self._write_fd)
        self._helper.end(2.0)


class _Page:
    """The last page, and its compressed form when somebody asked for that."""

    def __init__(self, stale_s: float) -> None:
        self._stale_s = stale_s
        self._lock = threading.Lock()
        self._plain: bytes | None = None
        self._gzipped: bytes | None = None
        self._since_s = 0.0

    def put(self, page: bytes) -> None:
        with self._lock:
            self._plain, self._gzipped, self._since_s = page, None, time.monotonic()

    def get(self, gzipped: bool) -> bytes | None:
        with self._lock:
            if self._plain is None or time.monotonic() - self._since_s > self._stale_s:
                return None
            if gzipped and self._gzipped is None:
                self._gzipped = gzip.compress(self._plain, 1)
            return self._gzipped if gzipped else self._plain


class _Endpoint(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, listening: socket.socket, config: WebConfig, page: _Page) -> None:
        super().__init__(("", 0), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.page, self.tls = page, config.tls
        self.door = Door(config.users) if config.users else None
        self._open: dict[socket.socket, float] = {}
        """Connections, since when."""

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        if len(self._open) >= _MOST_CONNECTIONS:
            self.shutdown_request(request)
            return
        request.settimeout(_SILENCE_S)
        if self.tls is not None:
            request = self.tls.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
        self._open[request] = time.monotonic()
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        try:
            if self.tls is not None:
                request.do_handshake()
            self.finish_request(request, client_address)
        except OSError:  # it went away, was cut, or speaks no TLS
            pass
        finally:
            self._open.pop(request, None)
            self.shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """Nobody's news: a connection that broke before its thread began."""

    def service_actions(self) -> None:
        """Cut what takes too long."""
        for request, since_s in list(self._open.items()):
            if time.monotonic() - since_s > _LONGEST_S:
                with contextlib.suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    server: _Endpoint
    server_version = "rtdebug"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer."""
        if self.path == "/-/healthy":
            self._answer(200, "text/plain", b"ok\n")
        elif not self._may_look():
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="rtdebug"')
            self.end_headers()
        elif self.path.partition("?")[0] == "/metrics":
            gzipped = "gzip" in self.headers.get("Accept-Encoding", "")
            page = self.server.page.get(gzipped)
            if page is None:
                self._answer(503, "text/plain", b"the last look at the containers is too old\n")
            else:
                self._answer(200, CONTENT_TYPE, page, "gzip" if gzipped else None)
        elif self.path == "/":
            self._answer(200, "text/html", _HELP)
        else:
            self._answer(404, "text/plain", b"see /metrics\n")

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        """Scrapes are no news."""

    def _may_look(self) -> bool:
        door = self.server.door
        if door is None:
            return True
        scheme, _, encoded = self.headers.get("Authorization", "").partition(" ")
        try:
            user, colon, password = base64.b64decode(encoded, validate=True).decode().partition(":")
        except (binascii.Error, ValueError):
            return False
        return scheme.lower() == "basic" and bool(colon) and door.is_open_to(user, password)

    def _answer(self, status: int, kind: str, content: bytes, encoding: str | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        if encoding:
            self.send_header("Content-Encoding", encoding)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _serve(listening: socket.socket, config: WebConfig, stale_s: float, pages_fd: int) -> None:
    """Serve until nobody can send pages any more."""
    page = _Page(stale_s)
    endpoint = _Endpoint(listening, config, page)
    _give_up_rights(bool(config.users))
    threading.Thread(target=endpoint.serve_forever, daemon=True).start()
    pages = Receiver(pages_fd)
    while pages.is_open:
        for content in pages.receive(None):
            page.put(content)


def _give_up_rights(needs_bcrypt: bool) -> None:
    """No user, no group, no capability, none to be had again. All that is imported was imported before."""
    import email.parser  # noqa: F401 - http.client needs it for the first request

    if needs_bcrypt:
        import bcrypt  # noqa: F401
    libc = ctypes.CDLL(None, use_errno=True)
    if os.geteuid() == 0:
        changes: tuple[tuple[Callable[..., None], tuple[Any, ...]], ...] = (
            (os.setgroups, ([],)),  # in a user namespace it may be denied
            (os.setresgid, (_NOBODY, _NOBODY, _NOBODY)),
            (os.setresuid, (_NOBODY, _NOBODY, _NOBODY)),
        )
        for change, arguments in changes:
            with contextlib.suppress(PermissionError):  # without CAP_SETUID it stays root in name only
                change(*arguments)
    number = _SYS_CAPSET.get(os.uname().machine)
    if number is not None:
        libc.syscall(number, struct.pack("=II", _CAPABILITY_VERSION_3, 0), struct.pack("=6I", *[0] * 6))
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # a change of user takes it back
