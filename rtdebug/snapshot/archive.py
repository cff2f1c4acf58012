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
import json
import os
import re
import tarfile
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from rtdebug.errors import RtdebugError, UsageProblem
from rtdebug.snapshot.accounting import account
from rtdebug.snapshot.codec import FormError, from_plain, to_plain
from rtdebug.snapshot.model import SCHEMA_VERSION, MappingGroup, Snapshot

FORMAT = "rtdebug snapshot"
_LEVEL = 3  # level 9 takes ten times as long, for a tenth less
_MOST_MEMBER_BYTES = 1 << 30
"""A file somebody sends can be made to unpack for ever."""
_HINT = "a snapshot is made by: rtdebug snapshot CONTAINER"


class ArchiveError(RtdebugError):
    """The file is no snapshot that this version can read, or is damaged."""


def default_path(snapshot: Snapshot) -> Path:
    """A name with container and time, in the current folder; nothing of the container's name leads elsewhere."""
    name = snapshot.container.name or snapshot.container.id[:12]
    safe = re.sub(r"[^\w.-]+", "-", name, flags=re.ASCII).strip(".-")[:60] or "container"
    moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(snapshot.time_ns // 1_000_000_000))
    return Path(f"rtdebug-{safe}-{moment}.tar.gz")


def refuse_existing(path: Path | None, force: bool) -> None:
    """Raises UsageProblem if a file is there and may not be replaced."""
    if path is not None and path.exists() and not force:
        raise UsageProblem(f"{path} is there already", "give another --file, or --force to replace it")


def write_archive(snapshot: Snapshot, path: Path) -> int:
    """Write the file; an existing one is replaced. Returns its size in bytes. Raises RtdebugError."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            with tarfile.open(fileobj=file, mode="w:gz", compresslevel=_LEVEL) as archive:
                for name, content in _members(snapshot):
                    _add(archive, name, content, snapshot.time_ns)
            size_bytes = file.tell()
        unfinished.replace(path)
    except OSError as error:
        raise RtdebugError(f"cannot write {path}: {error.strerror}", "give another place with --file") from None
    finally:
        with suppress(OSError):
            unfinished.unlink()
    return size_bytes


def read_archive(path: Path) -> Snapshot:
    """The snapshot in a file. Raises ArchiveError."""
    try:
        with tarfile.open(path, mode="r:gz") as archive:
            manifest = _object(archive, "manifest.json")
            _check(manifest, path)
            plain = _object(archive, "snapshot.json")
            groups = _groups(archive)
        return _with_mappings(from_plain(Snapshot, plain), groups)
    except FormError as error:
        raise ArchiveError(f"{path}: {error.message}", error.hint) from None
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, KeyError, ValueError) as error:
        raise ArchiveError(f"{path} is no snapshot, or damaged: {error}", _HINT) from None
    except OSError as error:
        raise ArchiveError(f"cannot read {path}: {error.strerror}", _HINT) from None


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
        "members": ["manifest.json", "snapshot.json", "mappings.jsonl", "accounting.json"],
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


def _read(archive: tarfile.TarFile, name: str) -> bytes:
    member = archive.getmember(name)
    file = archive.extractfile(member)
    if file is None or member.size > _MOST_MEMBER_BYTES:
        raise ValueError(f"{name} is no file, or larger than any snapshot")
    return file.read()


def _object(archive: tarfile.TarFile, name: str) -> dict[str, Any]:
    value = json.loads(_read(archive, name))
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


def _groups(archive: tarfile.TarFile) -> dict[int, list[MappingGroup]]:
    groups: dict[int, list[MappingGroup]] = {}
    for line in _read(archive, "mappings.jsonl").splitlines():
        plain = json.loads(line)
        groups.setdefault(plain["pid"], []).append(from_plain(MappingGroup, plain))
    return groups


def _with_mappings(snapshot: Snapshot, groups: dict[int, list[MappingGroup]]) -> Snapshot:
    processes = (replace(process, mappings=tuple(groups.get(process.pid, ()))) for process in snapshot.processes)
    return replace(snapshot, processes=tuple(processes))
