"""The text of smaps as a table of bytes: all digits of all mappings become numbers at once.

In one text the kernel prints the same keys for each mapping, in lines of 28 bytes: key and blanks 16, number 8, flush
right, " kB" and newline (fs/proc/task_mmu.c: __show_smap, seq_put_decimal_ull_width). So what stands between the
line `Size:` and `VmFlags:` has the same length for each mapping; Size itself may have more digits. Whatever is not
so (an old kernel, 100 GB resident in one mapping, a file called "VmFlags:") is left to host.maps.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from rtdebug.host.maps import Mapping, MemoryUse, parse_maps
from rtdebug.host.text import decode
from rtdebug.snapshot.model import MappingGroup
from rtdebug.snapshot.smaps import USE_FIELDS

_LINE_BYTES = 28
_LINE_WORDS = _LINE_BYTES // 4
_UNIT = int.from_bytes(b" kB\n", "little")
_FIELD = re.compile(rb"(\w+): *\d+ kB\n")
_FLAGS = b"VmFlags:"

_Table = npt.NDArray[np.int64]


def groups_by_columns(text: bytes) -> list[MappingGroup] | None:
    """The groups of mappings; None for a text of another form."""
    first, *rest = text.split(_FLAGS)
    begin = first.find(b"\n", first.find(b"\n") + 1) + 1  # behind the lines of the header and of Size
    size = len(first) - begin
    if not rest or not begin or size <= 0:
        return None
    names = _field_names(first[begin:])
    last_flags = rest.pop().rstrip(b"\n")
    tables = b"".join([first[begin:], *[block[-size:] for block in rest]])
    figures = _figures(tables, size, len(names), len(rest) + 1)
    if figures is None:
        return None
    # of each block: flags of the mapping before, header, Size, and nothing behind the last newline
    heads = b"".join([b"\n", first[:-size], *[block[:-size] for block in rest]]).split(b"\n")
    if len(heads) != 3 * (len(rest) + 1) + 1:
        return None
    flags = [*heads[3:-1:3], last_flags]
    others = size - len(names) * _LINE_BYTES
    tails = [tables[end - others : end] for end in range(size, len(tables) + 1, size)]
    try:
        sizes = [int(line.removeprefix(b"Size:")[:-3]) * 1024 for line in heads[2::3]]
    except ValueError:
        return None
    return _grouped(heads[1::3], flags, tails, np.column_stack((sizes, figures)), names)


def _field_names(block: bytes) -> list[str]:
    """The keys of the lines in kB at its beginning, in their order."""
    names: list[str] = []
    while (match := _FIELD.match(block, len(names) * _LINE_BYTES)) is not None:
        if match.end() - match.start() != _LINE_BYTES:
            break
        names.append(match[1].decode().lower() + "_bytes")
    return names


def _figures(tables: bytes, size: int, lines: int, count: int) -> _Table | None:
    """Bytes by mapping and field; None if a line does not end where it should."""
    if not lines or len(tables) != size * count:
        return None
    rows = np.frombuffer(tables, np.uint8).reshape(count, size)[:, : lines * _LINE_BYTES]
    words = np.ascontiguousarray(rows).view("<u4").reshape(count, lines, _LINE_WORDS)
    if (words[:, :, -1] != _UNIT).any():
        return None
    return _numbers(np.ascontiguousarray(words[:, :, 4:6]).view("<u8")[:, :, 0]) * 1024


def _numbers(digits: npt.NDArray[np.uint64]) -> _Table:
    """Eight digits each, blanks in front, as numbers: neighbours are joined to two, four and eight digits."""
    value = digits & np.uint64(0x0F0F0F0F0F0F0F0F)  # "0" is 0x30, a blank 0x20
    for base, bits, mask in ((10, 8, 0x00FF00FF00FF00FF), (100, 16, 0x0000FFFF0000FFFF), (10000, 32, 0xFFFFFFFF)):
        value = (value * np.uint64(base) + (value >> np.uint64(bits))) & np.uint64(mask)
    return value.astype(np.int64)


def _grouped(
    headers: list[bytes], flags: list[bytes], tails: list[bytes], table: _Table, names: list[str]
) -> list[MappingGroup]:
    """Twice: by the text behind the address, which is cheap, and then without the offset in the file."""
    texts = [header[header.index(b" ") :] for header in headers]
    index_of: dict[tuple[bytes, bytes, bytes], int] = {}
    indexes = [index_of.setdefault(key, len(index_of)) for key in zip(texts, flags, tails, strict=True)]
    finals: dict[tuple[bytes, bytes, bytes], int] = {}
    examples = list(index_of)
    final_of = [finals.setdefault(_without_offset(*key), len(finals)) for key in examples]
    chosen = np.array(final_of)[indexes]
    order = np.argsort(chosen, kind="stable")
    starts = np.searchsorted(chosen[order], np.arange(len(finals)))
    sums = np.add.reduceat(table[order], starts, axis=0).tolist()
    counts = np.bincount(chosen).tolist()
    make = _maker(tuple(names))
    return [make(*key, count, row) for key, count, row in zip(finals, counts, sums, strict=True)]


def _without_offset(text: bytes, flags: bytes, tail: bytes) -> tuple[bytes, bytes, bytes]:
    _, perms, _, file = text.split(b" ", 3)
    return b" %s 00000000 %s" % (perms, file), flags, tail


_Maker = Callable[[bytes, bytes, bytes, int, list[int]], MappingGroup]


@lru_cache(maxsize=4)
def _maker(names: tuple[str, ...]) -> _Maker:
    """What makes a group of the sums of these fields."""
    places = [names.index(name) + 1 if name in names else None for name in USE_FIELDS]

    def make(text: bytes, flags: bytes, tail: bytes, count: int, sums: list[int]) -> MappingGroup:
        mapping, vm_flags, eligible = _named(text, flags, tail)
        use = MemoryUse(*[None if place is None else sums[place] for place in places])
        return MappingGroup(
            mapping.kind, mapping.path, mapping.deleted, mapping.perms, mapping.device, mapping.inode_id,
            vm_flags, eligible, count, sums[0], use,
        )  # fmt: skip

    return make


@lru_cache(maxsize=4096)
def _named(text: bytes, flags: bytes, tail: bytes) -> tuple[Mapping, str, bool | None]:
    """Many processes map the same libraries."""
    (mapping,) = parse_maps(decode(b"0-0" + text))
    eligible = re.search(rb"THPeligible: +(\d)", tail)
    return mapping, decode(flags).strip(), None if eligible is None else eligible[1] != b"0"
