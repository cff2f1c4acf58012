"""The maps of bpf/sites.h and bpf/malloc.bpf.c: their layouts, and what user space puts into them."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from rtdebug.host import bpf

SAMPLE_BYTES = 512 << 10
"""One sample in so many allocated bytes, on average."""
UNPAIRED = -4096
"""Stack id of what was freed and never seen allocated."""
KINDS: Mapping[int, str] = {1: "mmap", 2: "brk", 3: "fault", 4: "malloc"}
COUNTS = ("sites", "mappings", "allocations", "threads", "entries", "returns")
"""enum counted: those that found no room, then how often the programs ran."""

_DRAWS = 1024
_WEIGHTS = 256
_WEIGHT_BYTES = SAMPLE_BYTES // 32
_TOP_WORDS = 4
_STACK_DEPTH = 127
_KEY = struct.Struct("=IIiIQ")
_VALUE = struct.Struct(f"=4Q{_TOP_WORDS}Q")
_ADDRESS_KEY = struct.Struct("=QII")
_U32 = struct.Struct("=I")


@dataclass(frozen=True, slots=True)
class SiteKey:
    """struct site_key: a place in a program."""

    pid: int
    life: int
    """Of the program that runs in the process: another one after each exec."""
    stack_id: int
    """Negative: the kernel could not take the stack."""
    kind: str
    caller: int


@dataclass(frozen=True, slots=True)
class SiteTotals:
    """struct site, counted since the process is watched. Of malloc all figures are estimates from samples."""

    allocated_bytes: int
    freed_bytes: int
    allocations: int
    """Calls; of fault and malloc: samples."""
    frees: int
    top: tuple[int, ...]
    """The first words on the stack when it was first seen."""


def draws() -> Iterator[tuple[int, int]]:
    """The exponential distribution with the mean SAMPLE_BYTES, cut into parts of equal probability: (from, width).

    Within a part all values are taken for equally likely, in the endless last one up to twice what it is beyond on
    average.
    """
    edges = [round(-SAMPLE_BYTES * math.log(1 - index / _DRAWS)) for index in range(_DRAWS)]
    edges.append(edges[-1] + 2 * SAMPLE_BYTES)
    for low, high in pairwise(edges):
        yield low, high - low


def weights() -> Iterator[int]:
    """What a sampled allocation of s bytes stands for beyond s, by ranges of s: s / (1 - exp(-s / mean)) - s."""
    for index in range(_WEIGHTS):
        size_bytes = (index + 0.5) * _WEIGHT_BYTES
        yield round(size_bytes / -math.expm1(-size_bytes / SAMPLE_BYTES) - size_bytes)


class SiteMaps:
    """The maps of the unit SITES by their descriptors."""

    def __init__(self, maps: Mapping[str, int]) -> None:
        self._maps = maps

    @cached_property
    def _cpus(self) -> int:
        return bpf.possible_cpus()

    def fill_tables(self) -> None:
        """Put in what malloc.bpf.c draws from. Raises BpfError."""
        for index, (low, width) in enumerate(draws()):
            bpf.update(self._maps["draws"], _U32.pack(index), struct.pack("=QQ", low, width))
        for index, more in enumerate(weights()):
            bpf.update(self._maps["weights"], _U32.pack(index), struct.pack("=Q", more))

    def watch(self, pid: int, life: int, heap_end: int | None) -> int:
        """Begin to watch a process unless the programs do already; returns its life. Raises BpfError."""
        known = bpf.lookup(self._maps["watched"], _U32.pack(pid), 4)
        if known is not None:
            return int(_U32.unpack(known)[0])
        if heap_end is not None:
            bpf.update(self._maps["heap_ends"], _U32.pack(pid), struct.pack("=Q", heap_end))
        bpf.update(self._maps["watched"], _U32.pack(pid), _U32.pack(life))
        return life

    def unwatch(self, pid: int) -> None:
        """Let go of a process that is no longer wanted."""
        bpf.delete(self._maps["watched"], _U32.pack(pid))

    def lives(self) -> set[tuple[int, int]]:
        """Pid and life of each process that is watched now."""
        found: set[tuple[int, int]] = set()
        for keys, values, count in bpf.lookup_batch(self._maps["watched"], 4, 4):
            found |= set(zip(struct.unpack(f"={count}I", keys), struct.unpack(f"={count}I", values), strict=True))
        return found

    def sites(self) -> dict[SiteKey, SiteTotals]:
        """All that was added up. Raises BpfError."""
        found: dict[SiteKey, SiteTotals] = {}
        for keys, values, _ in bpf.lookup_batch(self._maps["sites"], _KEY.size, _VALUE.size):
            for key, value in zip(_KEY.iter_unpack(keys), _VALUE.iter_unpack(values), strict=True):
                pid, life, stack_id, kind, caller = key
                site = SiteKey(pid, life, stack_id, KINDS.get(kind, "unknown"), caller)
                found[site] = SiteTotals(value[0], value[1], value[2], value[3], value[4:])
        return found

    def stack(self, stack_id: int) -> list[int]:
        """The addresses of a stack, the innermost first."""
        raw = bpf.lookup(self._maps["stacks"], struct.pack("=i", stack_id), _STACK_DEPTH * 8) if stack_id >= 0 else None
        return [address for address in struct.unpack(f"={len(raw) // 8}Q", raw) if address] if raw else []

    def counts(self) -> dict[str, int]:
        """By the names of COUNTS."""
        found = {}
        for number, name in enumerate(COUNTS):
            raw = bpf.lookup(self._maps["counts"], _U32.pack(number), 8 * self._cpus) or b""
            found[name] = sum(struct.unpack(f"={len(raw) // 8}Q", raw))
        return found

    def forget(self, gone: set[tuple[int, int]]) -> None:
        """Free what belongs to processes that have exited or called exec. Raises BpfError."""
        for name, key, value_bytes in (
            ("sites", _KEY, _VALUE.size),
            ("allocations", _ADDRESS_KEY, 32),
            ("regions", _ADDRESS_KEY, 32),
            ("region_ends", _ADDRESS_KEY, 8),
        ):
            place = 0 if key is _KEY else 1  # of the pid among the key's fields; the life follows it
            for raw in list(self._keys(name, key.size, value_bytes)):
                fields = key.unpack(raw)
                if (fields[place], fields[place + 1]) in gone:
                    bpf.delete(self._maps[name], raw)

    def _keys(self, name: str, key_bytes: int, value_bytes: int) -> Iterator[bytes]:
        for keys, _, count in bpf.lookup_batch(self._maps[name], key_bytes, value_bytes):
            for index in range(count):
                yield keys[index * key_bytes : (index + 1) * key_bytes]
