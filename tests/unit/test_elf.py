"""host/elf.py: functions of small ELF files of every class and byte order, and of hostile ones."""

from __future__ import annotations

import lzma
import os
import resource
import struct
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rtdebug.host import elf
from rtdebug.host.elf import ElfError, parse_elf, read_elf
from rtdebug.host.maps import read_maps

FUNC, OBJECT, IFUNC = 2, 1, 10
SYMTAB, STRTAB, DYNSYM, PROGBITS = 2, 3, 11, 1


@dataclass
class Builder:
    """Writes ELF files with a note, segments, and symbol sections with their string tables."""

    wide: bool = True
    order: str = "<"
    kind: int = 3
    segments: list[tuple[int, int, int, int]] = field(default_factory=lambda: [(0x1000, 0x401000, 0x2000, 5)])
    build_id: bytes = b""
    tables: dict[int, list[tuple[bytes, int, int, int, int]]] = field(default_factory=dict)
    """By section type: name, value, size, info, shndx."""
    debugdata: bytes = b""

    def pack(self, wide: str, narrow: str, *values: int) -> bytes:
        return struct.pack(self.order + (wide if self.wide else narrow), *values)

    def symbol(self, name: int, value: int, size: int, info: int, shndx: int) -> bytes:
        if self.wide:
            return self.pack("IBBHQQ", "", name, info, 0, shndx, value, size)
        return self.pack("", "IIIBBH", name, value, size, info, 0, shndx)

    def segment(self, kind: int, offset: int, address: int, size: int, flags: int) -> bytes:
        if self.wide:
            return self.pack("IIQQQQQQ", "", kind, flags, offset, address, address, size, size, 4)
        return self.pack("", "IIIIIIII", kind, offset, address, address, size, size, flags, 4)

    def section(self, name: int, kind: int, offset: int, size: int, link: int, entry: int) -> bytes:
        return self.pack("IIQQQQIIQQ", "IIIIIIIIII", name, kind, 0, 0, offset, size, link, 0, 1, entry)

    def build(self) -> bytes:
        head_size, segment_size, section_size = (64, 56, 64) if self.wide else (52, 32, 40)
        symbol_size = 24 if self.wide else 16
        note = b""
        if self.build_id:
            other = struct.pack(self.order + "III4s4s", 4, 4, 1, b"GNU\0", b"abi!")
            note = (
                other + struct.pack(self.order + "III4s", 4, len(self.build_id), 3, b"GNU\0") + self.build_id
            )
        body = b""
        start = head_size + segment_size * (len(self.segments) + 1)

        def place(data: bytes) -> int:
            nonlocal body
            offset = start + len(body)
            body += data
            return offset

        segments = [self.segment(4, place(note), 0, len(note), 4)]
        segments += [self.segment(1, *values) for values in self.segments]
        sections = [self.section(0, 0, 0, 0, 0, 0)]
        for kind, symbols in self.tables.items():
            names, entries = b"\0", self.symbol(0, 0, 0, 0, 0)
            for name, *rest in symbols:
                entries += self.symbol(len(names) if name else 0, *rest)
                names += name + b"\0"
            strings = len(sections) + 1
            sections.append(self.section(1, kind, place(entries), len(entries), strings, symbol_size))
            sections.append(self.section(1, STRTAB, place(names), len(names), 0, 0))
        if self.debugdata:
            sections.append(self.section(2, PROGBITS, place(self.debugdata), len(self.debugdata), 0, 0))
        section_names = b"\0x\0"[:2] + b".gnu_debugdata\0"
        sections.append(self.section(0, STRTAB, place(section_names), len(section_names), 0, 0))
        ident = b"\x7fELF" + bytes([2 if self.wide else 1, 1 if self.order == "<" else 2, 1]) + bytes(9)
        header = self.pack(
            "HHIQQQIHHHHHH",
            "HHIIIIIHHHHHH",
            *(self.kind, 62, 1, 0, head_size, start + len(body), 0, head_size),
            *(segment_size, len(segments), section_size, len(sections), len(sections) - 1),
        )
        return ident + header + b"".join(segments) + body + b"".join(sections)


def functions(*symbols: tuple[bytes, int, int]) -> list[tuple[bytes, int, int, int, int]]:
    return [(name, value, size, 0x10 | FUNC, 1) for name, value, size in symbols]


def name_at(data: bytes, address: int) -> str | None:
    symbol = parse_elf(data).symbols.find(address)
    return symbol.name if symbol else None


@pytest.mark.parametrize("wide", [True, False], ids=["64-bit", "32-bit"])
@pytest.mark.parametrize("order", ["<", ">"], ids=["little", "big"])
@pytest.mark.parametrize("table", [SYMTAB, DYNSYM], ids=["symtab", "dynsym"])
def test_every_layout(wide, order, table):
    data = Builder(
        wide=wide,
        order=order,
        build_id=bytes(range(20)),
        tables={table: functions((b"second", 0x401500, 0x20), (b"first", 0x401100, 0x400))},
    ).build()
    parsed = parse_elf(data)
    assert parsed.build_id == bytes(range(20))
    assert parsed.address_of(0x1100) == 0x401100
    assert parsed.address_of(0x3000) is None
    assert parsed.address_of(0xFFF) is None
    found = parsed.symbols.find(0x4014FF)
    assert (found.name, found.address) == ("first", 0x401100)
    assert name_at(data, 0x401500) == "second"
    assert name_at(data, 0x40151F) == "second"
    assert name_at(data, 0x401520) is None
    assert name_at(data, 0x4010FF) is None
    assert len(parsed.symbols) == 2


def test_symtab_goes_before_dynsym():
    tables = {DYNSYM: functions((b"exported", 0x1000, 16)), SYMTAB: functions((b"local", 0x1000, 16))}
    assert name_at(Builder(tables=tables).build(), 0x1000) == "local"
    tables[SYMTAB] = []
    assert name_at(Builder(tables=tables).build(), 0x1000) == "exported"


def test_only_defined_functions_count():
    symbols = [
        (b"data", 0x1000, 64, 0x10 | OBJECT, 1),
        (b"imported", 0x1010, 64, 0x10 | FUNC, 0),
        (b"", 0x1020, 64, 0x10 | FUNC, 1),
        (b"resolver", 0x2000, 64, 0x10 | IFUNC, 1),
    ]
    data = Builder(tables={DYNSYM: symbols}).build()
    assert name_at(data, 0x1030) is None
    assert name_at(data, 0x2001) == "resolver"
    assert len(parse_elf(data).symbols) == 1


def test_the_plainest_alias_and_the_innermost_function():
    symbols = functions(
        (b"__libc_malloc", 0x1000, 32),
        (b"malloc", 0x1000, 32),
        (b"__malloc", 0x1000, 32),
        (b"outer", 0x2000, 0x100),
        (b"inner", 0x2040, 0x10),
    )
    data = Builder(tables={SYMTAB: symbols}).build()
    assert name_at(data, 0x1005) == "malloc"
    assert name_at(data, 0x204F) == "inner"
    assert name_at(data, 0x2050) == "outer"


def test_a_function_without_size_ends_at_the_next_or_soon():
    data = Builder(tables={SYMTAB: functions((b"asm", 0x1000, 0), (b"next", 0x1080, 16))}).build()
    assert name_at(data, 0x107F) == "asm"
    assert name_at(data, 0x1080) == "next"
    assert name_at(data, 0x1090) is None
    data = Builder(tables={SYMTAB: functions((b"asm", 0x1000, 0))}).build()
    assert name_at(data, 0x1FFF) == "asm"
    assert name_at(data, 0x2000) is None


def test_names_are_raw_and_cut():
    symbols = functions((b"\x1b[31m\xff\n", 0x1000, 16), (b"x" * 9000, 0x2000, 16))
    data = Builder(tables={SYMTAB: symbols}).build()
    assert name_at(data, 0x1000) == "\x1b[31m\udcff\n"
    assert name_at(data, 0x2000) == "x" * elf.MAX_NAME_BYTES


def test_names_over_block_borders():
    symbols = functions(*((b"function_%04d_" % i + b"y" * 51, 0x1000 + 16 * i, 16) for i in range(2000)))
    table = parse_elf(Builder(tables={SYMTAB: symbols}).build()).symbols
    assert all(table.find(0x1000 + 16 * i + 15).name == f"function_{i:04}_" + "y" * 51 for i in range(2000))
    assert table.size_bytes < 2000 * 16 + 40_000  # packed


def mini(symbols, **options) -> bytes:
    inner = Builder(tables={SYMTAB: symbols}).build()
    return Builder(
        tables={DYNSYM: functions((b"exported", 0x1000, 16))}, debugdata=lzma.compress(inner), **options
    ).build()


def test_minidebuginfo_adds_to_dynsym():
    data = mini(functions((b"static_one", 0x1100, 16), (b"static_two", 0x1200, 16)))
    assert [name_at(data, at) for at in (0x1000, 0x1100, 0x1208)] == ["exported", "static_one", "static_two"]


@pytest.mark.parametrize(
    "debugdata",
    [
        pytest.param(b"\xfd7zXZ\0garbage", id="no xz"),
        pytest.param(lzma.compress(b"no ELF"), id="no ELF"),
        pytest.param(lzma.compress(bytes(9 << 20)), id="a bomb"),
        pytest.param(lzma.compress(b"", preset=9)[:-4], id="cut"),
        pytest.param(lzma.compress(bytes(100), preset=9), id="wants 64 MiB"),
    ],
)
def test_broken_minidebuginfo_leaves_dynsym(debugdata):
    data = Builder(tables={DYNSYM: functions((b"exported", 0x1000, 16))}, debugdata=debugdata).build()
    assert name_at(data, 0x1000) == "exported"


def test_minidebuginfo_is_not_followed_into_itself():
    data = mini(functions((b"one", 0x1100, 16)))
    nested = Builder(
        tables={DYNSYM: functions((b"outer", 0x1000, 16))}, debugdata=lzma.compress(data)
    ).build()
    assert name_at(nested, 0x1000) == "outer"
    assert name_at(nested, 0x1100) is None


GOOD = Builder(
    build_id=b"12345678", tables={SYMTAB: functions((b"f", 0x401000, 16), (b"g", 0x401010, 16))}
).build()


def patched(offset: int, form: str, value: int) -> bytes:
    data = bytearray(GOOD)
    struct.pack_into(form, data, offset, value)
    return bytes(data)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"#!/bin/sh\nexec true\n", id="script"),
        pytest.param(GOOD[:40], id="header cut"),
        pytest.param(GOOD[:-1], id="sections cut"),
        pytest.param(patched(4, "<B", 3), id="class"),
        pytest.param(patched(5, "<B", 0), id="byte order"),
        pytest.param(patched(16, "<H", 1), id="relocatable"),
        pytest.param(patched(32, "<Q", 1 << 63), id="program headers nowhere"),
        pytest.param(patched(40, "<Q", (1 << 64) - 1), id="sections nowhere"),
        pytest.param(patched(54, "<H", 55), id="size of program headers"),
        pytest.param(patched(56, "<H", 65535), id="count of program headers"),
        pytest.param(patched(58, "<H", 1), id="size of sections"),
        pytest.param(patched(60, "<H", 65535), id="count of sections"),
    ],
)  # fmt: skip
def test_hostile_files(data):
    with pytest.raises(ElfError) as caught:
        parse_elf(data)
    assert caught.value.hint


def test_symbols_that_lead_nowhere():
    sections_at = struct.unpack_from("<Q", GOOD, 40)[0]
    symtab = sections_at + 64
    for offset, form, value in [
        (symtab + 24, "<Q", 1 << 62),  # the symbols are beyond the end
        (symtab + 32, "<Q", 1 << 62),  # there are too many
        (symtab + 40, "<I", 1),  # their names are themselves
        (symtab + 40, "<I", 1 << 31),  # their names are nowhere
        (symtab + 56, "<Q", 0),  # they have no size
    ]:
        with pytest.raises(ElfError):
            parse_elf(patched(offset, form, value))
    # A name beyond the end of the names is no name.
    strings_size = symtab + 64 + 32
    assert len(parse_elf(patched(strings_size, "<Q", 3)).symbols) == 1


def test_sections_are_not_needed():
    parsed = parse_elf(patched(40, "<Q", 0))
    assert parsed.address_of(0x1000) == 0x401000
    assert parsed.build_id == b"12345678"
    assert parsed.symbols.find(0x401000) is None


def test_addresses_that_are_none():
    table = parse_elf(GOOD).symbols
    for address in (-1, 0, 1 << 64, 1 << 70):
        assert table.find(address) is None


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), min_size=1, max_size=8),
    st.integers(0, len(GOOD)),
)
def test_any_damage_is_an_elf_error_or_harmless(changes, length):
    data = bytearray(GOOD)
    for at, value in changes:
        data[at] = value
    for text in (bytes(data), bytes(data[:length])):
        try:
            parsed = parse_elf(text)
        except ElfError:
            continue
        for address in (0x401000, 0x401018):
            parsed.address_of(address)
            parsed.symbols.find(address)


def test_read_from_descriptor(tmp_path):
    path = tmp_path / "a.so"
    path.write_bytes(GOOD)
    fd = os.open(path, os.O_RDONLY)
    try:
        assert read_elf(fd).symbols.find(0x401000).name == "f"
    finally:
        os.close(fd)


def test_own_libc_has_malloc():
    """Against another witness of the addresses, the dynamic linker."""
    import ctypes

    libc = next(mapping for mapping in read_maps(os.getpid()) if "/libc.so" in mapping.path)
    fd = os.open(libc.path, os.O_RDONLY)
    try:
        parsed = read_elf(fd)
    finally:
        os.close(fd)
    loaded = ctypes.CDLL(libc.path)
    for name in ("malloc", "mmap", "madvise"):
        address = ctypes.cast(loaded[name], ctypes.c_void_p).value
        assert parsed.symbols.find(address - libc.start).name == name


MEASURE = """
import os, sys
import numpy
from rtdebug.host.elf import ElfError, read_elf
def peak_kib():
    return int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1])
before = peak_kib()
try:
    parsed = read_elf(os.open(sys.argv[1], os.O_RDONLY))
    print(len(parsed.symbols), parsed.symbols.size_bytes, peak_kib() - before)
except ElfError:
    print(0, 0, peak_kib() - before)
"""


def measure(path: Path) -> tuple[int, int, int]:
    """Functions, bytes kept, bytes at most while reading; in a process of its own with little CPU time."""
    result = subprocess.run(
        [sys.executable, "-c", MEASURE, path],
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (20, 20)),
    )
    count, kept, peak = result.stdout.split()
    return int(count), int(kept), int(peak) * 1024


def test_memory_of_a_library_with_very_many_functions(tmp_path):
    import numpy as np

    count = 400_000
    size = 24 * count
    names = b"".join(b"_ZN5torch7%07d4jit6detailEv\0" % i for i in range(count))
    symbol = [
        ("name", "u4"),
        ("info", "u1"),
        ("other", "u1"),
        ("shndx", "u2"),
        ("value", "u8"),
        ("size", "u8"),
    ]
    symbols = np.zeros(count, symbol)
    symbols["name"] = np.arange(count) * len(b"_ZN5torch700000004jit6detailEv\0")
    symbols["info"], symbols["shndx"], symbols["size"] = 0x12, 1, 16
    symbols["value"] = 0x401000 + 16 * np.arange(count)[::-1]
    path = tmp_path / "huge.so"
    path.write_bytes(_with_symbols_behind(size, len(names)) + symbols.tobytes() + names)
    functions_kept, kept_bytes, peak_bytes = measure(path)
    assert functions_kept == elf.MAX_FUNCTIONS
    assert kept_bytes < 10 << 20
    assert peak_bytes < 20 << 20


def test_memory_and_time_of_a_file_of_holes(tmp_path):
    path = tmp_path / "holes.so"
    head = _with_symbols_behind(24 << 36, 1 << 40)
    with path.open("wb") as file:
        file.write(head)
        file.truncate(1 << 42)
    count, kept_bytes, peak_bytes = measure(path)
    assert (count, kept_bytes) == (0, 0)
    assert peak_bytes < 16 << 20


def _with_symbols_behind(symbols_bytes: int, names_bytes: int) -> bytes:
    """An ELF file whose .symtab and names follow it."""
    data = bytearray(GOOD)
    symtab = struct.unpack_from("<Q", GOOD, 40)[0] + 64
    struct.pack_into("<QQ", data, symtab + 24, len(GOOD), symbols_bytes)
    struct.pack_into("<QQ", data, symtab + 64 + 24, len(GOOD) + symbols_bytes, names_bytes)
    return bytes(data)
