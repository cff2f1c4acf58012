"""tracing/symbols.py on a /proc of our own making: what is read, trusted, remembered and forgotten."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtdebug.tracing import symbols
from rtdebug.tracing.symbols import Frame, Symbolizer, parse_perf_map

PID, NS_PID, UID = 4711, 7, 4242
CODE, JIT, GAP = 0x7F0000400000, 0x7F0000900000, 0x7F0000800000


def elf_with(name: bytes, address: int = 0x1100, size: int = 0x40) -> bytes:
    """A library with one function; its code is at offset 0x1000 of the file and address 0x1000."""
    names = b"\0" + name + b"\0"
    entries = bytes(24) + struct.pack("<IBBHQQ", 1, 0x12, 0, 1, address, size)
    at = 64 + 56
    sections = bytes(64)
    sections += struct.pack("<IIQQQQIIQQ", 0, 2, 0, 0, at, len(entries), 2, 0, 8, 24)
    sections += struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, at + len(entries), len(names), 0, 0, 1, 0)
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    sections_at = at + len(entries) + len(names)
    header = struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, sections_at, 0, 64, 56, 1, 64, 3, 0)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0x1000, 0x1000, 0x1000, 0x3000, 0x3000, 4096)
    return ident + header + segment + entries + names + sections


class FakeProcess:
    """A process with one library and one area of code made at run time, below a /proc of its own."""

    def __init__(self, proc: Path, pid: int = PID, library: bytes | None = None) -> None:
        self.folder = proc / str(pid)
        self.root = self.folder / "root"
        (self.root / "lib").mkdir(parents=True)
        (self.root / "tmp").mkdir()
        self.library = self.root / "lib/liba b.so"
        self.library.write_bytes(library or elf_with(b"do_work"))
        self.write_stat(1000)
        (self.folder / "status").write_text(f"Name:\tx\nUid:\t{UID}\t{UID}\t{UID}\t{UID}\n")
        self.write_maps()

    def write_stat(self, start_ticks: int) -> None:
        fields = " ".join(["S", *["1"] * 18, str(start_ticks), "5"])
        (self.folder / "stat").write_text(f"{PID} (a) b) c) {fields}\n")

    def write_maps(self, *more: str) -> None:
        inode_id = self.library.stat().st_ino
        lines = [
            f"{CODE - 0x1000:x}-{CODE:x} r--p 00000000 08:01 {inode_id}  /lib/liba b.so",
            f"{CODE:x}-{CODE + 0x3000:x} r-xp 00001000 08:01 {inode_id}  /lib/liba b.so",
            *more,
            f"{JIT:x}-{JIT + 0x2000:x} r-xp 00000000 00:00 0 ",
            "7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0  [stack]",
        ]
        (self.folder / "maps").write_text("\n".join(lines) + "\n")

    def write_perf_map(self, text: str, uid: int = UID, ns_pid: int = NS_PID) -> Path:
        path = self.root / f"tmp/perf-{ns_pid}.map"
        path.write_text(text)
        if os.getuid() == 0:
            os.chown(path, uid, -1)
        elif uid == UID:
            (self.folder / "status").write_text(f"Uid:\t0\t{os.getuid()}\t0\t0\n")
        return path

    def vanish(self) -> None:
        self.folder.rename(self.folder.with_name("gone"))


@pytest.fixture
def process(tmp_path) -> FakeProcess:
    return FakeProcess(tmp_path)


@pytest.fixture
def symbolizer(tmp_path) -> Symbolizer:
    return Symbolizer(tmp_path)


def text_of(symbolizer: Symbolizer, address: int, pid: int = PID, ns_pid: int | None = NS_PID) -> str:
    return str(symbolizer.symbolize(pid, ns_pid, [address])[0])


# Frames -------------------------------------------------------------------------------------------


def test_frames_of_a_stack(process, symbolizer):
    stack = [CODE + 0x100, CODE + 0x140, CODE + 0x100, GAP]
    assert symbolizer.symbolize(PID, NS_PID, stack) == [
        Frame(CODE + 0x100, "do_work", 0, "/lib/liba b.so"),  # where it was
        Frame(CODE + 0x140, "do_work", 0x40, "/lib/liba b.so"),  # after its last instruction, a call
        Frame(CODE + 0x100, None, 0x1100, "/lib/liba b.so"),  # before its first
        Frame(GAP, None, None, None),
    ]


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        (Frame(0x7F01, "malloc", 0x12, "/usr/lib/libc.so.6"), "malloc+0x12 (libc.so.6)"),
        (Frame(0x7F01, "f", 0, "/memfd:runc_cloned:/proc/exe"), "f+0x0 (memfd:runc_cloned:/proc/exe)"),
        (Frame(0x7F01, "clock", 1, "[vdso]"), "clock+0x1 ([vdso])"),
        (Frame(0x7F01, None, 0xAB, "/opt/app"), "[unknown] (app+0xab)"),
        (Frame(0x7F01, None, None, None), "[unknown] (0x7f01)"),
    ],
)  # fmt: skip
def test_text(frame, text):
    assert str(frame) == text


def test_code_without_a_file(process, symbolizer):
    assert text_of(symbolizer, JIT + 0x10) == "[unknown] ([anon]+0x10)"


def test_file_that_is_no_elf_is_taken_as_code_made_at_run_time(process, symbolizer):
    process.library.write_bytes(b"cached code")
    process.write_perf_map(f"{CODE + 0x100:x} 10 aot\n")
    assert text_of(symbolizer, CODE + 0x105) == "aot+0x5 (perf-7.map)"
    assert text_of(symbolizer, CODE + 0x205) == "[unknown] (liba b.so+0x205)"


def test_hostile_addresses(process, symbolizer):
    for address in (0, 1, (1 << 64) - 1, CODE + 0x3000):
        frames = symbolizer.symbolize(PID, NS_PID, [address, address])
        assert [frame.symbol for frame in frames] == [None, None]
    assert symbolizer.symbolize(PID, NS_PID, []) == []


# What leads out of the container ------------------------------------------------------------------


def test_a_link_in_the_container_does_not_lead_out(process, symbolizer, tmp_path):
    outside = tmp_path / "outside"
    process.library.rename(outside)
    process.library.symlink_to(outside)
    assert text_of(symbolizer, CODE + 0x100) == "[unknown] (liba b.so+0x100)"


def test_another_file_at_the_path_is_not_believed(process, symbolizer):
    process.library.rename(process.library.with_name("old"))
    process.library.write_bytes(elf_with(b"wrong"))
    assert text_of(symbolizer, CODE + 0x100) == "[unknown] (liba b.so+0x100)"


# What is remembered -------------------------------------------------------------------------------


def test_mapping_that_came_later(process, symbolizer):
    assert text_of(symbolizer, GAP + 0x10) == f"[unknown] ({GAP + 0x10:#x})"
    fresh = Symbolizer(symbolizer._proc)
    assert text_of(fresh, CODE + 0x100) == "do_work+0x0 (liba b.so)"
    process.write_maps(f"{GAP:x}-{GAP + 0x1000:x} r-xp 00000000 00:00 0 ")
    assert text_of(fresh, GAP + 0x10) == "[unknown] ([anon]+0x10)"


def test_addresses_that_lie_nowhere_are_not_looked_for_every_time(process, symbolizer, monkeypatch):
    reads = []
    original = symbols._read_executable
    monkeypatch.setattr(symbols, "_read_executable", lambda *args: reads.append(1) or original(*args))
    monkeypatch.setattr(symbols, "_PATIENCE", 10**9)
    for _ in range(23):
        symbolizer.symbolize(PID, NS_PID, [GAP, GAP + 1, GAP + 2])
    assert len(reads) == 2


def test_process_that_is_gone(process, symbolizer, tmp_path):
    assert text_of(symbolizer, CODE + 0x100) == "do_work+0x0 (liba b.so)"
    process.vanish()
    assert text_of(symbolizer, CODE + 0x101) == "do_work+0x1 (liba b.so)"
    assert text_of(Symbolizer(tmp_path), CODE + 0x101) == f"[unknown] ({CODE + 0x101:#x})"


def test_process_that_is_exiting_has_no_mappings_left(process, symbolizer):
    text_of(symbolizer, CODE + 0x100)
    (process.folder / "maps").write_text("")
    text_of(symbolizer, GAP)
    assert text_of(symbolizer, CODE + 0x101) == "do_work+0x1 (liba b.so)"


def test_pid_that_was_used_again(process, symbolizer):
    text_of(symbolizer, CODE + 0x100)
    process.write_stat(1001)
    (process.folder / "maps").write_text("1000-2000 r-xp 00000000 00:00 0 \n")
    assert text_of(symbolizer, CODE + 0x100) == f"[unknown] ({CODE + 0x100:#x})"


def test_exec(process, symbolizer):
    text_of(symbolizer, CODE + 0x100)
    (process.folder / "maps").write_text("1000-2000 r-xp 00000000 00:00 0 \n")
    assert text_of(symbolizer, CODE + 0x100) == "do_work+0x0 (liba b.so)"
    symbolizer.execed(PID)
    assert text_of(symbolizer, CODE + 0x100) == f"[unknown] ({CODE + 0x100:#x})"


def test_fork(process, symbolizer):
    process.write_perf_map(f"{JIT:x} 10 hot\n")
    text_of(symbolizer, CODE + 0x100)
    text_of(symbolizer, JIT)
    symbolizer.forked(PID, 4712)
    assert text_of(symbolizer, CODE + 0x101, pid=4712, ns_pid=8) == "do_work+0x1 (liba b.so)"
    assert text_of(symbolizer, JIT + 1, pid=4712, ns_pid=8) == "hot+0x1 (perf-7.map)"
    symbolizer.forked(1, 4712)  # the pid is used again, by the child of a stranger
    assert text_of(symbolizer, CODE + 0x101, pid=4712) == f"[unknown] ({CODE + 0x101:#x})"


def test_one_file_is_read_once_for_all_processes(process, symbolizer, tmp_path, monkeypatch):
    other = FakeProcess(tmp_path, 4712)
    other.library.unlink()
    os.link(process.library, other.library)
    other.write_maps()
    reads = []
    original = symbols.read_elf
    monkeypatch.setattr(symbols, "read_elf", lambda fd: reads.append(1) or original(fd))
    for pid in (PID, 4712, PID):
        for at in range(0x100, 0x110):
            assert text_of(symbolizer, CODE + at, pid=pid).startswith("do_work")
    assert len(reads) == 1


def test_no_descriptor_is_kept(process, symbolizer):
    process.write_perf_map(f"{JIT:x} 10 hot\n")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for address in (CODE + 0x100, JIT, GAP):
        text_of(symbolizer, address)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_process_of_very_many_mappings_is_bounded(process, symbolizer):
    name = "/x" * 1000
    many = [
        f"{GAP + i * 0x2000:x}-{GAP + i * 0x2000 + 0x1000:x} r-xp 0 08:01 9 {name}{i}" for i in range(3000)
    ]
    (process.folder / "maps").write_text("\n".join(many) + "\n")
    assert text_of(symbolizer, GAP + 0x10).endswith("x0+0x10)")
    assert text_of(symbolizer, GAP + 2999 * 0x2000).startswith("[unknown] (0x")
    assert len(symbols._read_executable(PID, symbolizer._proc)) * 4000 < 2 << 20


def test_lru_keeps_the_used_and_stays_below_its_limit():
    lru: symbols._Lru[str, int] = symbols._Lru(10)
    lru.put("a", 1, 4)
    lru.put("b", 2, 4)
    assert lru.get("a") == 1
    lru.put("c", 3, 4)
    assert (lru.get("a"), lru.get("b"), lru.get("c")) == (1, None, 3)
    lru.put("big", 4, 1000)
    assert (lru.get("a"), lru.get("c"), lru.get("big")) == (None, None, 4)
    lru.put("small", 5, 1)
    assert (lru.get("big"), lru.get("small")) == (None, 5)
    lru.drop("nothing")
    lru.put("small", 6, 9)
    lru.put("x", 7, 1)
    assert (lru.get("small"), lru.get("x")) == (6, 7)


# perf map files -----------------------------------------------------------------------------------


def names_at(text: bytes, *addresses: int) -> list[str | None]:
    table = parse_perf_map(text)
    return [symbol.name if (symbol := table.find(address)) else None for address in addresses]


def test_perf_map_lines():
    text = b"""\
7f10 10 LazyCompile:~f /app/a b.js:3:1
0x7F30 0x8 [\x1b[31m\xff]
not a line
7f40 10
7f50 zz name
11112222333344445 10 too long
7f60 4 last
7f70 10 cut"""
    assert names_at(text, 0x7F10, 0x7F1F, 0x7F20, 0x7F30, 0x7F38, 0x7F45, 0x7F50, 0x7F63, 0x7F70) == [
        "LazyCompile:~f /app/a b.js:3:1",
        "LazyCompile:~f /app/a b.js:3:1",
        None,
        "[\x1b[31m\udcff]",
        None,
        None,
        None,
        "last",
        None,
    ]


def test_perf_map_the_last_for_an_address_counts():
    assert names_at(b"100 10 old_\n200 10 other\n100 20 __new\n", 0x105, 0x115, 0x200) == [
        "__new",
        "__new",
        "other",
    ]


def test_perf_map_longer_than_a_block_of_names():
    text = b"".join(b"%x 10 function_%d\n" % (0x1000 + 16 * i, i) for i in range(5000))
    table = parse_perf_map(text)
    assert all(table.find(0x1000 + 16 * i + 3).name == f"function_{i}" for i in range(0, 5000, 7))


@given(st.binary(max_size=200))
def test_perf_map_of_anything(text):
    parse_perf_map(text).find(0x1000)
    assert parse_perf_map(b"").find(0) is None


def test_perf_map_that_grows(process, symbolizer, monkeypatch):
    monkeypatch.setattr(symbols, "_PATIENCE", 0)
    assert text_of(symbolizer, JIT + 0x105) == "[unknown] ([anon]+0x105)"
    process.write_perf_map(f"{JIT:x} 10 hot\n")
    assert text_of(symbolizer, JIT + 0x5) == "hot+0x5 (perf-7.map)"
    process.write_perf_map(f"{JIT:x} 10 hot\n{JIT + 0x100:x} 10 hotter\n")
    assert text_of(symbolizer, JIT + 0x105) == "hotter+0x5 (perf-7.map)"
    process.vanish()
    assert text_of(symbolizer, JIT + 0x106) == "hotter+0x6 (perf-7.map)"


def test_perf_map_has_the_pid_of_the_process_s_own_namespace(process, symbolizer):
    process.write_perf_map(f"{JIT:x} 10 wrong\n", ns_pid=PID)
    assert text_of(symbolizer, JIT) == "[unknown] ([anon]+0x0)"
    assert text_of(symbolizer, JIT, ns_pid=None) == "[unknown] ([anon]+0x0)"


def test_of_a_long_perf_map_the_end_is_read(process, symbolizer, monkeypatch):
    monkeypatch.setattr(symbols, "_PERF_MAP_READ_BYTES", 60)
    lines = [f"{JIT + 16 * i:x} 10 function_{i:03}" for i in range(10)]
    process.write_perf_map("\n".join(lines) + "\n")
    assert text_of(symbolizer, JIT + 16 * 9) == "function_009+0x0 (perf-7.map)"
    assert text_of(symbolizer, JIT + 16 * 8) == "function_008+0x0 (perf-7.map)"
    assert text_of(symbolizer, JIT + 16 * 7) == "[unknown] ([anon]+0x70)"  # cut in the middle of its line


def test_perf_map_of_root_is_trusted(process, symbolizer):
    if os.getuid() != 0:
        pytest.skip("only root makes files of root")
    process.write_perf_map(f"{JIT:x} 10 hot\n", uid=0)
    assert text_of(symbolizer, JIT) == "hot+0x0 (perf-7.map)"


def test_perf_map_of_another_user_is_not(process, symbolizer):
    process.write_perf_map(f"{JIT:x} 10 forged\n", uid=UID + 1)
    assert text_of(symbolizer, JIT) == "[unknown] ([anon]+0x0)"


@pytest.mark.parametrize("kind", ["link", "fifo", "folder"])
def test_perf_map_that_is_no_regular_file(process, symbolizer, kind):
    path = process.write_perf_map(f"{JIT:x} 10 hot\n")
    real = path.rename(path.with_name("real"))
    match kind:
        case "link":
            path.symlink_to(real.name)
        case "fifo":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
    assert text_of(symbolizer, JIT) == "[unknown] ([anon]+0x0)"


def test_perf_map_through_a_tmp_that_leads_out(process, symbolizer, tmp_path):
    path = process.write_perf_map(f"{JIT:x} 10 outside\n")
    outside = tmp_path / "outside"
    path.parent.rename(outside)
    (process.root / "tmp").symlink_to(outside)
    assert text_of(symbolizer, JIT) == "[unknown] ([anon]+0x0)"
