"""The file of a snapshot: a tar.gz of JSON, which ordinary tools read too.

    manifest.json       what this is: format, version, container, time, how many processes and mappings
    snapshot.json       all of it but the mappings
    mappings.jsonl      one line for each group of mappings, with the pid of its process
    accounting.json     where the memory is: made from the others, for those who read without rtdebug

    tar -xzOf FILE mappings.jsonl | jq -s 'map(select(.path | endswith(".so")))'

It is written beside its place and moved there: a snapshot is whole or not there. Mode 0600, for it holds secrets.
"""

from __future__ import annotations

import gzip
import io
import itertools
import json
import re
import tarfile
import time
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from rtdebug.errors import RtdebugError
from rtdebug.host.placing import TakenProblem, placed_file
from rtdebug.snapshot.accounting import account
from rtdebug.snapshot.codec import FormError, from_plain, to_plain
from rtdebug.snapshot.model import SCHEMA_VERSION, MappingGroup, Snapshot

FORMAT = "rtdebug snapshot"
_LEVEL = 3  # level 9 takes ten times as long, for a tenth less
_MOST_BYTES = 256 << 20
"""Unpacked; 100,000 groups of mappings take 60 MB."""
_NAMES = ("manifest.json", "snapshot.json", "mappings.jsonl", "accounting.json")
_RANDOM_ID = re.compile(r"^([0-9a-f]{12})[0-9a-f]{52}$")
_BROKEN = (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, KeyError, ValueError, RecursionError)
_HINT = "a snapshot is made by: rtdebug snapshot CONTAINER"


class ArchiveError(RtdebugError):
    """The file is no snapshot that this version can read, or is damaged."""


def default_path(snapshot: Snapshot, further: str = "") -> Path:
    """A name with container and time, in the current folder; nothing of the container's name leads elsewhere."""
    name = snapshot.container.name or _RANDOM_ID.sub(r"\1", snapshot.container.id)
    safe = re.sub(r"[^\w.-]+", "-", name, flags=re.ASCII).strip(".-")[:60] or "container"
    moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(snapshot.time_ns // 1_000_000_000))
    return Path(f"rtdebug-{safe.removeprefix('rtdebug-')}-{moment}{further}.tar.gz")


def write_archive(snapshot: Snapshot, path: Path, replace_file: bool = True) -> int:
    """Write the file. Returns its size in bytes.

    Raises RtdebugError, UsageProblem: something is there that may not be replaced, or is no file.
    """
    with placed_file(path, replace_file) as file:
        with tarfile.open(fileobj=file, mode="w:gz", compresslevel=_LEVEL) as archive:
            for name, content in _members(snapshot):
                _add(archive, name, content, snapshot.time_ns)
        return file.tell()


def write_archive_here(snapshot: Snapshot) -> tuple[Path, int]:
    """As write_archive(), under the default name; a second one of the same second gets `-2` behind it."""
    path = default_path(snapshot)
    for number in itertools.count(2):
        try:
            return path, write_archive(snapshot, path, replace_file=False)
        except TakenProblem:
            path = default_path(snapshot, f"-{number}")
    raise AssertionError("unreachable")


def read_archive(path: Path) -> Snapshot:
    """The snapshot in a file, or in a pipe. Raises ArchiveError."""
    try:
        members = _read(path)
        _check(_object(members, "manifest.json"), path)
        plain = _object(members, "snapshot.json")
        groups = _groups(members["mappings.jsonl"])
        return _with_mappings(from_plain(Snapshot, plain), groups)
    except FormError as error:
        raise ArchiveError(f"{path}: {error.message}", error.hint) from None
    except _BROKEN as error:
        raise ArchiveError(f"{path} is no snapshot, or damaged: {_reason(error)}", _HINT) from None
    except OSError as error:
        raise ArchiveError(f"cannot read {path}: {error.strerror or error}", _HINT) from None


def _members(snapshot: Snapshot) -> Iterator[tuple[str, bytes]]:
    groups = sum(len(process.mappings) for process in snapshot.processes)
    manifest = {
        "format": FORMAT,
        "schema": snapshot.schema,
        "rtdebug": snapshot.version,
        "container": snapshot.container.name or snapshot.container.id,
        "time_ns": snapshot.time_ns,
        "processes": len(snapshot.processes),
        "mapping_groups": groups,
        "members": list(_NAMES),
    }
    yield "manifest.json", _encode(manifest)
    bare = replace(snapshot, processes=tuple(replace(process, mappings=()) for process in snapshot.processes))
    yield "snapshot.json", _encode(to_plain(bare))
    yield "mappings.jsonl", b"".join(_mapping_lines(snapshot))
    yield "accounting.json", _encode(to_plain(account(snapshot)))


def _mapping_lines(snapshot: Snapshot) -> Iterator[bytes]:
    for process in snapshot.processes:
        for group in process.mappings:
            plain = to_plain(group)
            plain["use"] = {key: value for key, value in plain["use"].items() if value is not None}
            yield _encode({"pid": process.pid, **plain})


def _encode(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii") + b"\n"


def _add(archive: tarfile.TarFile, name: str, content: bytes, time_ns: int) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = len(content), 0o600, time_ns // 1_000_000_000
    archive.addfile(member, io.BytesIO(content))


class _Bounded(io.RawIOBase):
    """The first bytes of a stream: somebody can make a small file that unpacks for ever."""

    def __init__(self, stream: gzip.GzipFile, most_bytes: int) -> None:
        super().__init__()
        self._stream, self._left_bytes = stream, most_bytes

    def read(self, count: int = -1) -> bytes:
        """As a file does. Raises ValueError behind the last byte that is allowed."""
        content = self._stream.read(count)
        self._left_bytes -= len(content)
        if self._left_bytes < 0:
            raise ValueError("it is larger than any snapshot")
        return content


def _read(path: Path) -> dict[str, bytes]:
    """The members that are ours, in the order of the file: so a pipe will do, and no link is followed."""
    found: dict[str, bytes] = {}
    with gzip.open(path) as unpacked, tarfile.open(fileobj=_Bounded(unpacked, _MOST_BYTES), mode="r|") as archive:
        for member in archive:
            content = archive.extractfile(member) if member.isreg() and not member.issparse() else None
            if member.name in _NAMES and content is not None:
                found[member.name] = content.read()
    return found


def _reason(error: Exception) -> str:
    match error:
        case KeyError():
            return f"it has no {error.args[0]}"
        case RecursionError():
            return "its lists are nested too deep"
        case _:
            return str(error)


def _object(members: dict[str, bytes], name: str) -> dict[str, Any]:
    value = json.loads(members[name])
    if not isinstance(value, dict):
        raise ValueError(f"{name} is no JSON object")
    return value


def _check(manifest: dict[str, Any], path: Path) -> None:
    if manifest.get("format") != FORMAT or not isinstance(manifest.get("schema"), int):
        raise ArchiveError(f"{path} is no snapshot of rtdebug", _HINT)
    if manifest["schema"] > SCHEMA_VERSION:
        raise ArchiveError(
            f"{path} was made by a newer rtdebug ({manifest.get('rtdebug')!r}, schema {manifest['schema']})",
            "read it with that version, or with tar and jq",
        )


def _groups(lines: bytes) -> dict[int, list[MappingGroup]]:
    groups: dict[int, list[MappingGroup]] = {}
    for line in lines.splitlines():
        plain = json.loads(line)
        if not isinstance(plain, dict) or not isinstance(plain.get("pid"), int):
            raise ValueError("a line of mappings.jsonl is no mapping of a process")
        groups.setdefault(plain["pid"], []).append(from_plain(MappingGroup, plain))
    return groups


def _with_mappings(snapshot: Snapshot, groups: dict[int, list[MappingGroup]]) -> Snapshot:
    processes = (replace(process, mappings=tuple(groups.get(process.pid, ()))) for process in snapshot.processes)
    return replace(snapshot, processes=tuple(processes))
