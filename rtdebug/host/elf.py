"""Function symbols of an ELF file, read in bounded memory from a file that nobody vouches for.

A program or library of a container may be truncated, absurd or made to hurt (D13): whatever does not add
up is an ElfError, and what is read, kept and looked through has an upper limit. The file is read with
pread(2), never mapped: a mapped file that is truncated meanwhile kills the reader with SIGBUS.

Names are left as they are in the file; C++ and Rust names are mangled.

Sources: elf(5), gABI, and "MiniDebugInfo" in the GDB manual for .gnu_debugdata.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rtdebug.errors import RtdebugError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    U64 = npt.NDArray[np.uint64]
    U32 = npt.NDArray[np.uint32]

__all__ = ["Elf", "ElfError", "Names", "Segment", "Symbol", "SymbolTable", "parse_elf", "read_elf"]

MAX_SEGMENTS = 1024
MAX_SECTIONS = 1 << 14
MAX_SECTION_NAMES_BYTES = 1 << 20
MAX_NOTE_BYTES = 1 << 16
MAX_BUILD_ID_BYTES = 64
MAX_SYMBOLS = 1 << 22
"""Symbols of any kind that are looked through."""
MAX_FUNCTIONS = 300_000
"""Functions kept, 16 bytes each; LLVM has 150,000."""
MAX_STRINGS_BYTES = 1 << 26
MAX_PACKED_NAMES_BYTES = 4 << 20
MAX_NAME_BYTES = 4096
MAX_DEBUGDATA_BYTES = 4 << 20
MAX_UNPACKED_DEBUGDATA_BYTES = 8 << 20
XZ_MEMORY_BYTES = 12 << 20
"""xz -6, what everybody uses here, needs 9 MiB."""


class ElfError(RtdebugError):
    """Not an ELF program or library, or a broken one."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "its functions are shown as addresses")


@dataclass(frozen=True, slots=True)
class Segment:
    """A PT_LOAD program header: which bytes of the file are at which address."""

    offset_bytes: int
    address: int
    file_size_bytes: int
    executable: bool


@dataclass(frozen=True, slots=True)
class Symbol:
    """A function. Addresses are those in the file, before the loader moves it."""

    name: str
    """As in the file; bytes that are not UTF-8 as surrogate escapes, cut after 4096 bytes."""
    address: int


@dataclass(frozen=True, slots=True)
class Elf:
    """What symbolisation needs of an ELF file."""

    segments: tuple[Segment, ...]
    build_id: bytes | None
    symbols: SymbolTable

    @property
    def size_bytes(self) -> int:
        """Memory in use, about."""
        return 2000 + 300 * len(self.segments) + self.symbols.size_bytes

    def address_of(self, offset_bytes: int) -> int | None:
        """Address of a byte of the file; None when it is not loaded. Executable segments come first."""
        found = [
            (segment.address + offset_bytes - segment.offset_bytes) % (1 << 64)
            for segment in sorted(self.segments, key=lambda segment: not segment.executable)
            if 0 <= offset_bytes - segment.offset_bytes < segment.file_size_bytes
        ]
        return found[0] if found else None

    def offset_of(self, address: int) -> int | None:
        """Place in the file of what is loaded at `address`; None when nothing is."""
        for segment in self.segments:
            if 0 <= address - segment.address < segment.file_size_bytes:
                return address - segment.address + segment.offset_bytes
        return None


def read_elf(fd: int) -> Elf:
    """Reads an open ELF file: .symtab, else .dynsym and .gnu_debugdata. Raises ElfError, OSError.

    Keeps at most about 10 MB and takes at most about 25 MB more while reading.
    """
    return _parse(_Image(lambda size, offset: os.pread(fd, size, offset), os.fstat(fd).st_size))


def parse_elf(data: bytes) -> Elf:
    """As read_elf, for an image in memory (the vDSO)."""
    return _parse(_image_of(data))


# Symbols ------------------------------------------------------------------------------------------


class Names:
    """NUL-ended names found by their offset, kept compressed: mangled C++ shrinks to a tenth."""

    BLOCK_BYTES = 1 << 15
    """Compressed one by one."""

    def __init__(self) -> None:
        self._blocks: dict[int, bytes] = {}
        self._packed_bytes = 0
        self._end = 0

    @property
    def packed_bytes(self) -> int:
        """Memory in use."""
        return self._packed_bytes

    @property
    def end_bytes(self) -> int:
        """Offset at which the next table begins."""
        return self._end

    def add(self, size_bytes: int, read: Callable[[int, int], bytes], wanted: set[int]) -> None:
        """Appends a table of names; `read(size, offset)` gives its bytes, `wanted` are the blocks needed."""
        first = self._end // Names.BLOCK_BYTES
        last = (size_bytes - 1) // Names.BLOCK_BYTES
        for number in sorted(wanted | {number + 1 for number in wanted}):  # a name may end in the next
            if number > last or self._packed_bytes > MAX_PACKED_NAMES_BYTES:
                break
            begin = number * Names.BLOCK_BYTES
            text = read(min(Names.BLOCK_BYTES, size_bytes - begin), begin)
            packed = zlib.compress(text if number < last else text + b"\0", 1)
            self._blocks[first + number] = packed
            self._packed_bytes += len(packed) + 100  # and Python's own
        self._end += (last + 1) * Names.BLOCK_BYTES

    def at(self, offset_bytes: int) -> str:
        """The name at this offset; "" when there is none."""
        number, begin = divmod(offset_bytes, Names.BLOCK_BYTES)
        name = b""
        while len(name) < MAX_NAME_BYTES and number in self._blocks:
            text = zlib.decompress(self._blocks[number])
            stop = text.find(b"\0", begin)
            name += text[begin:] if stop < 0 else text[begin:stop]
            if stop >= 0:
                break
            number, begin = number + 1, 0
        return name[:MAX_NAME_BYTES].decode("utf-8", "surrogateescape")

    def offsets_of(self, names: Collection[str]) -> dict[int, str]:
        """Where each of these names begins, as often as it is there: also as the end of another (`free` in `xfree`)."""
        found: dict[int, str] = {}
        for number, packed in self._blocks.items():
            text = zlib.decompress(packed)
            if number + 1 in self._blocks:  # a name may end in the next
                text += zlib.decompress(self._blocks[number + 1])[:MAX_NAME_BYTES]
            for name in names:
                wanted = name.encode() + b"\0"
                place = text.find(wanted)
                while 0 <= place < Names.BLOCK_BYTES:
                    found[number * Names.BLOCK_BYTES + place] = name
                    place = text.find(wanted, place + 1)
        return found


class SymbolTable:
    """Functions by address: three numpy arrays and the names, 16 bytes per function and its packed name.

    `addresses` are in rising order; `name_offsets` are offsets in `names`. A size of 0 is unknown.
    """

    __slots__ = ("_addresses", "_name_offsets", "_names", "_sizes")

    # Functions looked at before the nearest: aliases, and a function that lies inside another.
    _LOOK_BACK = 16
    # How far a function of unknown size (assembly) is believed to reach.
    _UNSIZED_BYTES = 4096

    def __init__(self, addresses: U64, sizes: U32, name_offsets: U32, names: Names) -> None:
        self._addresses = addresses
        self._sizes = sizes
        self._name_offsets = name_offsets
        self._names = names

    def __len__(self) -> int:
        return len(self._addresses)

    @property
    def size_bytes(self) -> int:
        """Memory in use."""
        return 16 * len(self) + self._names.packed_bytes

    def find(self, address: int) -> Symbol | None:
        """The function this address lies in; the plainest of its names (malloc, not __libc_malloc)."""
        group = self._group(address)
        if not group:
            return None
        name = min((self._names.at(int(self._name_offsets[i])) for i in group), key=_plainness)
        return Symbol(name, int(self._addresses[group[0]])) if name else None

    def named(self, names: Collection[str]) -> dict[str, int]:
        """Addresses of the functions that have one of these names; those that there are."""
        import numpy as np

        found: dict[str, int] = {}
        for offset, name in self._names.offsets_of(names).items():
            for index in np.flatnonzero(self._name_offsets == offset)[:1]:
                found.setdefault(name, int(self._addresses[index]))
        return found

    def _group(self, address: int) -> list[int]:
        """Indices of the innermost functions that hold the address; all have the same start."""
        import numpy as np

        if not 0 <= address < 1 << 64:
            return []
        nearest = int(np.searchsorted(self._addresses, np.uint64(address), side="right")) - 1
        group: list[int] = []
        for index in range(nearest, max(nearest - self._LOOK_BACK, -1), -1):
            start = int(self._addresses[index])
            if group and start != int(self._addresses[group[0]]):
                break
            if address - start < int(self._sizes[index]):
                group.append(index)
        if not group and nearest >= 0 and self._sizes[nearest] == 0:
            near = address - int(self._addresses[nearest]) < self._UNSIZED_BYTES
            return [nearest] if near else []
        return group


def _plainness(name: str) -> tuple[bool, int, int, str]:
    return not name, len(name) - len(name.lstrip("_")), len(name), name


# The file -----------------------------------------------------------------------------------------

_ET_EXEC, _ET_DYN = 2, 3
_PT_LOAD, _PT_NOTE = 1, 4
_PF_X = 1
_SHT_SYMTAB, _SHT_STRTAB, _SHT_DYNSYM = 2, 3, 11
_SHN_XINDEX = 0xFFFF
_STT_FUNC, _STT_GNU_IFUNC = 2, 10
_NT_GNU_BUILD_ID = 3
_CHUNK_SYMBOLS = 1 << 16


@dataclass(frozen=True, slots=True)
class _Image:
    """Bytes at offsets, whole or not at all."""

    read_at: Callable[[int, int], bytes]
    """size, offset."""
    size_bytes: int

    def read(self, size: int, offset: int) -> bytes:
        if offset + size > self.size_bytes:
            raise ElfError(f"ELF file of {self.size_bytes} bytes ends before byte {offset + size}")
        data = self.read_at(size, offset)
        if len(data) != size:
            raise ElfError(f"ELF file was cut while it was read: no {size} bytes at {offset}")
        return data


def _image_of(data: bytes) -> _Image:
    return _Image(lambda size, offset: data[offset : offset + size], len(data))


@dataclass(frozen=True, slots=True)
class _Section:
    name: int
    kind: int
    offset: int
    size: int
    link: int
    entry_size: int


@dataclass(frozen=True, slots=True)
class _Layout:
    """Word size and byte order, as formats of struct and a numpy dtype."""

    wide: bool
    order: str

    @property
    def header(self) -> struct.Struct:
        return struct.Struct(self.order + ("HHIQQQIHHHHHH" if self.wide else "HHIIIIIHHHHHH"))

    @property
    def segment(self) -> struct.Struct:
        return struct.Struct(self.order + ("IIQQQQQQ" if self.wide else "IIIIIIII"))

    @property
    def section(self) -> struct.Struct:
        return struct.Struct(self.order + ("IIQQQQIIQQ" if self.wide else "IIIIIIIIII"))

    def symbol(self) -> np.dtype[Any]:
        import numpy as np

        word = "u8" if self.wide else "u4"
        value = [("value", word), ("size", word)]
        info = [("info", "u1"), ("other", "u1"), ("shndx", "u2")]
        members = [("name", "u4"), *info, *value] if self.wide else [("name", "u4"), *value, *info]
        return np.dtype([(name, self.order + kind) for name, kind in members])


def _parse(image: _Image) -> Elf:
    layout = _layout(image.read(16, 0))
    header = layout.header.unpack(image.read(layout.header.size, 16))
    kind, _, _, _, segments_at, sections_at, _, _, segment_size, segment_count, section_size = header[:11]
    if kind not in (_ET_EXEC, _ET_DYN):
        raise ElfError(f"ELF file of type {kind} is neither program nor library")
    segments, notes = _segments(image, layout, segments_at, segment_size, segment_count)
    sections = _sections(image, layout, sections_at, section_size, *header[11:])
    return Elf(segments, _build_id(image, layout, notes), _functions(image, layout, *sections))


def _layout(ident: bytes) -> _Layout:
    if ident[:4] != b"\x7fELF":
        raise ElfError("not an ELF file")
    if ident[4] not in (1, 2) or ident[5] not in (1, 2):
        raise ElfError(f"ELF file of unknown class {ident[4]} or byte order {ident[5]}")
    return _Layout(wide=ident[4] == 2, order="<" if ident[5] == 1 else ">")


def _segments(
    image: _Image, layout: _Layout, offset: int, entry_size: int, count: int
) -> tuple[tuple[Segment, ...], list[tuple[int, int, int]]]:
    """PT_LOAD segments, and offset, size and alignment of the notes."""
    if count and (entry_size != layout.segment.size or count > MAX_SEGMENTS):
        raise ElfError(f"ELF file with {count} program headers of {entry_size} bytes")
    segments: list[Segment] = []
    notes: list[tuple[int, int, int]] = []
    for values in layout.segment.iter_unpack(image.read(count * layout.segment.size, offset)):
        if layout.wide:
            kind, flags, begin, address, _, size, _, align = values
        else:
            kind, begin, address, _, size, _, flags, align = values
        if kind == _PT_LOAD:
            segments.append(Segment(begin, address, size, bool(flags & _PF_X)))
        elif kind == _PT_NOTE:
            notes.append((begin, size, align))
    return tuple(segments), notes


def _sections(
    image: _Image, layout: _Layout, offset: int, entry_size: int, count: int, names_index: int
) -> tuple[list[_Section], int]:
    """The section headers, and which of them holds the section names; none in a file without them."""
    if not offset:
        return [], 0
    if entry_size != layout.section.size:
        raise ElfError(f"ELF file with section headers of {entry_size} bytes")
    # Too many for the ELF header: the numbers are in section 0 (gABI, "Extended section numbering").
    first = _section(layout.section.unpack(image.read(entry_size, offset)))
    count = count or first.size
    names_index = first.link if names_index == _SHN_XINDEX else names_index
    if count > MAX_SECTIONS:
        raise ElfError(f"ELF file with {count} sections")
    data = image.read(count * entry_size, offset)
    return [_section(values) for values in layout.section.iter_unpack(data)], names_index


def _section(values: tuple[int, ...]) -> _Section:
    name, kind, _, _, offset, size, link, _, _, entry_size = values
    return _Section(name, kind, offset, size, link, entry_size)


def _build_id(image: _Image, layout: _Layout, notes: list[tuple[int, int, int]]) -> bytes | None:
    head = struct.Struct(layout.order + "III")
    for begin, size, align in notes:
        if size > MAX_NOTE_BYTES:
            continue
        data = image.read(size, begin)
        step = 8 if align == 8 else 4
        at = 0
        while at + head.size <= len(data):
            name_size, text_size, kind = head.unpack_from(data, at)
            name_at = at + head.size
            text_at = name_at + _round_up(name_size, step)
            if kind == _NT_GNU_BUILD_ID and data[name_at : name_at + name_size] == b"GNU\0":
                return data[text_at : text_at + min(text_size, MAX_BUILD_ID_BYTES)]
            at = text_at + _round_up(text_size, step)
    return None


def _round_up(size: int, step: int) -> int:
    return -(-size // step) * step


def _functions(image: _Image, layout: _Layout, sections: list[_Section], names_index: int) -> SymbolTable:
    tables = _Functions()
    tables.add(image, layout, _SHT_SYMTAB, sections)
    if not tables.count:
        tables.add(image, layout, _SHT_DYNSYM, sections)
        with contextlib.suppress(ElfError):  # .dynsym is good without it
            _add_debugdata(tables, image, sections, names_index)
    return tables.table()


def _add_debugdata(tables: _Functions, image: _Image, sections: list[_Section], names_index: int) -> None:
    """MiniDebugInfo: an xz-compressed ELF file with the .symtab of the functions that .dynsym lacks."""
    section = _section_named(b".gnu_debugdata", image, sections, names_index)
    if section is None or section.size > MAX_DEBUGDATA_BYTES:
        return
    inner = _image_of(_unpack_xz(image.read(section.size, section.offset)))
    layout = _layout(inner.read(16, 0))
    header = layout.header.unpack(inner.read(layout.header.size, 16))
    inner_sections, _ = _sections(inner, layout, header[5], header[10], *header[11:])
    tables.add(inner, layout, _SHT_SYMTAB, inner_sections)


def _section_named(name: bytes, image: _Image, sections: list[_Section], names_index: int) -> _Section | None:
    if not names_index < len(sections):
        return None
    table = sections[names_index]
    names = image.read(min(table.size, MAX_SECTION_NAMES_BYTES), table.offset)
    found = (section for section in sections if names.startswith(name + b"\0", section.name))
    return next(found, None)


def _unpack_xz(data: bytes) -> bytes:
    import lzma

    unpacker = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=XZ_MEMORY_BYTES)
    try:
        unpacked = unpacker.decompress(data, max_length=MAX_UNPACKED_DEBUGDATA_BYTES)
    except lzma.LZMAError as error:
        raise ElfError(f".gnu_debugdata: {error}") from None
    if not unpacker.eof:
        raise ElfError(".gnu_debugdata is cut or too long")
    return unpacked


class _Functions:
    """Collects the functions of up to three symbol sections."""

    def __init__(self) -> None:
        self.count = 0
        self._addresses: list[U64] = []
        self._sizes: list[U32] = []
        self._name_offsets: list[U32] = []
        self._names = Names()

    def add(self, image: _Image, layout: _Layout, kind: int, sections: list[_Section]) -> None:
        """Adds the first section of this kind, if there is one."""
        section = next((section for section in sections if section.kind == kind), None)
        if section is None:
            return
        if not section.link < len(sections) or sections[section.link].kind != _SHT_STRTAB:
            raise ElfError("ELF file with a symbol table that has no names")
        strings = sections[section.link]
        strings_size = min(strings.size, MAX_STRINGS_BYTES)
        base = self._names.end_bytes
        wanted: set[int] = set()
        for functions in _chunks(image, layout, section):
            named = functions[functions["name"] < strings_size]
            self._keep(named[: MAX_FUNCTIONS - self.count], base, wanted)
        if wanted:
            self._names.add(strings_size, lambda size, at: image.read(size, strings.offset + at), wanted)

    def _keep(self, functions: npt.NDArray[Any], base: int, wanted: set[int]) -> None:
        import numpy as np

        if not len(functions):
            return
        self.count += len(functions)
        names = functions["name"].astype(np.uint32)
        wanted.update(np.unique(names // Names.BLOCK_BYTES).tolist())
        self._addresses.append(functions["value"].astype(np.uint64))
        self._sizes.append(np.minimum(functions["size"], 0xFFFFFFFF).astype(np.uint32))
        self._name_offsets.append(names + np.uint32(base))

    def table(self) -> SymbolTable:
        """The table of all; empties this."""
        import numpy as np

        if not self.count:
            return SymbolTable(np.zeros(0, np.uint64), np.zeros(0, np.uint32), np.zeros(0, np.uint32), self._names)
        # One column after the other, each dropped when done, to hold little at once.
        addresses = np.concatenate(self._addresses)
        self._addresses.clear()
        order = np.argsort(addresses, kind="stable").astype(np.uint32)
        addresses = addresses[order]
        sizes = np.concatenate(self._sizes)[order]
        self._sizes.clear()
        name_offsets = np.concatenate(self._name_offsets)[order]
        self._name_offsets.clear()
        return SymbolTable(addresses, sizes, name_offsets, self._names)


def _chunks(image: _Image, layout: _Layout, section: _Section) -> Iterator[npt.NDArray[Any]]:
    """The defined functions of a symbol section."""
    import numpy as np

    symbol = layout.symbol()
    if section.entry_size != symbol.itemsize:
        raise ElfError(f"ELF file with symbols of {section.entry_size} bytes")
    count = min(section.size // symbol.itemsize, MAX_SYMBOLS)
    for first in range(0, count, _CHUNK_SYMBOLS):
        size = min(_CHUNK_SYMBOLS, count - first) * symbol.itemsize
        symbols = np.frombuffer(image.read(size, section.offset + first * symbol.itemsize), symbol)
        kind = symbols["info"] & 0xF
        function = (kind == _STT_FUNC) | (kind == _STT_GNU_IFUNC)
        yield symbols[function & (symbols["shndx"] != 0) & (symbols["name"] != 0)]
