"""The text of smaps as a table of bytes: all digits of all mappings become numbers at once.

In one text the kernel prints the same keys for each mapping, in lines of 28 bytes: key and blanks 16, number 8, flush
right, " kB" and newline (fs/proc/task_mmu.c: __show_smap, seq_put_decimal_ull_width). So what stands between the
line `Size:` and `VmFlags:` has the same length for each mapping; Size itself may have more digits. Whatever is not
so (an old kernel, 100 GB resident in one mapping, a file called "VmFlags:") is left to host.maps.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from rtdebug.host.maps import MemoryUse, parse_maps
from rtdebug.host.text import decode
from rtdebug.snapshot.model import MappingGroup
from rtdebug.snapshot.smaps import USE_FIELDS, group_of

_LINE_BYTES = 28
_KEY, _DIGITS, _UNIT = slice(0, 16), slice(16, 24), slice(24, 28)
_FIELD = re.compile(rb"(\w+): *\d+ kB\n")
_FLAGS = b"VmFlags:"
_PLACES = (10 ** np.arange(7, -1, -1)).astype(np.float64)

_Key = tuple[bytes, ...]


def groups_by_columns(text: bytes) -> list[MappingGroup] | None:
    """The groups of mappings; None for a text of another form."""
    first, *rest = text.split(_FLAGS)
    begin = first.find(b"\n", first.find(b"\n") + 1) + 1  # behind the lines of the header and of Size
    size = len(first) - begin
    if not rest or not begin or size <= 0:
        return None
    last_flags = rest.pop().rstrip(b"\n")
    names = _field_names(first[begin:])
    figures = _figures(b"".join([first[begin:], *[block[-size:] for block in rest]]), size, len(names), len(rest) + 1)
    if figures is None:
        return None
    heads = [line for block in (b"\n" + first, *rest) for line in block[:-size].split(b"\n")]
    # of each block: flags of the mapping before, header, Size, and nothing
    if len(heads) != 4 * (len(rest) + 1):
        return None
    flags = [*heads[4::4], last_flags]
    others = size - len(names) * _LINE_BYTES
    tails = [block[len(block) - others :] for block in (first, *rest)] if others else [b""] * len(flags)
    return _grouped(heads[1::4], heads[2::4], flags, tails, figures, names)


def _field_names(block: bytes) -> list[str]:
    """The keys of the lines in kB at its beginning, in their order."""
    names: list[str] = []
    while (match := _FIELD.match(block, len(names) * _LINE_BYTES)) is not None:
        if match.end() - match.start() != _LINE_BYTES:
            break
        names.append(match[1].decode().lower() + "_bytes")
    return names


def _figures(tables: bytes, size: int, lines: int, count: int) -> np.ndarray | None:
    """Bytes by mapping and field; None if one of the tables differs in more than its digits."""
    if not lines or len(tables) != size * count:
        return None
    rows = np.frombuffer(tables, np.uint8).reshape(count, size)[:, : lines * _LINE_BYTES]
    cells = rows.reshape(count, lines, _LINE_BYTES)
    for part in (_KEY, _UNIT):
        if (cells[:, :, part] != cells[0, :, part]).any():
            return None
    digits = cells[:, :, _DIGITS] & 15  # "0" is 0x30, a blank 0x20
    figures: np.ndarray = (digits.reshape(-1, 8) @ _PLACES).reshape(count, lines) * 1024
    return figures


def _grouped(
    headers: list[bytes],
    sizes: list[bytes],
    flags: list[bytes],
    tails: list[bytes],
    figures: np.ndarray,
    names: list[str],
) -> list[MappingGroup]:
    index_of: dict[_Key, int] = {}
    indexes: list[int] = []
    examples: list[int] = []
    for position, (header, flag, tail) in enumerate(zip(headers, flags, tails, strict=True)):
        _, perms, _, *file = header.split(None, 5)
        key = (perms, flag, tail, *file)
        index = index_of.setdefault(key, len(index_of))
        if index == len(examples):
            examples.append(position)
        indexes.append(index)
    lengths = np.array([int(size[5:-3]) for size in sizes], np.float64) * 1024
    table = np.column_stack((np.ones(len(lengths)), lengths, figures))
    order = np.argsort(indexes, kind="stable")
    starts = np.searchsorted(np.array(indexes)[order], np.arange(len(examples)))
    sums = np.add.reduceat(table[order], starts, axis=0).astype(np.int64).tolist()
    return [
        _group(headers[at], flags[at], tails[at], row, names) for at, row in zip(examples, sums, strict=True)
    ]


def _group(header: bytes, flags: bytes, tail: bytes, sums: list[int], names: list[str]) -> MappingGroup:
    (mapping,) = parse_maps(decode(header))
    eligible = re.search(rb"THPeligible: +(\d)", tail)
    known = {name: value for name, value in zip(names, sums[2:], strict=True) if name in USE_FIELDS}
    group = group_of(mapping, flags.decode().strip(), None if eligible is None else eligible[1] != b"0")
    return replace(group, count=sums[0], length_bytes=sums[1], use=MemoryUse(**known))
