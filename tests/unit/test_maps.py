"""host/maps.py: names, counters and unknown fields of maps, smaps and smaps_rollup."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from rtdebug.host.inside import open_in_root, open_mapped_file
from rtdebug.host.maps import (
    MappingKind,
    MapsError,
    MemoryUse,
    ProcessGoneError,
    parse_maps,
    parse_smaps,
    parse_smaps_rollup,
    read_maps,
    read_smaps,
)

CASES = Path(os.environ.get("RTDEBUG_CASES") or Path(__file__).parents[3] / "shared/cases")
needs_cases = pytest.mark.skipif(not CASES.is_dir(), reason="the folder of real cases is not here")

KIND_OF_CLASS = {
    "file": MappingKind.FILE,
    "memfd (shmem)": MappingKind.MEMFD,
    "shmem (tmpfs file, still charged while mapped)": MappingKind.SHM,
    "sysv shm": MappingKind.SYSV,
    "shmem (MAP_SHARED|MAP_ANONYMOUS)": MappingKind.DEV_ZERO,
    "shmem (GEM buffer)": MappingKind.DRM,
    "stack": MappingKind.STACK,
    "hugetlb": MappingKind.HUGETLB,
}


def case(number: str) -> dict[str, Any]:
    (path,) = CASES.glob(f"{number}-*.yaml")
    # One of the files is not quite YAML above `expected:`; the rest of it is what counts.
    text = path.read_text()
    return yaml.safe_load(text[text.index("\nexpected:") :])["expected"]


def case_text(number: str, ending: str) -> str:
    (path,) = CASES.glob(f"{number}-*.{ending}")
    return path.read_bytes().decode(errors="surrogateescape")


def kib(bytes_: int | None) -> int | None:
    return None if bytes_ is None else bytes_ // 1024


def field_of(key: str) -> str:
    return key.lower() + "_bytes"


def sum_of(entries, key: str) -> int | None:
    if key == "Size":
        return sum(entry.mapping.length_bytes for entry in entries)
    return sum(getattr(entry.use, field_of(key)) for entry in entries)


# Real cases ---------------------------------------------------------------------------------------


@needs_cases
@pytest.mark.parametrize("number", ["053", "054"])
def test_case_totals(number):
    expected = case(number)
    entries = parse_smaps(case_text(number, "smaps"))
    assert len(entries) == expected["vma_count"]
    for key, value in expected["totals_kb"].items():
        assert kib(sum_of(entries, key)) == value, key
    for path, count in expected["files"].items():
        assert sum(entry.mapping.path == path for entry in entries) == count


@needs_cases
def test_case_053_rollup_is_no_mapping_and_absent_fields_are_none():
    expected = case("053")
    entries = parse_smaps(case_text("053", "smaps"))
    rollup = parse_smaps_rollup(case_text("053", "smaps_rollup"))
    for key in expected["rollup_equals_sum"]:
        assert getattr(rollup, field_of(key)) == sum_of(entries, key), key
    for key in set(expected["absent_fields"]) - {"THPeligible"}:
        assert getattr(rollup, field_of(key)) is None
        assert all(getattr(entry.use, field_of(key)) is None for entry in entries)
    assert all(entry.thp_eligible is None for entry in entries)
    unnamed = [entry for entry in entries if entry.mapping.kind is MappingKind.ANON]
    assert len(unnamed) == expected["anonymous_unnamed"]
    assert [e.mapping.path for e in entries if e.mapping.path.startswith("[")] == expected["pseudo"]
    assert kib(rollup.uss_bytes) == 29944


@needs_cases
def test_case_054_heap_and_flags():
    expected = case("054")["heap"]
    (heap,) = [e for e in parse_smaps(case_text("054", "smaps")) if e.mapping.kind is MappingKind.HEAP]
    assert heap.mapping.path == expected["name"]
    assert kib(heap.mapping.length_bytes) == expected["Size"]
    assert kib(heap.use.rss_bytes) == expected["Rss"]
    assert heap.vm_flags == ("rd", "wr", "mr", "mw", "me", "ac", "sd")


@needs_cases
def test_case_057_hugetlb_that_no_counter_shows():
    expected = case("057")
    (entry,) = parse_smaps(case_text("057", "smaps"))
    assert entry.mapping.kind is KIND_OF_CLASS[expected["class_"]]
    assert entry.is_hugetlb
    assert kib(entry.mapping.length_bytes) == expected["size_kb"]
    assert kib(entry.use.rss_bytes) == expected["rss_kb"]
    assert kib(entry.kernel_page_size_bytes) == expected["page_size_kb"]
    assert entry.use.private_hugetlb_bytes is None
    assert entry.use.shared_hugetlb_bytes is None
    assert list(entry.vm_flags) == expected["vmflags"]


@needs_cases
def test_case_058_new_fields_and_wrapped_name():
    expected = case("058")["files"]
    (stack,) = parse_smaps(case_text("058", "thread-stack.smaps"))
    assert (stack.mapping.path, stack.mapping.kind) == ("", MappingKind.ANON)
    assert kib(stack.mapping.length_bytes) == expected["thread-stack"]["size_kb"]
    assert kib(stack.use.rss_bytes) == expected["thread-stack"]["rss_kb"]
    assert kib(stack.use.pss_dirty_bytes) == expected["thread-stack"]["pss_dirty_kb"]
    assert stack.use.ksm_bytes == 0
    assert stack.thp_eligible is False
    assert list(stack.vm_flags) == expected["thread-stack"]["vmflags"]

    (android,) = parse_smaps(case_text("058", "android.smaps"))
    assert android.mapping.path == expected["android"]["name"]
    assert android.mapping.kind is MappingKind.ANON_NAME
    assert kib(android.use.swap_bytes) == expected["android"]["swap_kb"]
    assert kib(android.use.swappss_bytes) == expected["android"]["swap_pss_kb"]
    assert android.use.pss_bytes is None


@needs_cases
def test_case_059_names():
    expected = case("059")["entries"]
    mappings = parse_maps(case_text("059", "maps"))
    assert len(mappings) == len(expected)
    for mapping, entry in zip(mappings, expected, strict=True):
        assert mapping.path == entry["name"]
        assert mapping.deleted is entry["deleted"]
        if entry["class_"] == "anon":
            named = MappingKind.ANON_NAME if entry["name"] else MappingKind.ANON
            assert mapping.kind is named
        else:
            assert mapping.kind is KIND_OF_CLASS[entry["class_"]]
        if "shmid" in entry:
            assert mapping.inode_id == entry["shmid"]
            assert mapping.sysv_key == int(entry["key"], 16)


# Our own ------------------------------------------------------------------------------------------

RANGE = "7f1200000000-7f1200003000"


def mapping_of(rest: str):
    (mapping,) = parse_maps(f"{RANGE} {rest}\n")
    return mapping


def test_every_column():
    mapping = mapping_of("r-xp 0001a000 103:0b 90817263                  /opt/rt d/a.out")
    assert (mapping.start, mapping.end) == (0x7F1200000000, 0x7F1200003000)
    assert mapping.length_bytes == 0x3000
    assert mapping.perms == "r-xp"
    assert mapping.executable
    assert mapping.offset_bytes == 0x1A000
    assert mapping.device == (0x103, 0x0B)
    assert mapping.inode_id == 90817263
    assert mapping.path == "/opt/rt d/a.out"
    assert not mapping.deleted
    assert not mapping_of("rw-s 00000000 00:00 0 ").executable


NAMES = {
    "nameless, blank at the end": ("rw-p 0 00:00 0 ", "", False, "anon"),
    "nameless, no blank": ("rw-p 0 00:00 0", "", False, "anon"),
    "heap": ("rw-p 0 00:00 0     [heap]", "[heap]", False, "heap"),
    "thread stack": ("rw-p 0 00:00 0  [stack:77]", "[stack:77]", False, "stack"),
    "vvar": ("r--p 0 00:00 0  [vvar]", "[vvar]", False, "special"),
    "vdso": ("r-xp 0 00:00 0  [vdso]", "[vdso]", False, "vdso"),
    "anon": ("rw-p 0 00:00 0 [anon: je (deleted) ]", "[anon: je (deleted) ]", False, "anon_name"),
    "shmem name": ("rw-s 0 00:01 17 [anon_shmem:pool]", "[anon_shmem:pool]", False, "anon_name"),
    "memfd": ("rw-s 0 00:01 5 /memfd:x\x1b[2J (deleted)", "/memfd:x\x1b[2J", True, "memfd"),
    "memfd without name": ("rw-s 0 00:01 5 /memfd: (deleted)", "/memfd:", True, "memfd"),
    "deleted twice": ("rw-s 0 00:1 5 /memfd:a (deleted) (deleted)", "/memfd:a (deleted)", True, "memfd"),
    "memfd: on a disk": ("rw-s 0 08:01 5 /memfd:x (deleted)", "/memfd:x", True, "file"),
    "sysv": ("rw-s 0 00:01 5 /SYSV0001e240 (deleted)", "/SYSV0001e240", True, "sysv"),
    "a file called SYSV": ("rw-s 0 00:2f 5 /SYSV0001e240", "/SYSV0001e240", False, "file"),
    "SYSV, too long": ("rw-s 0 00:01 5 /SYSV0001e2400 (deleted)", "/SYSV0001e2400", True, "file"),
    "shared anon": ("rw-s 0 00:01 5 /dev/zero (deleted)", "/dev/zero", True, "dev-zero"),
    "the device": ("rw-p 0 00:06 5 /dev/zero", "/dev/zero", False, "file"),
    "hugetlb": ("rw-s 0 00:0f 5 /anon_hugepage (deleted)", "/anon_hugepage", True, "hugetlb"),
    "shm": ("rw-s 0 00:1b 5 /dev/shm/sem.x", "/dev/shm/sem.x", False, "shm"),
    "shm of old": ("rw-s 0 00:14 5 /run/shm/pool", "/run/shm/pool", False, "shm"),
    "ashmem": ("rw-s 0 00:04 5 /dev/ashmem/my heap (deleted)", "/dev/ashmem/my heap", True, "memfd"),
    "graphics": ("rw-s 0 00:2c 5 /i915 (deleted)", "/i915", True, "drm"),
    "aio ring": ("rw-s 0 00:12 5 /[aio] (deleted)", "/[aio]", True, "special"),
    "aio on a disk": ("rw-s 0 08:12 5 /[aio] (deleted)", "/[aio]", True, "file"),
    "dma-buf": ("rw-s 0 00:0c 5 /dmabuf:heap", "/dmabuf:heap", False, "special"),
    "not shm": ("r--p 0 00:1b 5 /dev/shmoo", "/dev/shmoo", False, "file"),
    "perf": ("rw-s 0 00:0e 5 anon_inode:[perf_event]", "anon_inode:[perf_event]", False, "special"),
    "unreachable": ("r--p 0 fd:00 5 (unreachable)/x", "(unreachable)/x", False, "file"),
    "newlines": ("r--p 0 fd:00 5 /a\\012b\\012 (deleted)", "/a\nb\n", True, "file"),
    "blanks at the end are the name's": ("r--p 0 fd:00 5 /a \t\r", "/a \t\r", False, "file"),
    "called deleted": ("r--p 0 fd:00 5 /(deleted)", "/(deleted)", False, "file"),
    "line ends": ("r--p 0 fd:00 5 /\udcff\x85\u2028\x0c.so", "/\udcff\x85\u2028\x0c.so", False, "file"),
}


@pytest.mark.parametrize(("rest", "path", "deleted", "kind"), NAMES.values(), ids=NAMES)
def test_names(rest, path, deleted, kind):
    mapping = mapping_of(rest)
    assert (mapping.path, mapping.deleted, mapping.kind) == (path, deleted, kind)


def test_sysv_key_is_none_elsewhere():
    assert mapping_of("rw-s 0 00:01 5 /SYSV0001e240 (deleted)").sysv_key == 0x1E240
    assert mapping_of("rw-s 0 00:2f 5 /SYSV0001e240").sysv_key is None


@pytest.mark.parametrize("text", ["nonsense", f"{RANGE} rw-p 0000", "zz-ff rw-p 0 00:00 0", "\r\n"])
def test_maps_that_are_none(text):
    with pytest.raises(MapsError) as caught:
        parse_maps(text)
    assert caught.value.hint


SMAPS = f"""\
{RANGE} rw-p 00000000 00:00 0                [anon:pool]
Size:                 12 kB
KernelPageSize:       16 kB
MMUPageSize:           4 kB
Rss:                   8 kB
Private_Clean:         3 kB
Private_Dirty:         5 kB
Private_Hugetlb:    2048 kB
SomethingNew:          9 parsecs
THPeligible:    1
ProtectionKey:         0
VmFlags: rd wr ht{" "}
7f1200005000-7f1200006000 r--p 00000000 08:01 7 /a b
Size:                  4 kB
"""


def test_smaps_units_and_unknown_fields():
    pool, file = parse_smaps(SMAPS)
    assert pool.kernel_page_size_bytes == 16384
    assert pool.mmu_page_size_bytes == 4096
    assert pool.use == MemoryUse(
        rss_bytes=8192, private_clean_bytes=3072, private_dirty_bytes=5120, private_hugetlb_bytes=2 << 20
    )
    assert pool.use.uss_bytes == 8192
    assert pool.thp_eligible is True
    assert pool.is_hugetlb
    assert file.mapping.path == "/a b"
    assert file.use == MemoryUse()
    assert file.use.uss_bytes is None
    assert file.vm_flags is None
    assert not file.is_hugetlb


def test_smaps_of_a_zombie_is_empty():
    assert parse_smaps("") == []
    assert parse_smaps_rollup("") is None


@pytest.mark.parametrize("text", ["Rss: 4 kB\n", SMAPS.replace("8 kB", "8"), SMAPS.replace("8 kB", "-8 kB")])
def test_smaps_that_are_none(text):
    with pytest.raises(MapsError):
        parse_smaps(text)


def test_rollup_must_be_one():
    with pytest.raises(MapsError):
        parse_smaps_rollup(SMAPS)


# Reading ------------------------------------------------------------------------------------------


def test_read_from_another_root_keeps_carriage_returns(tmp_path):
    (tmp_path / "42").mkdir()
    (tmp_path / "42/maps").write_bytes(b"1000-2000 r-xp 00000000 08:01 9 /bin/\xffa\r\n")
    (mapping,) = read_maps(42, tmp_path)
    assert mapping.path == "/bin/\udcffa\r"
    assert os.fsencode(mapping.path) == b"/bin/\xffa\r"


def test_process_gone(tmp_path):
    with pytest.raises(ProcessGoneError):
        read_maps(42, tmp_path)


def test_read_own():
    assert any(mapping.kind is MappingKind.STACK for mapping in read_maps(os.getpid()))
    entries = read_smaps(os.getpid())
    assert sum(entry.use.rss_bytes or 0 for entry in entries) > 1 << 20


def read_fd(fd: int) -> bytes:
    with os.fdopen(fd, "rb") as file:
        return file.read()


def test_open_in_root_follows_links_inside_only(tmp_path):
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (root / "etc/name").write_text("inside")
    (tmp_path / "secret").write_text("outside")
    (root / "absolute").symlink_to("/etc/name")
    (root / "up").symlink_to("../../../etc/name")
    (root / "out").symlink_to("../secret")
    assert read_fd(open_in_root(root, "/absolute", os.O_RDONLY)) == b"inside"
    assert read_fd(open_in_root(root, "/up", os.O_RDONLY)) == b"inside"
    assert read_fd(open_in_root(root, "/../../etc/name", os.O_RDONLY)) == b"inside"
    with pytest.raises(FileNotFoundError):
        open_in_root(root, "/out", os.O_RDONLY)
    with pytest.raises(FileNotFoundError):
        open_in_root(root, "/../secret", os.O_RDONLY)


@pytest.fixture
def fake_proc(tmp_path):
    """/proc with one process whose map_files may not be read, so that its root is used."""
    root = tmp_path / "7/root"
    (root / "lib").mkdir(parents=True)
    (root / "lib/a.so").write_text("elf")
    return tmp_path


def file_mapping(inode_id: int, path: str):
    return mapping_of(f"r-xp 00000000 08:01 {inode_id} {path}")


def test_open_mapped_file_by_path(fake_proc):
    inode_id = (fake_proc / "7/root/lib/a.so").stat().st_ino
    assert read_fd(open_mapped_file(7, file_mapping(inode_id, "/lib/a.so"), fake_proc)) == b"elf"


@pytest.mark.parametrize("path", ["/lib/a.so (deleted)", "[vdso]", "/lib/none.so"])
def test_open_mapped_file_that_is_not_there(fake_proc, path):
    inode_id = (fake_proc / "7/root/lib/a.so").stat().st_ino
    with pytest.raises(FileNotFoundError):
        open_mapped_file(7, file_mapping(inode_id, path), fake_proc)


def test_open_mapped_file_that_was_replaced(fake_proc):
    inode_id = (fake_proc / "7/root/lib/a.so").stat().st_ino
    with pytest.raises(OSError, match="not the regular file that was meant"):
        open_mapped_file(7, file_mapping(inode_id + 1, "/lib/a.so"), fake_proc)


def test_open_mapped_file_does_not_block_on_a_fifo(fake_proc):
    fifo = fake_proc / "7/root/lib/b.so"
    os.mkfifo(fifo)
    with pytest.raises(OSError, match="not the regular file that was meant"):
        open_mapped_file(7, file_mapping(fifo.stat().st_ino, "/lib/b.so"), fake_proc)
