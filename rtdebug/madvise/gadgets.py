"""Looks for the few bytes of machine code that a borrowed thread runs, in what its process has mapped executable."""

from __future__ import annotations

import os
from collections.abc import Iterator
from collections.abc import Mapping as MappingOf
from pathlib import Path

from rtdebug.host.maps import Mapping, MappingKind
from rtdebug.madvise.fitness import CannotInject

_CHUNK_BYTES = 4 << 20
_MOST_BYTES = 256 << 20
_OVERLAP_BYTES = 16


def find_gadgets(
    pid: int, mappings: list[Mapping], patterns: MappingOf[str, bytes], proc: Path = Path("/proc")
) -> dict[str, int]:
    """The address of each pattern. Raises CannotInject if one is nowhere; OSError if it may not be read."""
    found: dict[str, int] = {}
    with (proc / str(pid) / "mem").open("rb", buffering=0) as memory:
        for address, code in _code(memory.fileno(), mappings):
            for name, pattern in patterns.items():
                if name not in found and (offset := code.find(pattern)) >= 0:
                    found[name] = address + offset
            if len(found) == len(patterns):
                return found
    raise CannotInject(
        f"process {pid} has no code to make a system call with ({', '.join(sorted(set(patterns) - set(found)))})",
        "COLD, PAGEOUT, WILLNEED and COLLAPSE need nothing from the process",
    )


def _code(memory_fd: int, mappings: list[Mapping]) -> Iterator[tuple[int, bytes]]:
    """Executable memory in pieces that overlap; what never goes away and is sure to have it comes first."""
    left = _MOST_BYTES
    for mapping in sorted(filter(_is_code, mappings), key=_rank):
        for start in range(mapping.start, mapping.end, _CHUNK_BYTES):
            length = min(_CHUNK_BYTES + _OVERLAP_BYTES, mapping.end - start)
            try:
                yield start, os.pread(memory_fd, length, start)
            except OSError:  # a page that cannot be read, or the mapping has gone
                break
            left -= length
            if left <= 0:
                return


def _is_code(mapping: Mapping) -> bool:
    """Of a file or the vdso: what a just-in-time compiler made may be gone in a moment."""
    return mapping.perms.startswith("r-x") and mapping.kind in (MappingKind.FILE, MappingKind.VDSO)


def _rank(mapping: Mapping) -> int:
    name = Path(mapping.path).name
    if mapping.kind is MappingKind.VDSO:
        return 0
    if name.startswith(("libc.", "libc-", "ld-", "ld.")):
        return 1
    return 2
