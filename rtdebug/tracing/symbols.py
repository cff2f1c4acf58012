"""User stacks as functions: which code of which file lies at an address of a process.

The process may be in another mount namespace, may be hostile (D13) and may exit at any time: its files
are opened through /proc/PID/map_files and /proc/PID/root, what was read is remembered, and what cannot be
had is unknown. All of it stays within a fixed amount of memory (about 15 MB), for a tracer of 45 MB.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Generic, TypeVar

from rtdebug.errors import RtdebugError
from rtdebug.host.elf import MAX_FUNCTIONS, Elf, ElfError, Names, Symbol, SymbolTable, parse_elf, read_elf
from rtdebug.host.inside import open_mapped_file, open_regular_in_root
from rtdebug.host.maps import (
    PROC,
    Mapping,
    MappingKind,
    iter_mappings,
    open_maps,
)

__all__ = ["Frame", "Symbolizer", "parse_perf_map"]

_MODULES_BYTES = 8 << 20
_PERF_MAPS_BYTES = 4 << 20
_PERF_MAP_READ_BYTES = 8 << 20
_PROCESSES_BYTES = 4 << 20
_PROCESS_BYTES = 2 << 20
_PLACES_BYTES = 2 << 20
_VDSO_BYTES = 1 << 16

# After reading a file in vain, it is read again only when this many times as long has passed: at most 5 %
# of a CPU goes into addresses that lie nowhere, and stacks of code without frame pointers are full of them.
_PATIENCE = 20

_K = TypeVar("_K")
_V = TypeVar("_V")


@dataclass(frozen=True, slots=True)
class Frame:
    """One address of a stack. Names are as the process's files say: escape them before showing them."""

    address: int
    symbol: str | None
    """Not demangled. None: not known."""
    offset_bytes: int | None
    """From the start of the symbol. Without one, the address in the module's file as addr2line takes it
    (in memory without an ELF file: from the start of the mapping). None: nothing is mapped there."""
    module: str | None
    """Path in the process's mount namespace, `[vdso]`, `[anon]`, /tmp/perf-PID.map, ..."""

    def __str__(self) -> str:
        if self.module is None or self.offset_bytes is None:
            return f"[unknown] ({self.address:#x})"
        module = _short(self.module)
        if self.symbol is None:
            return f"[unknown] ({module}+{self.offset_bytes:#x})"
        return f"{self.symbol}+{self.offset_bytes:#x} ({module})"


def _short(module: str) -> str:
    if module.startswith("/memfd:"):
        return module[1:]
    return module.rsplit("/", 1)[-1] or module


class Symbolizer:
    """Turns stacks of any number of processes into frames; each file's symbols are read once for all.

    A process's mappings are read when its first stack comes and again when an address lies in none of
    them (dlopen). Tell it of forks and execs where they are known: a forked child can then be looked up
    even after it is gone, as can every process whose files were read before. Nothing here raises, but a
    file system that does not answer (FUSE, NFS) keeps the caller waiting. Not for two threads at once.
    """

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._processes: _Lru[int, _Process] = _Lru(_PROCESSES_BYTES)
        self._modules: _Lru[_ModuleKey, Elf | None] = _Lru(_MODULES_BYTES)
        self._perf_maps: _Lru[int, _PerfMap] = _Lru(_PERF_MAPS_BYTES)
        self._places: _Lru[tuple[_ModuleKey, int], _Place] = _Lru(_PLACES_BYTES)

    def symbolize(self, pid: int, ns_pid: int | None, addresses: Sequence[int]) -> list[Frame]:
        """The frames of a stack as the kernel takes it, innermost first.

        addresses[0] is where the process was; the others are return addresses and belong to the call just
        before them.
        `pid` is of the host, `ns_pid` what the process calls itself (/tmp/perf-PID.map); None: not known.
        """
        process = self._process(pid)
        return [self._frame(process, ns_pid, address, address - bool(depth)) for depth, address in enumerate(addresses)]

    def symbolize_call(
        self, pid: int, ns_pid: int | None, addresses: Sequence[int], stack_words: Sequence[int]
    ) -> list[Frame]:
        """The frames of a stack taken in a system call, with the caller of the C library's wrapper.

        The wrapper makes no frame of its own, so `addresses` (along the frame pointers) lack its caller. It is the
        first word on the stack (or in the link register) that lies in code, unless that is the next frame already.
        """
        frames = self.symbolize(pid, ns_pid, addresses)
        for word in stack_words:
            if word in addresses[1:2]:
                break
            # looked up with a frame before it: it is a return address
            found = self.symbolize(pid, ns_pid, [*addresses[:1], word])[1:]
            if found and found[0].module is not None:
                return [*frames[:1], *found, *frames[1:]]
        return frames

    def forked(self, parent_pid: int, pid: int) -> None:
        """A child has its parent's mappings until it calls exec."""
        self.execed(pid)
        parent = self._processes.get(parent_pid)
        if parent is not None:
            child = _Process(pid, None, parent.mappings, parent.starts, dict(parent.keys))
            self._processes.put(pid, child, child.size_bytes)
        perf_map = self._perf_maps.get(parent_pid)
        if perf_map is not None:
            self._perf_maps.put(pid, perf_map, perf_map.symbols.size_bytes)

    def execed(self, pid: int) -> None:
        """Another program runs in this process: what was known of it is void."""
        self._processes.drop(pid)
        self._perf_maps.drop(pid)

    def _process(self, pid: int) -> _Process:
        start_ticks = _read_start_ticks(self._proc / str(pid))
        known = self._processes.get(pid)
        if known is not None and (start_ticks is None or known.start_ticks in (None, start_ticks)):
            known.start_ticks = start_ticks or known.start_ticks
            return known
        self.execed(pid)
        process = _Process(pid, start_ticks)
        if start_ticks is not None:
            self._read_mappings(process)
        return process

    def _read_mappings(self, process: _Process) -> None:
        mappings = _read_executable(process.pid, self._proc)
        if mappings:  # a process that is exiting has none left
            process.renew(mappings)
            self._processes.put(process.pid, process, process.size_bytes)

    def _frame(self, process: _Process, ns_pid: int | None, address: int, inside: int) -> Frame:
        """`inside` is an address of the instruction meant, `address` the one to be shown."""
        mapping = process.find(inside)
        if mapping is None and process.maps_pace.due:
            with process.maps_pace:
                self._read_mappings(process)
            mapping = process.find(inside)
            if mapping is not None:
                process.maps_pace.forget()
        if mapping is None:
            return Frame(address, None, None, None)
        place = self._place(process, mapping, inside)
        if place is not None:
            return _frame_at(place, address, address - inside, mapping.path)
        perf_map = self._perf_map(process, ns_pid)
        symbol = perf_map.symbols.find(inside) if perf_map is not None else None
        if perf_map is not None and symbol is not None:
            return Frame(address, symbol.name, address - symbol.address, perf_map.path)
        return Frame(address, None, address - mapping.start, mapping.path or "[anon]")

    # Code in files ------------------------------------------------------------------------------

    def _place(self, process: _Process, mapping: Mapping, inside: int) -> _Place | None:
        """Where in its ELF file an address lies; None when it is in none that can be read."""
        offset_bytes = inside - mapping.start + mapping.offset_bytes
        key = process.keys.get(_identity(mapping), _UNTRIED)
        if key is None:
            return None
        place = self._places.get((key, offset_bytes))
        if place is None:
            key, elf = self._module(process, mapping, key)
            address = elf.address_of(offset_bytes) if elf is not None else None
            if elf is None or address is None:
                return None
            place = _Place(address, elf.symbols.find(address))
            self._places.put((key, offset_bytes), place, place.size_bytes)
        return place

    def _module(self, process: _Process, mapping: Mapping, key: _ModuleKey) -> tuple[_ModuleKey, Elf | None]:
        if key not in self._modules:
            opened = _open_module(process.pid, mapping, self._proc)
            if opened is None:
                process.keys[_identity(mapping)] = None
                return key, None
            key, source = opened
            process.keys[_identity(mapping)] = key
            try:
                if key not in self._modules:
                    elf = _read_module(source)
                    self._modules.put(key, elf, elf.size_bytes if elf else 200)
            finally:
                if isinstance(source, int):
                    os.close(source)
        return key, self._modules.get(key)

    # Code that a program made for itself --------------------------------------------------------

    def _perf_map(self, process: _Process, ns_pid: int | None) -> _PerfMap | None:
        known = self._perf_maps.get(process.pid)
        if ns_pid is None or not process.perf_map_pace.due:
            return known
        with process.perf_map_pace:
            fresh = _read_perf_map(process.pid, ns_pid, self._proc, known)
        if fresh is None or fresh is known:
            return known
        self._perf_maps.put(process.pid, fresh, fresh.symbols.size_bytes)
        return fresh


# What is remembered -------------------------------------------------------------------------------

_ModuleKey = tuple[int, int, int]
"""Device, inode number, mtime of a file; -1, hash and length of a vDSO."""
_UNTRIED: _ModuleKey = (0, 0, 0)
_Identity = tuple[tuple[int, int], int, str]


def _identity(mapping: Mapping) -> _Identity:
    """The same for all mappings of one file in one process."""
    return (mapping.device, mapping.inode_id, mapping.path)


@dataclass(frozen=True, slots=True)
class _Place:
    """A byte of an ELF file."""

    address: int
    symbol: Symbol | None

    @property
    def size_bytes(self) -> int:
        return 400 + (2 * len(self.symbol.name) if self.symbol else 0)


def _frame_at(place: _Place, address: int, after: int, module: str) -> Frame:
    if place.symbol is None:
        return Frame(address, None, place.address + after, module)
    return Frame(address, place.symbol.name, place.address + after - place.symbol.address, module)


@dataclass(frozen=True, slots=True)
class _PerfMap:
    path: str
    version: tuple[int, int, int]
    symbols: SymbolTable


@dataclass(slots=True)
class _Pace:
    """Around a reading; says when it may be done again."""

    _began_ns: int = 0
    _next_ns: int = 0

    @property
    def due(self) -> bool:
        return time.monotonic_ns() >= self._next_ns

    def forget(self) -> None:
        """It was worth it: no need to wait."""
        self._next_ns = 0

    def __enter__(self) -> None:
        self._began_ns = time.monotonic_ns()

    def __exit__(self, *_: object) -> None:
        now_ns = time.monotonic_ns()
        self._next_ns = now_ns + _PATIENCE * (now_ns - self._began_ns)


@dataclass(slots=True)
class _Process:
    """A process's executable mappings, in address order."""

    pid: int
    start_ticks: int | None
    """Tells it from another that got the same pid; None: not looked at yet."""
    mappings: list[Mapping] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    keys: dict[_Identity, _ModuleKey | None] = field(default_factory=dict)
    """Which module a mapping is; None: no file that can be opened."""
    maps_pace: _Pace = field(default_factory=_Pace)
    perf_map_pace: _Pace = field(default_factory=_Pace)

    @property
    def size_bytes(self) -> int:
        return 1000 + sum(_size_bytes(mapping) for mapping in self.mappings)

    def renew(self, mappings: list[Mapping]) -> None:
        self.mappings = mappings
        self.starts = [mapping.start for mapping in mappings]
        identities = {_identity(mapping) for mapping in mappings}
        self.keys = {identity: key for identity, key in self.keys.items() if key is not None and identity in identities}

    def find(self, address: int) -> Mapping | None:
        index = bisect_right(self.starts, address) - 1
        found = index >= 0 and address < self.mappings[index].end
        return self.mappings[index] if found else None


def _size_bytes(mapping: Mapping) -> int:
    """With its place in a _Process, about."""
    return 500 + 2 * len(mapping.path)


class _Lru(Generic[_K, _V]):
    """Keeps what was used last, up to a total weight (and always the newest)."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._weight = 0
        self._items: OrderedDict[_K, tuple[_V, int]] = OrderedDict()

    def __contains__(self, key: _K) -> bool:
        return key in self._items

    def get(self, key: _K) -> _V | None:
        item = self._items.get(key)
        if item is None:
            return None
        self._items.move_to_end(key)
        return item[0]

    def put(self, key: _K, value: _V, weight: int) -> None:
        self.drop(key)
        self._items[key] = (value, weight)
        self._weight += weight
        while self._weight > self._limit and len(self._items) > 1:
            self.drop(next(iter(self._items)))

    def drop(self, key: _K) -> None:
        _, weight = self._items.pop(key, (None, 0))
        self._weight -= weight


# Reading a process that may be gone ---------------------------------------------------------------


def _read_start_ticks(process: Path) -> int | None:
    """Field 22 of /proc/PID/stat (proc_pid_stat(5)); None when the process is gone."""
    try:
        text = (process / "stat").read_bytes()
    except OSError:
        return None
    # The comm before it is in parentheses and may hold blanks and parentheses.
    return int(text.rpartition(b")")[2].split()[19])


def _read_executable(pid: int, proc: Path) -> list[Mapping]:
    """The executable mappings, from the lowest address up to a limit of memory; none if it is gone."""
    mappings: list[Mapping] = []
    room_bytes = _PROCESS_BYTES
    try:
        with open_maps(pid, proc) as lines:
            for mapping in iter_mappings(line for line in lines if "x" in line.split(" ", 2)[1]):
                room_bytes -= _size_bytes(mapping)
                if room_bytes < 0:
                    break
                mappings.append(mapping)
    except (OSError, RtdebugError):
        return []
    return mappings


def _open_module(pid: int, mapping: Mapping, proc: Path) -> tuple[_ModuleKey, int | bytes] | None:
    """The code behind a mapping as descriptor or image, and what tells it from others."""
    try:
        if mapping.kind is MappingKind.VDSO:
            image = _read_memory(pid, mapping, proc)
            # Code of the kernel, but the process may have changed its copy. hash() has a secret key.
            return (-1, hash(image), len(image)), image
        if not mapping.inode_id:
            return None
        fd = open_mapped_file(pid, mapping, proc)
    except OSError:
        return None
    status = os.fstat(fd)
    return (status.st_dev, status.st_ino, status.st_mtime_ns), fd


def _read_memory(pid: int, mapping: Mapping, proc: Path) -> bytes:
    with (proc / str(pid) / "mem").open("rb", buffering=0) as memory:
        memory.seek(mapping.start)
        return memory.read(min(mapping.length_bytes, _VDSO_BYTES))


def _read_module(source: int | bytes) -> Elf | None:
    with contextlib.suppress(ElfError, OSError):
        return parse_elf(source) if isinstance(source, bytes) else read_elf(source)
    return None


# perf map files -----------------------------------------------------------------------------------

_PERF_MAP_LINE = re.compile(
    rb"^(?:0x)?([0-9a-f]{1,16}) (?:0x)?([0-9a-f]{1,16}) ([^\n]+)\n", re.MULTILINE | re.IGNORECASE
)


def parse_perf_map(text: bytes) -> SymbolTable:
    """Symbols of a perf map file: lines of `START SIZE name`, hexadecimal, the last for an address counts.

    Source: tools/perf/Documentation/jit-interface.txt. Lines of another form are passed over.
    """
    import numpy as np

    starts, sizes, offsets = array("Q"), array("I"), array("I")
    for match in islice(_PERF_MAP_LINE.finditer(text), MAX_FUNCTIONS):
        starts.append(int(match[1], 16))
        sizes.append(min(int(match[2], 16), 0xFFFFFFFF))
        offsets.append(match.start(3))
    names = Names()
    if starts:
        names.add(
            len(text),
            lambda size, offset: text[offset : offset + size].replace(b"\n", b"\0"),
            set(range(offsets[-1] // Names.BLOCK_BYTES + 1)),
        )
    newest_first = np.frombuffer(starts, np.uint64)[::-1]
    _, newest = np.unique(newest_first, return_index=True)
    kept = len(starts) - 1 - newest
    return SymbolTable(
        np.frombuffer(starts, np.uint64)[kept],
        np.frombuffer(sizes, np.uint32)[kept],
        np.frombuffer(offsets, np.uint32)[kept],
        names,
    )


def _read_perf_map(pid: int, ns_pid: int, proc: Path, known: _PerfMap | None) -> _PerfMap | None:
    """The process's perf map file, read if it is not `known` already; None when there is none to trust.

    /tmp is open to all: the file must be a regular one of the process's user or of root. Of a file that is
    too long the end is read, where the newest functions are.
    """
    path = f"/tmp/perf-{ns_pid}.map"
    try:
        trusted = {0, *_read_uids(proc / str(pid))}
        fd = open_regular_in_root(proc / str(pid) / "root", path)
    except OSError:
        return None
    try:
        status = os.fstat(fd)
        version = (status.st_ino, status.st_mtime_ns, status.st_size)
        if status.st_uid not in trusted:
            return None
        if known is not None and (known.path, known.version) == (path, version):
            return known
        return _PerfMap(path, version, parse_perf_map(_read_end(fd, status.st_size)))
    except OSError:
        return None
    finally:
        os.close(fd)


def _read_end(fd: int, size_bytes: int) -> bytes:
    skipped = max(0, size_bytes - _PERF_MAP_READ_BYTES)
    text = os.pread(fd, _PERF_MAP_READ_BYTES, skipped)
    return text.partition(b"\n")[2] if skipped else text


def _read_uids(process: Path) -> list[int]:
    """Real, effective, saved and file system uid, as this user namespace sees them."""
    for line in (process / "status").read_bytes().split(b"\n"):
        if line.startswith(b"Uid:"):
            return [int(uid) for uid in line.split()[1:]]
    return []
