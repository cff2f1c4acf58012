from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest

from rtdebug.containers.model import Container
from rtdebug.errors import NotRunning, TargetError, UsageProblem
from rtdebug.host.maps import MapsError, parse_maps, parse_smaps
from rtdebug.host.smaps_index import parse_smaps_index
from rtdebug.host.thp import SizeSettings, ThpSettings
from rtdebug.madvise.advice import Memory
from rtdebug.madvise.apply_plan import Host
from rtdebug.madvise.candidates import ProcessMaps, find_candidates
from rtdebug.madvise.eligible import aligned_bytes, eligibility
from rtdebug.madvise.fitness import stacks
from rtdebug.madvise.members import members
from rtdebug.madvise.target import find_mapping, memory_of
from rtdebug.render.madvise_list import list_json, list_table

KIB, MIB = 1024, 1024 * 1024
THP = ThpSettings("madvise", "madvise", "never", True, 2 * MIB, {}, {})


def entry(
    start: int, size_kib: int, rss_kib: int, *, name: str = "", perms: str = "rw-p", device: str = "00:00",
    inode: int = 0, flags: str = "rd wr mr mw me ac", huge_kib: int = 0, referenced_kib: int | None = None,
    anonymous_kib: int = 0, eligible: int = 0,
) -> str:  # fmt: skip
    referenced = rss_kib if referenced_kib is None else referenced_kib
    return (
        f"{start:x}-{start + size_kib * KIB:x} {perms} 00000000 {device} {inode}                     {name}\n"
        f"Size:           {size_kib:8} kB\nKernelPageSize:        4 kB\nMMUPageSize:           4 kB\n"
        f"Rss:            {rss_kib:8} kB\nPss:            {rss_kib:8} kB\n"
        f"Referenced:     {referenced:8} kB\nAnonymous:      {anonymous_kib:8} kB\n"
        f"AnonHugePages:  {huge_kib:8} kB\nShmemPmdMapped:        0 kB\nFilePmdMapped:         0 kB\n"
        f"Swap:                  0 kB\nTHPeligible:           {eligible}\nVmFlags: {flags} \n"
    )


def process(*entries: str, pid: int = 71, disabled: bool = False) -> ProcessMaps:
    return ProcessMaps(pid, "web", disabled, parse_smaps_index("".join(entries).encode("utf-8", "surrogateescape")))


# The index ----------------------------------------------------------------------------------------


def test_the_index_gives_the_same_entries_as_the_parser() -> None:
    text = (
        entry(0x400000, 512, 12, name="/bin/a b", inode=7)
        + entry(0x7F0000000000, 8192, 4100)
        + entry(0x7FFF00000000, 132, 0)
    )
    index = parse_smaps_index(text.encode())
    assert index.rss_bytes == [12 * KIB, 4100 * KIB, 0]
    assert [index.entry(number) for number in range(len(index))] == parse_smaps(text)


def test_a_process_without_memory_and_a_text_cut_short() -> None:
    assert len(parse_smaps_index(b"")) == 0
    with pytest.raises(MapsError):
        parse_smaps_index(b"1000-2000 rw-p 0 0:0 0\nRss:     ")
    text = entry(0x400000, 512, 12) + entry(0x600000, 8, 4)
    for cut in (text.replace("VmFlags:", "", 1), text.replace("\nVmFlags:", "\nRss: 1 kB\nVmFlags:", 1)):
        index = parse_smaps_index(cut.encode())
        with pytest.raises(MapsError):
            [index.entry(number) for number in range(len(index))]


def test_a_path_cannot_forge_an_entry() -> None:
    text = entry(0x400000, 512, 12, name="/tmp/\\012Rss: 9999999 kB", inode=7)
    assert parse_smaps_index(text.encode()).rss_bytes == [12 * KIB]


# Eligibility --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("enabled", "flags", "faults", "collapse", "advisable", "why"),
    [
        ("always", "rd", True, True, False, "enabled=always"),
        ("madvise", "rd hg", True, True, False, "MADV_HUGEPAGE is set"),
        ("madvise", "rd", False, True, True, "MADV_HUGEPAGE is not set"),
        ("never", "rd hg", False, True, False, "by COLLAPSE only"),
        ("always", "rd nh", False, False, False, "MADV_NOHUGEPAGE"),
        ("always", "rd pf", False, False, False, "kernel's"),
        ("always", "rd ht", False, False, False, "hugetlb"),
    ],
)
def test_who_may_have_huge_pages(
    enabled: str, flags: str, faults: bool, collapse: bool, advisable: bool, why: str
) -> None:
    (found,) = parse_smaps(entry(0x7F0000000000, 8192, 8192, flags=flags))
    memory = None if "pf" in flags else Memory.ANON
    may = eligibility(found, memory, replace(THP, enabled=enabled), disabled=False)
    assert (may.faults, may.collapse, may.advisable) == (faults, collapse, advisable)
    assert why in may.why


def test_reasons_beside_the_settings() -> None:
    (small,) = parse_smaps(entry(0x7F0000001000, 2048, 2048))
    sizes = {
        65536: SizeSettings("always", None),
        32768: SizeSettings("inherit", None),
        16384: SizeSettings("never", None),
    }
    assert eligibility(small, Memory.ANON, THP, False).why == "no aligned 2 MiB in it"
    assert "32 KiB, 64 KiB" in eligibility(small, Memory.ANON, replace(THP, sizes=sizes), False).why
    (large,) = parse_smaps(entry(0x7F0000000000, 8192, 8192))
    assert "PR_SET_THP_DISABLE" in eligibility(large, Memory.ANON, THP, True).why
    assert "no transparent" in eligibility(large, Memory.ANON, None, False).why
    assert not eligibility(large, Memory.FILE, THP, False).collapse
    own = replace(THP, enabled="never", sizes={2 * MIB: SizeSettings("always", None)})
    assert eligibility(large, Memory.ANON, own, False).faults
    never = replace(THP, enabled="never")
    assert eligibility(large, Memory.ANON, never, False).why == "enabled=never: by COLLAPSE only"
    without = eligibility(large, Memory.ANON, never, False, collapses=False)
    assert (without.collapse, without.why) == (False, "enabled=never")


def test_shared_memory_has_a_setting_of_its_own() -> None:
    (found,) = parse_smaps(entry(0x7F0000000000, 8192, 8192, name="/memfd:x (deleted)", device="00:01", perms="rw-s"))
    assert memory_of(found.mapping) is Memory.SHMEM
    never, advise, deny = (
        eligibility(found, Memory.SHMEM, replace(THP, shmem_enabled=setting), False)
        for setting in ("never", "advise", "deny")
    )
    assert (never.faults, never.collapse, never.advisable) == (False, True, False)
    assert advise.advisable
    assert not deny.collapse


@pytest.mark.parametrize(
    ("start", "end", "covered"), [(0, 4, 4), (1, 4, 2), (1, 3, 0), (3, 4, 0), (2, 2, 0), (0, 5, 4)]
)
def test_aligned_part(start: int, end: int, covered: int) -> None:
    assert aligned_bytes(start, end, 2) == covered


# Ranking ------------------------------------------------------------------------------------------

BASE = 0x7F0000000000


def ranked(
    *processes: ProcessMaps | None, swap: bool = False, most: int = 10, thp: ThpSettings = THP, lacks: str = ""
):
    host = Host(thp, has_swap=swap, ksm_runs=False, not_taken=frozenset({lacks}))
    return find_candidates(processes, host, least_bytes=2 * MIB, most=most)


def test_the_largest_gain_comes_first_and_not_the_largest_mapping() -> None:
    found = ranked(
        process(
            entry(BASE, 64 * 1024, 60 * 1024, huge_kib=58 * 1024),
            entry(BASE + (1 << 32), 16 * 1024, 12 * 1024),
            entry(BASE + (2 << 32), 1024, 1024),
        )
    )
    assert [(each.advice, each.gain_bytes // MIB) for each in found.found] == [
        ("MADV_HUGEPAGE", 12),
        ("MADV_HUGEPAGE", 2),
    ]
    assert (found.mappings, found.left_out, found.rss_bytes) == (3, 1, 73 * MIB)


def test_advice_that_the_kernel_does_not_have_is_not_given() -> None:
    never = replace(THP, enabled="never")
    mapping = process(entry(BASE, 8192, 8192))
    assert [each.advice for each in ranked(mapping, thp=never).found] == ["MADV_COLLAPSE"]
    assert [each.advice for each in ranked(mapping, thp=never, lacks="MADV_COLLAPSE").found] == [None]
    assert [each.advice for each in ranked(mapping, lacks="MADV_COLLAPSE").found] == ["MADV_HUGEPAGE"]


def test_what_lies_outside_of_aligned_pages_is_no_gain() -> None:
    found = ranked(process(entry(BASE + MIB, 6 * 1024, 6 * 1024)))
    assert found.found[0].gain_bytes == 4 * MIB


def test_idle_memory_can_go_to_swap_or_if_a_file_has_it() -> None:
    anon = entry(BASE, 8192, 8192, referenced_kib=1024, flags="rd nh")
    file = entry(
        BASE + (1 << 32), 8192, 8192, referenced_kib=2048, name="/data", device="08:01", inode=9, anonymous_kib=4096
    )
    without = {each.mapping.path: each for each in ranked(process(anon, file)).found}
    assert (without[""].advice, without[""].idle_bytes) == (None, 7 * MIB)
    assert (without["/data"].advice, without["/data"].gain_bytes) == ("MADV_PAGEOUT", 4 * MIB)
    with_swap = ranked(process(anon, file), swap=True).found
    assert [each.gain_bytes // MIB for each in with_swap] == [7, 6]
    locked = entry(BASE, 8192, 8192, referenced_kib=0, flags="rd nh lo")
    assert ranked(process(locked), swap=True).found[0].advice is None


def test_shared_memory_counts_once_and_says_how_many_have_it() -> None:
    shared = entry(BASE, 8192, 8192, name="/dev/shm/x", device="00:17", inode=5, perms="rw-s")
    found = ranked(process(shared, pid=1), process(shared, pid=2), process(shared, pid=3), None)
    assert [each.processes for each in found.found] == [3]
    assert (found.processes, found.gone) == (3, 1)


def test_only_so_many_and_the_best_of_all() -> None:
    entries = [entry(BASE + (number << 32), 8192, 2048 + 64 * number) for number in range(50)]
    gains = [each.gain_bytes // KIB for each in ranked(process(*entries), most=3).found]
    assert gains == [2048 + 64 * number for number in (49, 48, 47)]


def test_what_a_person_and_a_program_read() -> None:
    hostile = entry(BASE, 8192, 8192, name="/tmp/\x1b[31mx", device="08:01", inode=9, referenced_kib=0)
    found = ranked(process(entry(BASE + (1 << 32), 64 * 1024, 60 * 1024), hostile))
    text = list_table(found, THP, 2 * MIB, None)
    assert "\x1b" not in text
    assert "60 MiB" in text and "HUGEPAGE" in text and "enabled=madvise" in text
    assert f"--mapping {BASE + (1 << 32):#x} --advice HUGEPAGE --dry-run" in text
    assert "apply 'a b\\x1b' --pid" in list_table(found, THP, 2 * MIB, None, "a b\x1b"), "to be pasted, and harmless"
    assert "WHY 1: enabled=madvise" in text and "IDLE: since the kernel last looked" in text
    assert "IDLE: not accessed for 1.5 s" in list_table(found, THP, 2 * MIB, 1.5)
    without = list_table(ranked(process(entry(BASE, 64 * 1024, 60 * 1024))), THP, 2 * MIB, None)
    assert "IDLE" not in without and "what is idle is not known" in without
    assert max(map(len, text.splitlines())) <= 100
    document = json.loads(list_json(found, THP, 1.5))
    assert document["mappings"][0]["gain_bytes"] == 60 * MIB
    assert document["mappings"][1]["path"] == "/tmp/\x1b[31mx"
    assert document["total"]["idle_seconds"] == 1.5
    assert document["host"]["huge_page_bytes"] == 2 * MIB
    assert "no mapping has 2 MiB" in list_table(ranked(process(entry(BASE, 4, 4))), THP, 2 * MIB, None)
    assert json.loads(list_json(ranked(), None, None))["host"] is None


def test_the_root_cgroup_means_the_whole_host_and_a_target_without_process_is_an_error() -> None:
    root = Container("/", None, None, None, "running", "/")
    assert os.getpid() in members(root)
    with pytest.raises(NotRunning):
        members(Container("x" * 64, "web", "docker", None, "running", "/rtdebug-none"))


# Which mapping ------------------------------------------------------------------------------------

MAPS = parse_maps(
    "00400000-00452000 r-xp 00000000 08:02 173521      /usr/bin/dbus\n"
    "00e03000-00e24000 rw-p 00000000 00:00 0           [heap]\n"
    "7f0000000000-7f0000001000 rw-p 00000000 08:02 1   /srv/data.bin\n"
    "7f0000001000-7f0000002000 rw-p 00001000 08:02 1   /srv/data.bin\n"
    "7f0000100000-7f0000101000 rw-p 00000000 00:00 0   [anon:arena]\n"
    "7f0000200000-7f0000201000 rw-s 00000000 00:01 4   /memfd:model (deleted)\n"
    "7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0   [stack]\n"
)


@pytest.mark.parametrize(
    ("wanted", "start"),
    [
        ("heap", 0xE03000), ("[heap]", 0xE03000), ("dbus", 0x400000), ("/usr/bin/dbus", 0x400000),
        ("arena", 0x7F0000100000), ("model", 0x7F0000200000), ("0x7f0000001fff", 0x7F0000001000),
        ("7f0000001000", 0x7F0000001000), ("0x7f0000000000-0x7f0000001000", 0x7F0000000000),
        (" stack ", 0x7FFD00000000),
    ],
)  # fmt: skip
def test_a_mapping_by_name_or_address(wanted: str, start: int) -> None:
    assert find_mapping(MAPS, wanted).start == start


@pytest.mark.parametrize(
    ("wanted", "message", "hint"),
    [
        ("data.bin", "ambiguous: 2 mappings", "0x7f0000001000"),
        ("nothing", "no mapping 'nothing'", "[heap]"),
        ("0x10000", "nothing is mapped at 0x10000", "[stack]"),
    ],
)
def test_none_or_several_are_listed(wanted: str, message: str, hint: str) -> None:
    with pytest.raises(TargetError) as caught:
        find_mapping(MAPS, wanted)
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_a_file_with_the_name_of_an_address_is_not_meant_by_it() -> None:
    trap = parse_maps("7f0000300000-7f0000301000 rw-p 00000000 08:02 9   /srv/0xe03000\n")
    assert find_mapping([*MAPS, *trap], "0xe03000").path == "[heap]"


def test_an_empty_name_is_a_mistake() -> None:
    with pytest.raises(UsageProblem):
        find_mapping(MAPS, " ")


def test_stacks_are_told_from_heaps() -> None:
    arena, guard = 0x7F5000000000, "---p 00000000 00:00 0\n"
    maps = parse_maps(
        f"{arena - 0x1000:x}-{arena:x} {guard}"
        f"{arena:x}-{arena + 0x21000:x} rw-p 00000000 00:00 0\n"  # a heap of malloc behind the unused end of another
        f"{arena + 0x21000:x}-{arena + 0x22000:x} {guard}"
        f"{arena + 0x22000:x}-{arena + 0x800000:x} rw-p 00000000 00:00 0\n"  # a stack above its guard
        f"{arena + 0x900000:x}-{arena + 0xA00000:x} rw-p 00000000 00:00 0\n"  # nothing below
        "7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0   [stack]\n"
    )
    assert [mapping.start for mapping in stacks(maps)] == [arena + 0x22000, 0x7FFD00000000]
