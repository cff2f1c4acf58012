"""Which mapping of a process is meant: by an address inside it, or by its name."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rtdebug.errors import TargetError, UsageProblem
from rtdebug.host.maps import Mapping, MappingKind
from rtdebug.madvise.advice import Memory

_ADDRESS = re.compile(r"(?:0x)?([0-9a-f]{4,16})(?:-(?:0x)?[0-9a-f]{4,16})?", re.IGNORECASE)
_MOST_CANDIDATES = 12
_SHMEM = frozenset({MappingKind.SHM, MappingKind.MEMFD, MappingKind.SYSV, MappingKind.DEV_ZERO, MappingKind.DRM})
_ANON = frozenset({MappingKind.ANON, MappingKind.ANON_NAME, MappingKind.HEAP, MappingKind.STACK})


def memory_of(mapping: Mapping) -> Memory | None:
    """The kind of memory as far as advice tells them apart; None: the kernel's own (vdso) or a device's.

    A private mapping of a file counts as the file's, though what was written to it is anonymous.
    """
    if mapping.kind in _SHMEM or mapping.path.startswith("[anon_shmem:"):
        return Memory.SHMEM
    if mapping.kind in _ANON:
        return Memory.ANON
    return Memory.FILE if mapping.kind is MappingKind.FILE else None


def label(mapping: Mapping) -> str:
    """A mapping's name for people: that of the kernel, or `anon`. Not escaped."""
    return mapping.path or "anon"


def find_mapping(mappings: Sequence[Mapping], wanted: str) -> Mapping:
    """The mapping that `wanted` names: an address inside it (with or without 0x; a range as `list` shows it), the
    whole name, or a part of it as a path or word: `heap`, `libc.so.6`, `data.bin`.

    Raises TargetError: none of that name, or several, which are listed; UsageProblem for an empty name.
    """
    text = wanted.strip()
    if not text:
        raise UsageProblem("--mapping names nothing", "give an address inside it, or its name")
    # a program can give a file the name of an address: with 0x it is never taken for a name
    if not text.lower().startswith("0x") and (found := _by_name(mappings, text)):
        return _the_one(found, wanted)
    if match := _ADDRESS.fullmatch(text):
        address = int(match[1], 16)
        for mapping in mappings:
            if mapping.start <= address < mapping.end:
                return mapping
        raise TargetError(f"nothing is mapped at {address:#x}", _listed(_largest(mappings), "its largest mappings are"))
    raise TargetError(f"no mapping {wanted!r}", _listed(_largest(mappings), "its largest mappings are"))


def _by_name(mappings: Sequence[Mapping], text: str) -> list[Mapping]:
    return (
        [mapping for mapping in mappings if mapping.path == text]
        or [mapping for mapping in mappings if mapping.path in (f"[{text}]", f"/{text}")]
        or [mapping for mapping in mappings if mapping.path.rpartition("/")[2] == text]
        or [
            mapping
            for mapping in mappings
            if re.fullmatch(rf"(\[anon:|\[anon_shmem:|/memfd:){re.escape(text)}\]?", mapping.path)
        ]
    )


def _the_one(found: Sequence[Mapping], wanted: str) -> Mapping:
    if len(found) > 1:
        raise TargetError(
            f"{wanted!r} is ambiguous: {len(found)} mappings", _listed(_largest(found), "give an address inside one of")
        )
    return found[0]


def _largest(mappings: Sequence[Mapping]) -> list[Mapping]:
    return sorted(mappings, key=lambda mapping: -mapping.length_bytes)[:_MOST_CANDIDATES]


def _listed(mappings: Sequence[Mapping], introduction: str) -> str:
    if not mappings:
        return "the process has none"
    lines = (
        f"{mapping.start:#x}  {mapping.length_bytes // 1024:>10,} KiB  {mapping.perms}  {label(mapping)[:80]}"
        for mapping in mappings
    )
    return "\n".join([f"{introduction}:", *lines])
