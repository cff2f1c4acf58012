"""Where malloc and its kin are in a process: in which mapped files, at which place of them.

A program brings its own allocator, or has that of its C library; it may be in several libraries at once. What cannot be
seen is named: a stripped static program shows no functions, and Go and Java do not call malloc for their heaps.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rtdebug.errors import RtdebugError
from rtdebug.host.elf import read_elf
from rtdebug.host.inside import open_mapped_file
from rtdebug.host.maps import PROC, MappingKind, read_maps
from rtdebug.host.maps import Mapping as MemoryMapping

PROGRAMS: Mapping[str, str] = {
    "malloc": "on_malloc",
    "valloc": "on_malloc",
    "pvalloc": "on_malloc",
    "calloc": "on_calloc",
    "realloc": "on_realloc",
    "memalign": "on_memalign",
    "aligned_alloc": "on_memalign",
    "posix_memalign": "on_posix_memalign",
    "free": "on_free",
    "cfree": "on_free",
    "__libc_free": "on_free",  # of musl: what realloc calls, and all there is in a static program without free()
}
"""The functions of an allocator, and the BPF program at the entry of each."""

_LIBRARY = re.compile(
    r"libc[.-].*so.*|ld-musl-.*|libmusl.*|lib(?:c|je|tc|mi|sn)malloc.*|libtcmalloc.*|libmimalloc.*|libsnmalloc.*"
    r"|librpmalloc.*"
)
_MAX_FILES = 8

FileKey = tuple[int, int, int]
"""Device, inode number and mtime."""


@dataclass(frozen=True, slots=True)
class Allocator:
    """One file with an allocator in it."""

    path: str
    """As the process sees it. Not escaped."""
    places: tuple[tuple[str, int], ...]
    """Name of each function and its offset in the file; no two with the same offset."""


@dataclass(frozen=True, slots=True)
class Found:
    """The allocators of a process, each with an open descriptor of its file (the caller closes it)."""

    files: tuple[tuple[int, Allocator], ...]
    unseen: str | None
    """The program whose allocations cannot be seen."""


class AllocatorFinder:
    """Finds allocators; each file is read once, however many processes map it."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._known: dict[FileKey, Allocator | None] = {}

    def find(self, pid: int) -> Found:
        """The allocators of `pid`; nothing found and nothing unseen if it has exited."""
        files: list[tuple[int, Allocator]] = []
        program: str | None = None
        for mapping in self._candidates(pid):
            program = program or mapping.path
            with contextlib.suppress(OSError):
                fd = open_mapped_file(pid, mapping, self._proc)
                allocator = self._allocator(fd, mapping.path)
                if allocator is None:
                    os.close(fd)
                else:
                    files.append((fd, allocator))
        return Found(tuple(files), program if program is not None and not files else None)

    def _candidates(self, pid: int) -> Iterator[MemoryMapping]:
        """The program itself, then the libraries whose name is that of an allocator; each file once."""
        try:
            mappings = [
                mapping
                for mapping in read_maps(pid, self._proc)
                if mapping.executable and mapping.kind is MappingKind.FILE
            ]
            program = (self._proc / str(pid) / "exe").stat().st_ino
        except (RtdebugError, OSError):
            return
        seen: set[tuple[tuple[int, int], int]] = set()
        mappings.sort(key=lambda mapping: mapping.inode_id != program)
        for mapping in mappings:
            file = mapping.device, mapping.inode_id
            is_wanted = mapping.inode_id == program or _LIBRARY.fullmatch(mapping.path.rsplit("/", 1)[-1])
            if is_wanted and file not in seen and len(seen) < _MAX_FILES:
                seen.add(file)
                yield mapping

    def _allocator(self, fd: int, path: str) -> Allocator | None:
        status = os.fstat(fd)
        key = status.st_dev, status.st_ino, status.st_mtime_ns
        if key not in self._known:
            self._known[key] = _read_allocator(fd, path)
        return self._known[key]


def _read_allocator(fd: int, path: str) -> Allocator | None:
    """None for a file that has no malloc and free of its own."""
    try:
        elf = read_elf(fd)
    except (RtdebugError, OSError):
        return None
    addresses = elf.symbols.named(PROGRAMS)
    if "malloc" not in addresses or not addresses.keys() & {"free", "__libc_free"}:
        return None
    places: dict[int, str] = {}
    for name in PROGRAMS:  # aliases (cfree is free, memalign is aligned_alloc) have one place
        offset = elf.offset_of(addresses[name]) if name in addresses else None
        if offset is not None:
            offset += cheap_entry(os.pread(fd, _ENTRY_BYTES, offset), name)
            places.setdefault(offset, name)
    return Allocator(path, tuple((name, offset) for offset, name in places.items()))


_ENTRY_BYTES = 16
_LANDING = re.compile(rb"\xf3\x0f\x1e\xfa", re.DOTALL)
_PUSH = rb"(?=\x41?[\x50-\x57])"
_NULL_TEST = re.compile(rb"\x48\x85\xff(?:\x74.|\x0f\x84....)" + _PUSH, re.DOTALL)


def cheap_entry(code: bytes, name: str, machine: str = platform.machine()) -> int:
    """How far behind the entry of a function a uprobe costs least, with its arguments and stack still as they came.

    The kernel steps through an instruction under a uprobe at the price of two exceptions, but does a push or a nop by
    itself (arch/x86/kernel/uprobes.c). So an endbr64 is passed over, and in free() the test for NULL too: free(NULL)
    does nothing. In a virtual machine that makes a hit five times as cheap.
    """
    if machine != "x86_64":
        return 0
    landing = _LANDING.match(code)
    passed = landing.end() if landing else 0
    test = _NULL_TEST.match(code, passed) if PROGRAMS[name] == "on_free" else None
    return test.end() if test else passed
