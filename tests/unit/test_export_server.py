"""The endpoint: pages, compression, TLS, passwords; scrapers that do not read, and a port that is taken."""

from __future__ import annotations

import base64
import contextlib
import gzip
import os
import socket
import ssl
import stat
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import bcrypt
import pytest

from rtdebug.errors import HostUnable, RtdebugError, UsageProblem
from rtdebug.export.server import Server, listen
from rtdebug.export.textfile import write_textfile
from rtdebug.export.web_config import WebConfig, load_web_config

PAGE = b"# TYPE rtdebug_x gauge\nrtdebug_x 1\n"


@contextlib.contextmanager
def serving(config: WebConfig | None = None, stale_s: float = 60, page: bytes | None = PAGE) -> Iterator[str]:
    server = Server(listen("127.0.0.1:0"), config or WebConfig(), stale_s)
    try:
        if page is not None:
            server.publish(page)
            time.sleep(0.2)
        yield server.url
    finally:
        server.close()


def get(url: str, headers: dict[str, str] | None = None, context: ssl.SSLContext | None = None) -> tuple[int, bytes]:
    request = urllib.request.Request(url, headers=headers or {})
    try:
        with urllib.request.urlopen(request, None, 5, context=context) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def connected(url: str) -> socket.socket:
    host, _, port = url.removeprefix("http://").removesuffix("/metrics").rpartition(":")
    return socket.create_connection((host, int(port)), 5)


def test_the_last_page_is_served() -> None:
    server = Server(listen("127.0.0.1:0"), WebConfig(), 60)
    try:
        assert get(server.url)[0] == 503  # nothing yet
        for number in range(30):
            server.publish(b"x" * 3_000_000 + b"%d\n" % number)
        deadline = time.monotonic() + 5
        while not get(server.url)[1].endswith(b"x29\n") and time.monotonic() < deadline:
            time.sleep(0.05)
        assert get(server.url)[1].endswith(b"x29\n")
    finally:
        server.close()


def test_compression_health_and_other_paths() -> None:
    with serving() as url:
        assert gzip.decompress(get(url, {"Accept-Encoding": "gzip"})[1]) == PAGE
        base = url.removesuffix("/metrics")
        assert get(f"{base}/-/healthy") == (200, b"ok\n")
        assert get(f"{base}/etc/passwd")[0] == 404
        assert b"/metrics" in get(base + "/")[1]


def test_a_page_that_is_too_old_is_not_served() -> None:
    with serving(stale_s=0.5) as url:
        assert get(url)[0] == 200
        time.sleep(0.6)
        assert get(url)[0] == 503


def test_scrapers_that_never_read_or_never_ask_do_not_stop_others() -> None:
    with serving(page=PAGE * 500_000) as url, contextlib.ExitStack() as stack:
        for number in range(12):
            lazy = stack.enter_context(connected(url))
            if number % 2:
                lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                lazy.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        time.sleep(0.5)
        started = time.monotonic()
        status, content = get(url)
        assert (status, len(content)) == (200, len(PAGE) * 500_000)
        assert time.monotonic() - started < 3


def test_one_that_sends_byte_by_byte_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rtdebug.export.server._LONGEST_S", 1.0)
    with serving() as url, connected(url) as slow, pytest.raises(OSError):
        for _ in range(50):
            slow.sendall(b"x")
            time.sleep(0.1)


def test_seventeen_connections_are_one_too_many_for_a_while() -> None:
    with serving() as url:
        with contextlib.ExitStack() as stack:
            for _ in range(16):
                stack.enter_context(connected(url))
            time.sleep(0.3)
            with connected(url) as extra:
                assert extra.recv(1) == b""
        time.sleep(0.5)
        assert get(url)[0] == 200


def test_nonsense_is_answered_or_cut() -> None:
    with serving() as url:
        for nonsense in (b"\x16\x03\x01\x02\x00", b"GET " + b"x" * 100_000 + b"\r\n\r\n", b"\r\n\r\n", b"\xff" * 999):
            with connected(url) as client, contextlib.suppress(OSError):
                client.sendall(nonsense)
                client.shutdown(socket.SHUT_WR)
                client.settimeout(5)
                while client.recv(65536):
                    pass
        assert get(url)[0] == 200


def test_a_port_that_is_taken() -> None:
    with listen("127.0.0.1:0") as taken:
        port = taken.getsockname()[1]
        with pytest.raises(HostUnable, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            listen(f"127.0.0.1:{port}")


@pytest.mark.parametrize("address", ["", "9435", "host:", "host:x", "1.2.3.4:99999", "localhost:-1"])
def test_an_address_that_is_none(address: str) -> None:
    with pytest.raises(UsageProblem, match="give HOST:PORT"):
        listen(address)


def test_a_host_that_is_not_ours() -> None:
    with pytest.raises(HostUnable):
        listen("192.0.2.1:9435")


def test_ipv6() -> None:
    try:
        listening = listen("[::1]:0")
    except HostUnable:
        pytest.skip("no IPv6 here")
    server = Server(listening, WebConfig(), 60)
    assert server.url.startswith("http://[::1]:")
    server.close()


def test_an_endpoint_that_died_is_noticed() -> None:
    server = Server(listen("127.0.0.1:0"), WebConfig(), 60)
    server._helper.kill()
    deadline = time.monotonic() + 5
    with pytest.raises(RtdebugError, match="died"):
        while time.monotonic() < deadline:
            server.publish(PAGE)
    server.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has rights to give up")
def test_the_endpoint_has_no_rights() -> None:
    server = Server(listen("127.0.0.1:0"), WebConfig(), 60)
    server.publish(PAGE)
    try:
        assert get(server.url)[0] in (200, 503)
        status = Path(f"/proc/{server._helper.pid}/status").read_text()
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert fields["Uid"].split() == ["65534"] * 4 and fields["Gid"].split() == ["65534"] * 4
        assert int(fields["CapEff"], 16) == int(fields["CapPrm"], 16) == 0
        assert fields["NoNewPrivs"] == "1" and fields["Groups"].strip() == ""
    finally:
        server.close()


# --- the web configuration ---


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "server.key", "-out", "server.crt"],
        cwd=tmp_path, check=True, capture_output=True,
    )  # fmt: skip
    return tmp_path / "server.crt"


def config_of(folder: Path, text: str) -> WebConfig:
    (folder / "web.yml").write_text(text)
    return load_web_config(folder / "web.yml")


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def test_tls_and_passwords(certificate: Path) -> None:
    secret = bcrypt.hashpw(b"right: horse", bcrypt.gensalt(4)).decode()
    tls = "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n  min_version: TLS13\n"
    config = config_of(certificate.parent, f"{tls}basic_auth_users:\n  prom: {secret}\n")
    trust = ssl.create_default_context(cafile=str(certificate))
    with serving(config) as url:
        assert url.startswith("https://")
        assert get(url, basic("prom", "right: horse"), trust) == (200, PAGE)
        assert get(url, basic("prom", "right: horse"), trust) == (200, PAGE)
        for headers in ({}, basic("prom", "wrong"), basic("nobody", "right: horse"), {"Authorization": "Basic %%%"}):
            assert get(url, headers, trust)[0] == 401
        with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
            get(url, basic("prom", "right: horse"), ssl.create_default_context())
        with connected(url.replace("https", "http")) as plain:
            plain.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            assert PAGE not in plain.recv(65536)


def test_clients_without_a_certificate_stay_outside(certificate: Path) -> None:
    tls = "tls_server_config:\n  cert_file: server.crt\n  key_file: server.key\n"
    config = config_of(
        certificate.parent, f"{tls}  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: server.crt\n"
    )
    trust = ssl.create_default_context(cafile=str(certificate))
    with serving(config) as url:
        with pytest.raises(OSError):
            get(url, None, trust)
        trust.load_cert_chain(certificate, certificate.with_suffix(".key"))
        assert get(url, None, trust) == (200, PAGE)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]: [", "web.yml"),
        ("- a\n", "no mapping"),
        ("tls_server_confg: {}\n", "not supported: tls_server_confg"),
        ("tls_server_config: {cipher_suites: [x]}\n", "not supported: cipher_suites"),
        ("tls_server_config: {}\n", "no cert_file"),
        ("tls_server_config: {cert_file: none.crt, key_file: none.key}\n", "cannot be used"),
        ("tls_server_config: {cert_file: a, key_file: b, min_version: TLS10}\n", "min_version TLS10"),
        ("basic_auth_users: {prom: secret}\n", "what prom has is no bcrypt hash"),
        ("basic_auth_users: [prom]\n", "basic_auth_users is no mapping"),
        ("\xff\xfe", "web.yml"),
    ],
)
def test_what_is_wrong_in_it_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageProblem, match=message):
        config_of(tmp_path, text)


def test_an_empty_file_protects_nothing(tmp_path: Path) -> None:
    assert config_of(tmp_path, "") == WebConfig()


# --- the textfile ---


def test_the_textfile_is_replaced_at_once(tmp_path: Path) -> None:
    path = tmp_path / "rtdebug.prom"
    write_textfile(path, b"old\n")
    with path.open() as reader:
        write_textfile(path, b"new\n")
        assert reader.read() == "old\n"
    assert path.read_text() == "new\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert [each.name for each in tmp_path.iterdir()] == ["rtdebug.prom"]


def test_a_textfile_in_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageProblem, match="cannot write there"):
        write_textfile(tmp_path / "none" / "rtdebug.prom", b"")
