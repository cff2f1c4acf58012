"""The parts of an experiment that need no container: accesses, smaps, privileges, room, what hinders."""

from __future__ import annotations

import mmap
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rtdebug.host.cgroup import MemoryHierarchy
from rtdebug.host.maps import parse_smaps
from rtdebug.host.thp import SizeSettings
from rtdebug.madvise import syscalls
from rtdebug.madvise.access import accesses, make_index, populate
from rtdebug.madvise.area import Area, CannotMapError, mapped, opened_file
from rtdebug.madvise.experiment import patterns
from rtdebug.madvise.guard import GuardReading, Watched
from rtdebug.madvise.hindrance import Settings, hindrance
from rtdebug.madvise.leaf import PREFIX, stale_leaves
from rtdebug.madvise.measure import Meter, cut_area, differences
from rtdebug.madvise.place import Experimenter
from rtdebug.madvise.plan import Case, Plan
from rtdebug.madvise.privileges import inside_id, parse_privileges
from rtdebug.madvise.room import OWN_BYTES, Watch, room_bytes
from tests.unit.madvise_outcome import MIB, NO_SWAP, SWAP, THP

PAGE = mmap.PAGESIZE
SIZE = 4 * MIB


# accesses ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("access", "touched"), [("sequential", SIZE // 64), ("stride", SIZE // 256), ("random", None), ("zipf", None)]
)
def test_writes_touch_what_the_pattern_says(access: str, touched: int | None) -> None:
    case = Case("anon", (), SIZE, access, "write", stride_bytes=256)
    words = np.zeros(SIZE // 8, dtype=np.int64)
    accesses(case, PAGE, seed=7)(words)
    changed = np.flatnonzero(words)
    assert len(changed) == touched if touched else 0 < len(changed) <= case.access_count
    reading = replace(case, mode="read")
    before = words.copy()
    accesses(reading, PAGE, seed=7)(words)
    assert (words == before).all()


def test_same_seed_same_accesses() -> None:
    for access in ("random", "zipf"):
        case = Case("anon", (), SIZE, access)
        first, again, other = (make_index(case, PAGE, seed) for seed in (7, 7, 8))
        assert (first == again).all() and (first != other).any()
        assert len(first) == case.access_count == SIZE // 64
        assert first.min() >= 0 and first.max() < SIZE // 8


def test_zipf_prefers_some_pages_and_random_none() -> None:
    shares = {}
    for access in ("random", "zipf"):
        index = make_index(Case("anon", (), SIZE, access), PAGE, 7)
        hits = np.sort(np.bincount(index // (PAGE // 8), minlength=SIZE // PAGE))[::-1]
        shares[access] = hits[: len(hits) // 100].sum() / hits.sum()
    assert shares["zipf"] > 0.3 and shares["random"] < 0.03


def test_the_same_accesses_serve_every_kind_of_memory() -> None:
    plan = Plan("p", tuple(Case(memory, ("FREE",), SIZE) for memory in ("anon", "memfd")))
    first, second = patterns(plan)
    assert first is second


def test_populate_touches_each_page_once() -> None:
    words = np.zeros(SIZE // 8, dtype=np.int64)
    populate(words, PAGE, write=True)
    assert (np.flatnonzero(words) == np.arange(0, SIZE // 8, PAGE // 8)).all()


# memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", ["anon", "shared-anon", "memfd", "shm", "sysv"])
def test_area_is_aligned_and_alone_in_smaps_and_gone_afterwards(memory: str) -> None:
    meter = Meter(Path("/nowhere"))
    with mapped(Case(memory, (), SIZE), SIZE, 2 * MIB) as area:
        assert area.address % (2 * MIB) == 0
        populate(area.words(), PAGE, write=True)
        reading = meter.read(area)
        assert reading.rss_bytes == SIZE
        assert (reading.cgroup_usage_bytes, reading.stat) == (None, {})
        text = Path("/proc/self/smaps").read_text()
        assert f"{area.address:x}-{area.end:x} " in text
    assert f"{area.address:x}-{area.end:x} " not in Path("/proc/self/maps").read_text()
    assert not list(Path("/dev/shm").glob("rtdebug-[0-9a-f]*"))


def test_file_of_our_own_has_no_name_and_one_of_the_container_is_only_read(tmp_path: Path) -> None:
    with opened_file(Case("file", ()), SIZE) as fd:
        assert os.fstat(fd).st_nlink == 0 and os.fstat(fd).st_size == SIZE
    path = tmp_path / "model"
    path.write_bytes(b"x" * SIZE)
    case = Case("file", (), file=str(path))
    with opened_file(case, SIZE) as fd, mapped(case, SIZE, 2 * MIB, fd) as area:
        assert area.words()[0] == int.from_bytes(b"x" * 8, "little")
        assert f"{area.address:x}-{area.end:x} r--s" in Path("/proc/self/maps").read_text()
    link, fifo = tmp_path / "link", tmp_path / "fifo"
    link.symlink_to(path)
    os.mkfifo(fifo)
    for bad, size in ((link, SIZE), (fifo, SIZE), (path, 2 * SIZE), (tmp_path, SIZE), (tmp_path / "none", SIZE)):
        with pytest.raises(CannotMapError), opened_file(Case("file", (), file=str(bad)), size):
            pass


def test_refused_system_calls_are_os_errors() -> None:
    with pytest.raises(OSError, match="madvise"):
        syscalls.madvise(PAGE, PAGE, 10_000)
    with pytest.raises(OSError, match="mmap"):
        syscalls.mmap(0, 1 << 60, syscalls.PROT_READ, syscalls.MAP_PRIVATE | syscalls.MAP_ANONYMOUS)


SMAPS = """\
7f0000000000-7f0000200000 ---p 00000000 00:00 0
Size:               2048 kB
Rss:                   0 kB
7f0000200000-7f0000300000 rw-p 00000000 00:00 0
Size:               1024 kB
Rss:                 900 kB
7f0000300000-7f0000400000 rw-p 00000000 00:00 0
Size:               1024 kB
Rss:                  70 kB
7f0000400000-7f0000600000 ---p 00000000 00:00 0
Size:               2048 kB
Rss:                   0 kB
"""


def test_the_entries_of_an_area_are_cut_out() -> None:
    entries = parse_smaps(cut_area(SMAPS, Area(0x7F0000200000, 2 * MIB)))
    assert [entry.use.rss_bytes for entry in entries] == [900 * 1024, 70 * 1024]
    assert cut_area(SMAPS, Area(0x7F0000900000, MIB)) == ""


def test_timed_counts_faults_and_processor_time() -> None:
    meter = Meter(Path("/nowhere"))
    with mapped(Case("anon", (), SIZE), SIZE, 2 * MIB) as area:
        syscalls.madvise(area.address, area.size_bytes, 15)  # NOHUGEPAGE
        words = area.words()
        step = meter.timed(lambda: populate(words, PAGE, write=True))
    assert 0 <= step.minor_faults - SIZE // PAGE <= 8, "Python may touch a page of its own beside them"
    assert 0 < step.cpu_ns <= step.time_ns * 1.5


def test_differences() -> None:
    assert differences({"a": 1, "b": 2, "c": 3}, {"a": 5, "b": 2, "d": 9}) == {"a": 4}


# privileges and place ---------------------------------------------------------------------------------------------

STATUS = """\
Name:\tredis
Uid:\t100999\t100999\t100999\t100999
Gid:\t101000\t101000\t101000\t101000
CapEff:\t00000000a80425fb
THP_enabled:\t0
"""


def test_privileges_of_a_rootless_container() -> None:
    privileges = parse_privileges(STATUS, "0 1000 1\n1 100000 65536\n", "0 1000 1\n1 100001 65536\n")
    assert (privileges.uid, privileges.gid, privileges.thp_disabled) == (1000, 1000, True)
    assert privileges.capabilities == 0xA80425FB


def test_ids_that_are_not_mapped_stay() -> None:
    assert inside_id(7, "         0          0 4294967295\n") == 7
    assert inside_id(7, "0 1000 1\n") == 7
    assert inside_id(7, "") == 7


def test_leaves_of_dead_and_living_rtdebugs(tmp_path: Path) -> None:
    for name in (f"{PREFIX}4194999", f"{PREFIX}{os.getpid()}", f"{PREFIX}x", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cgroup.procs").write_text("")
    (tmp_path / f"{PREFIX}4194998").mkdir()
    (tmp_path / f"{PREFIX}4194998" / "cgroup.procs").write_text("1\n")
    assert [path.name for path in stale_leaves(tmp_path)] == [f"{PREFIX}4194999", f"{PREFIX}x"]


def test_what_comes_in_pieces_is_heard_whole() -> None:
    read_fd, write_fd = os.pipe()
    experimenter = Experimenter(0, Path("/nowhere"), read_fd, -1)
    os.write(write_fd, b'{"run": {"a": 1}}\n{"do')
    assert experimenter.hear(1) == [{"run": {"a": 1}}]
    assert experimenter.hear(0.01) == []
    os.write(write_fd, b'ne": true}\n[3]\n')
    assert experimenter.hear(1) == [{"done": True}]
    os.close(write_fd)
    assert experimenter.hear(1) is None
    os.close(read_fd)


# room and guard ---------------------------------------------------------------------------------------------------


def cgroup(path: Path, limit: int | str, usage: int, inactive: int = 0, **files: object) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    written = {
        "memory.current": usage,
        "memory.max": limit,
        "memory.high": "max",
        "memory.stat": f"anon 0\ninactive_file {inactive}",
        "memory.events": "high 0\nmax 0\noom 0",
    }
    for name, content in (written | files).items():
        (path / name).write_text(f"{content}\n")
    return path


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    folder = tmp_path / "proc"
    (folder / "77").mkdir(parents=True)
    (folder / "meminfo").write_text("MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\nSwapTotal: 0 kB\n")
    (folder / "77/stat").write_text(f"77 (web) S {' '.join(['1'] * 40)}\n")
    return folder


def test_room_is_that_of_the_tightest_limit(tmp_path: Path, proc: Path) -> None:
    hierarchy = MemoryHierarchy(2, tmp_path / "cg")
    cgroup(tmp_path / "cg/pod/web", 1000 * MIB, 400 * MIB, inactive=100 * MIB)
    assert room_bytes(hierarchy, "/pod/web", proc) == 600 * MIB - OWN_BYTES
    cgroup(tmp_path / "cg/pod", 500 * MIB, 410 * MIB)
    assert room_bytes(hierarchy, "/pod/web", proc) == 40 * MIB - OWN_BYTES
    cgroup(tmp_path / "cg/pod", "max", 410 * MIB, **{"memory.high": 400 * MIB})
    assert room_bytes(hierarchy, "/pod/web", proc) == 0


def test_room_without_limits_is_that_of_the_host(tmp_path: Path, proc: Path) -> None:
    hierarchy = MemoryHierarchy(2, tmp_path / "cg")
    cgroup(tmp_path / "cg/web", "max", 400 * MIB)
    assert room_bytes(hierarchy, "/web", proc) == 8192 * MIB - int(16384 * MIB * 0.1) - OWN_BYTES


def nothing() -> int:
    return 0


def test_watch(tmp_path: Path, proc: Path) -> None:
    hierarchy = MemoryHierarchy(2, tmp_path / "cg")
    web = cgroup(tmp_path / "cg/web", 100 * MIB, 50 * MIB)
    watch = Watch(hierarchy, "/web", Watched(77, 1, "/web", hierarchy, proc))
    assert watch.complaint(nothing) is None
    near = "another run would bring cgroup /web within 10% of its limit"
    assert watch.complaint(lambda: 40 * MIB) is None
    assert watch.complaint(lambda: 41 * MIB) == near
    cgroup(web, 100 * MIB, 91 * MIB)
    assert watch.complaint(nothing) == near
    cgroup(web, 100 * MIB, 50 * MIB, **{"memory.events": "high 0\nmax 1\noom 0"})
    assert watch.complaint(nothing) == "it hit its memory limit 1 times"
    (proc / "77/stat").unlink()
    assert watch.complaint(nothing) == "the container ended"


def test_watch_sees_pressure_over_seconds_and_not_over_moments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    readings = iter(
        GuardReading(int(at * 1e9), True, MIB, 100 * MIB, int(stalled * 1e9), 0)
        for at, stalled in ((0, 0), (0.05, 0.05), (1, 0.3), (2.1, 0.35), (2.2, 1.0), (2.3, 1.1))
    )

    class Container:
        def read(self) -> GuardReading:
            return next(readings)

    (tmp_path / "web").mkdir()
    watch = Watch(MemoryHierarchy(2, tmp_path), "/web", Container())
    said = [watch.complaint(nothing) for _ in range(4)]
    assert said[:3] == [None] * 3, "0.35 s of 2.1 s"
    assert said[3] is not None and "of the time" in said[3]


# what hinders -----------------------------------------------------------------------------------------------------

ALWAYS = replace(SWAP, thp=replace(THP, enabled="always", shmem_enabled="advise"))
NEVER = replace(SWAP, thp=replace(THP, enabled="never", shmem_enabled="deny"))
NEVER_BUT_64K = replace(
    SWAP, thp=replace(THP, enabled="never", sizes={65536: SizeSettings("madvise", "never"), **THP.sizes})
)
NO_THP = replace(SWAP, thp=None)


@pytest.mark.parametrize(
    ("memory", "advice", "settings", "said"),
    [
        ("anon", "HUGEPAGE", SWAP, None),
        ("anon", "HUGEPAGE", NEVER, "enabled is never"),
        ("anon", "HUGEPAGE", NEVER_BUT_64K, None),
        ("anon", "HUGEPAGE", NO_THP, "no transparent huge pages"),
        ("anon", "HUGEPAGE", replace(SWAP, thp_disabled=True), "PR_SET_THP_DISABLE"),
        ("anon", "COLLAPSE", NEVER, None),
        ("memfd", "COLLAPSE", SWAP, None),
        ("memfd", "COLLAPSE", NEVER, "shmem_enabled is deny"),
        ("memfd", "HUGEPAGE", SWAP, "shmem_enabled is never"),
        ("sysv", "HUGEPAGE", ALWAYS, None),
        ("shm", "HUGEPAGE", ALWAYS, "mounted with huge=never"),
        ("shm", "HUGEPAGE", replace(ALWAYS, shm_huge="advise"), None),
        ("shm", "HUGEPAGE", replace(NEVER, shm_huge="advise"), "shmem_enabled is deny"),
        ("anon", "NOHUGEPAGE", SWAP, "none to avoid"),
        ("anon", "NOHUGEPAGE", ALWAYS, None),
        ("memfd", "NOHUGEPAGE", SWAP, "none to avoid"),
        ("anon", "PAGEOUT", SWAP, None),
        ("anon", "PAGEOUT", NO_SWAP, "no swap"),
        ("memfd", "COLD", NO_SWAP, "no swap"),
        ("file", "PAGEOUT", NO_SWAP, None),
        ("anon", "PAGEOUT", replace(SWAP, swap_bytes=None), None),
        ("anon", "MERGEABLE", SWAP, None),
        ("anon", "MERGEABLE", replace(SWAP, ksm_runs=False), "KSM does not run"),
        ("anon", "DONTNEED", NO_SWAP, None),
    ],
)
def test_hindrance(memory: str, advice: str, settings: Settings, said: str | None) -> None:
    found = hindrance(memory, advice, settings)
    assert found is None if said is None else found is not None and said in found
