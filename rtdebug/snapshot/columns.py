"""The text of smaps as a table of bytes: all digits of all mappings become numbers at once.

In one text the kernel prints the same keys for each mapping, in lines of 28 bytes: key and blanks 16, number 8, flush
right, " kB" and newline (fs/proc/task_mmu.c: __show_smap, seq_put_decimal_ull_width). Behind them stand those that are
no sizes: THPeligible, ProtectionKey, VmFlags. Mappings whose text is the same but for the address are counted, and
looked at once. Whatever is not so (an old kernel, 100 GB resident in one mapping) is left to host.maps.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
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
_HEAD = re.compile(rb" [r-][w-][x-][sp] [0-9a-f]+ [0-9a-f]+:[0-9a-f]+ \d+(?: [^\n]*)?\Z")
_SIZE = b"\nSize:"
_LAST_LINE = b"\nVmFlags:"
_PART_BYTES = 1 << 20
_FLAGS = re.compile(rb"^VmFlags:(.*)", re.MULTILINE)
_ELIGIBLE = re.compile(rb"^THPeligible:\s+(\d)", re.MULTILINE)  # tabs since v5.2
_PROTECTION_KEY = re.compile(rb"^ProtectionKey:.*\n", re.MULTILINE)
_SHORT_LINE = re.compile(rb"\nFilePmdMapped:[ \d]{9} kB\n")
"""A byte short since Linux kernel commit 60fbf0ab5da1 ("mm,thp: stats for file backed THP") (in v5.4). Set right, with
the tabs of THPeligible, by "/proc/PID/smaps: consistent whitespace output format" (of July 2020).
"""

_Table = npt.NDArray[np.int64]
_Key = tuple[bytes, bytes]
"""The line of maps from behind the address on, and the lines that are no sizes."""


def groups_by_columns(text: bytes) -> list[MappingGroup] | None:
    """The groups of mappings; None for a text of another form."""
    counts: dict[_Key, int] = {}
    for key in _entries(text):
        counts[key] = counts.get(key, 0) + 1
    bodies = [body for _, body in counts]
    begins = [body.find(b"\n") + 1 for body in bodies]  # behind the number of Size
    if not bodies or not all(begins) or not all(_HEAD.match(head) for head, _ in counts):
        return None
    names = _field_names(bodies[0][begins[0] :])
    ends = [begin + len(names) * _LINE_BYTES for begin in begins]
    if any(b" kB" in body[end:] for body, end in zip(bodies, ends, strict=True)):  # a figure of another width, or last
        return None
    figures = _figures([body[begin:end] for body, begin, end in zip(bodies, begins, ends, strict=True)], len(names))
    try:
        sizes = [int(body[: begin - len(b" kB\n")]) * 1024 for body, begin in zip(bodies, begins, strict=True)]
    except ValueError:
        return None
    if figures is None:
        return None
    keys = [_group_key(head, body[end:]) for (head, body), end in zip(counts, ends, strict=True)]
    return _grouped(keys, list(counts.values()), np.column_stack((sizes, figures)), names)


def _entries(text: bytes) -> Iterator[_Key]:
    """Of each mapping the line of maps from behind the address on, and all that is below `Size:`.

    The kernel escapes newlines in names: no name can forge a line.
    """
    is_short = _SHORT_LINE.search(text, 0, _PART_BYTES) is not None
    for part in _parts(text):
        if is_short:
            part = part.replace(b"\nFilePmdMapped:", b"\nFilePmdMapped: ")
        head, *pieces = part.split(_SIZE)
        for piece in pieces:
            body, _, following = piece.rpartition(b"\n")
            yield head[head.find(b" ") :], body
            head = following


def _parts(text: bytes) -> Iterator[bytes]:
    """Of some 1 MiB, whole mappings each, for they are copied: one process can have 50 MiB of smaps."""
    begin = 0
    while begin < len(text):
        flags = text.find(_LAST_LINE, begin + _PART_BYTES)
        end = text.find(b"\n", flags + 1) + 1 if flags >= 0 else 0
        end = end or len(text)
        yield text[begin:end]
        begin = end


def _field_names(block: bytes) -> list[str]:
    """The keys of the lines in kB at its beginning, in their order."""
    names: list[str] = []
    while (match := _FIELD.match(block, len(names) * _LINE_BYTES)) is not None:
        if match.end() - match.start() != _LINE_BYTES:
            break
        names.append(match[1].decode().lower() + "_bytes")
    return names


def _figures(tables: Sequence[bytes], lines: int) -> _Table | None:
    """Bytes by mapping and field; None if a line does not end where it should."""
    joined = b"".join(tables)
    if not lines or len(joined) != lines * _LINE_BYTES * len(tables):
        return None
    words = np.frombuffer(joined, "<u4").reshape(len(tables), lines, _LINE_WORDS)
    if (words[:, :, -1] != _UNIT).any():
        return None
    return _numbers(np.ascontiguousarray(words[:, :, 4:6]).view("<u8")[:, :, 0]) * 1024


def _numbers(digits: npt.NDArray[np.uint64]) -> _Table:
    """Eight digits each, blanks in front, as numbers: neighbours are joined to two, four and eight digits."""
    value = digits & np.uint64(0x0F0F0F0F0F0F0F0F)  # "0" is 0x30, a blank 0x20
    for base, bits, mask in ((10, 8, 0x00FF00FF00FF00FF), (100, 16, 0x0000FFFF0000FFFF), (10000, 32, 0xFFFFFFFF)):
        value = (value * np.uint64(base) + (value >> np.uint64(bits))) & np.uint64(mask)
    return value.astype(np.int64)


def _grouped(keys: Sequence[_Key], counts: Sequence[int], table: _Table, names: list[str]) -> list[MappingGroup]:
    """Rows of `table`, each of so many mappings, added up where their keys are equal."""
    index_of: dict[_Key, int] = {}
    chosen = np.array([index_of.setdefault(key, len(index_of)) for key in keys])
    order = np.argsort(chosen, kind="stable")
    starts = np.searchsorted(chosen[order], np.arange(len(index_of)))
    weights = np.array(counts)
    sums = np.add.reduceat((table * weights[:, None])[order], starts, axis=0).tolist()
    totals = np.add.reduceat(weights[order], starts).tolist()
    make = _maker(tuple(names))
    return [make(*key, count, row) for key, count, row in zip(index_of, totals, sums, strict=True)]


def _group_key(head: bytes, tail: bytes) -> _Key:
    """Without what parts no groups: where in the file it begins, and its protection key."""
    _, perms, _, file = head.split(b" ", 3)
    return b" %s 00000000 %s" % (perms, file), _PROTECTION_KEY.sub(b"", tail)


_Maker = Callable[[bytes, bytes, int, list[int]], MappingGroup]


@lru_cache(maxsize=4)
def _maker(names: tuple[str, ...]) -> _Maker:
    """What makes a group of the sums of these fields."""
    places = [names.index(name) + 1 if name in names else None for name in USE_FIELDS]

    def make(head: bytes, tail: bytes, count: int, sums: list[int]) -> MappingGroup:
        mapping, vm_flags, eligible = _named(head, tail)
        use = MemoryUse(*[None if place is None else sums[place] for place in places])
        return MappingGroup(
            mapping.kind, mapping.path, mapping.deleted, mapping.perms, mapping.device, mapping.inode_id,
            vm_flags, eligible, count, sums[0], use,
        )  # fmt: skip

    return make


@lru_cache(maxsize=4096)
def _named(head: bytes, tail: bytes) -> tuple[Mapping, str | None, bool | None]:
    """Many processes map the same libraries."""
    (mapping,) = parse_maps(decode(b"0-0" + head))
    flags = _FLAGS.search(tail)
    eligible = _ELIGIBLE.search(tail)
    return mapping, decode(flags[1]).strip() if flags else None, None if eligible is None else eligible[1] != b"0"
