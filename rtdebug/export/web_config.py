"""The web configuration file of Prometheus exporters: TLS and basic authentication.

Format: https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md. What is not supported here
is refused, never ignored: a file that asks for client certificates must not lead to an open door.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rtdebug.errors import HostUnable, UsageProblem

if TYPE_CHECKING:
    import ssl

_TLS_KEYS = {"cert_file", "key_file", "client_auth_type", "client_ca_file", "min_version"}
_VERSIONS = {"TLS12": "TLSv1_2", "TLS13": "TLSv1_3"}
_MOST_REMEMBERED = 64


@dataclass(frozen=True, slots=True)
class WebConfig:
    """How the endpoint is protected."""

    tls: ssl.SSLContext | None = None
    users: Mapping[str, bytes] = field(default_factory=dict)
    """Hashes of passwords by bcrypt; empty: everybody may look."""


def load_web_config(path: Path) -> WebConfig:
    """Read the file, and the certificates it names (relative to its folder).

    Raises UsageProblem for what is wrong in it, HostUnable when PyYAML or bcrypt is not installed.
    """
    try:
        import yaml
    except ImportError:
        raise HostUnable("--web-config needs PyYAML", "pip install 'rtdebug[export]'") from None
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeError, yaml.YAMLError) as error:
        raise UsageProblem(f"--web-config {path}: {error}", _HINT) from error
    if not isinstance(document, dict):
        raise UsageProblem(f"--web-config {path}: it is no mapping", _HINT)
    _refuse_others(path, document, {"tls_server_config", "basic_auth_users"})
    tls = document.get("tls_server_config")
    return WebConfig(None if tls is None else _tls(path, tls), _users(path, document.get("basic_auth_users") or {}))


class Door:
    """Who may come in. bcrypt takes a tenth of a second on purpose, so what was right once is remembered, hashed."""

    def __init__(self, users: Mapping[str, bytes]) -> None:
        self._users = users
        self._known: set[bytes] = set()

    def is_open_to(self, user: str, password: str) -> bool:
        """Whether this is a user's password. An unknown user takes as long as a wrong password."""
        import bcrypt

        digest = sha256(f"{len(user)}:{user}:{password}".encode("utf-8", "surrogatepass")).digest()
        if any(hmac.compare_digest(digest, known) for known in self._known):
            return True
        secret = password.encode("utf-8", "surrogatepass")[:72]  # bcrypt's limit
        expected = self._users.get(user)
        is_right = bcrypt.checkpw(secret, expected or next(iter(self._users.values())))
        if expected is None or not is_right:
            return False
        if len(self._known) < _MOST_REMEMBERED:
            self._known.add(digest)
        return True


_HINT = "its keys are tls_server_config (cert_file, key_file, ...) and basic_auth_users (user: bcrypt hash)"


def _tls(path: Path, config: object) -> ssl.SSLContext:
    import ssl

    if not isinstance(config, dict):
        raise UsageProblem(f"--web-config {path}: tls_server_config is no mapping", _HINT)
    _refuse_others(path, config, _TLS_KEYS)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    version = str(config.get("min_version", "TLS12"))
    if version not in _VERSIONS:
        raise UsageProblem(f"--web-config {path}: min_version {version}: give TLS12 or TLS13", _HINT)
    context.minimum_version = ssl.TLSVersion[_VERSIONS[version]]
    try:
        context.load_cert_chain(_file(path, config, "cert_file"), _file(path, config, "key_file"))
        client_auth = config.get("client_auth_type", "NoClientCert")
        if client_auth == "RequireAndVerifyClientCert":
            context.load_verify_locations(_file(path, config, "client_ca_file"))
            context.verify_mode = ssl.CERT_REQUIRED
        elif client_auth != "NoClientCert" or "client_ca_file" in config:
            raise UsageProblem(
                f"--web-config {path}: client_auth_type {client_auth} is not supported",
                "give NoClientCert, or RequireAndVerifyClientCert with client_ca_file",
            )
    except (OSError, ssl.SSLError) as error:
        raise UsageProblem(f"--web-config {path}: the certificates cannot be used: {error}", _HINT) from error
    return context


def _file(path: Path, config: Mapping[str, Any], key: str) -> Path:
    name = config.get(key)
    if not isinstance(name, str) or not name:
        raise UsageProblem(f"--web-config {path}: tls_server_config has no {key}", _HINT)
    return path.parent / name


def _users(path: Path, users: object) -> dict[str, bytes]:
    if not isinstance(users, dict):
        raise UsageProblem(f"--web-config {path}: basic_auth_users is no mapping", _HINT)
    if not users:
        return {}
    try:
        import bcrypt
    except ImportError:
        raise HostUnable("basic_auth_users needs bcrypt", "pip install 'rtdebug[export]'") from None
    hashes = {str(user): str(secret).encode() for user, secret in users.items()}
    for user, secret in hashes.items():
        try:
            bcrypt.checkpw(b"", secret)
        except ValueError:
            raise UsageProblem(
                f"--web-config {path}: what {user} has is no bcrypt hash", "make one: htpasswd -nBC 10 '' | tr -d ':'"
            ) from None
    return hashes


def _refuse_others(path: Path, config: Mapping[Any, Any], known: set[str]) -> None:
    if others := sorted(str(key) for key in config if key not in known):
        raise UsageProblem(f"--web-config {path}: not supported: {', '.join(others)}", _HINT)
