"""Mappings added up: by columns as by lines, and texts that are not of the usual form."""

import re
from pathlib import Path

import pytest

from rtdebug.host.maps import MappingKind, MapsError, parse_smaps
from rtdebug.snapshot.columns import groups_by_columns
from rtdebug.snapshot.smaps import SmapsReader, groups_by_lines, limited

KEYS = (
    *("KernelPageSize", "MMUPageSize", "Rss", "Pss", "Pss_Dirty", "Shared_Clean", "Shared_Dirty", "Private_Clean"),
    *("Private_Dirty", "Referenced", "Anonymous", "KSM", "LazyFree", "AnonHugePages", "ShmemPmdMapped"),
    *("FilePmdMapped", "Shared_Hugetlb", "Private_Hugetlb", "Swap", "SwapPss", "Locked"),
)
KIB = 1024


def block(head, kib=4, flags="rd wr mr mw me ac", size_kib=8, eligible=0, keys=KEYS, keys_after=""):
    """One mapping as the kernel prints it; the field at index i holds kib + i."""
    lines = [head, f"{'Size:':<16}{size_kib:>8} kB"]
    lines += [f"{key + ':':<16}{kib + index:>8} kB" for index, key in enumerate(keys)]
    lines += [f"{'THPeligible:':<16}{eligible:>8}", *([keys_after] if keys_after else []), f"VmFlags: {flags} "]
    return "\n".join(lines) + "\n"


HEAP = "55d000000000-55d000002000 rw-p 00000000 00:00 0                          [heap]"
ANON = "7f0000000000-7f0000002000 rw-p 00000000 00:00 0 "
OTHER_ANON = "7f0000100000-7f0000102000 rw-p 00000000 00:00 0 "
LIBRARY = "7f0000200000-7f0000202000 r-xp 00026000 fe:00 260386                     /usr/lib/libc.so.6"
LIBRARY_FURTHER = "7f0000300000-7f0000302000 r-xp 00126000 fe:00 260386                     /usr/lib/libc.so.6"
HOSTILE = "7f0000400000-7f0000402000 rw-s 00000000 00:01 5     /memfd:a  VmFlags: Size: \\012 \x1b[31m (deleted)"


def text_of(*blocks):
    return "".join(blocks).encode("utf-8", "surrogateescape")


def same(text):
    """By columns as by lines; returns them."""
    groups = groups_by_columns(text)
    assert groups is not None
    assert groups == groups_by_lines(text)
    return groups


def test_mappings_that_differ_in_address_and_offset_are_one_group():
    libraries = (block(LIBRARY), block(LIBRARY_FURTHER, 90))
    groups = same(text_of(block(HEAP), block(ANON, 3), block(OTHER_ANON, 5), *libraries))
    assert [(group.path, group.count) for group in groups] == [("[heap]", 1), ("", 2), ("/usr/lib/libc.so.6", 2)]
    anon = groups[1]
    rss = KEYS.index("Rss")
    assert anon.use.rss_bytes == (3 + rss + 5 + rss) * KIB
    assert anon.use.locked_bytes == (3 + 5 + 2 * KEYS.index("Locked")) * KIB
    assert anon.length_bytes == 2 * 8 * KIB
    assert anon.use.pss_anon_bytes is None  # in smaps_rollup only


@pytest.mark.parametrize(
    "other",
    [
        block(OTHER_ANON, flags="rd wr mr mw me ac hg"),
        block(OTHER_ANON, eligible=1),
        block(OTHER_ANON.replace("rw-p", "r--p")),
        block(OTHER_ANON.rstrip() + "                          [anon:a b (c)]"),
    ],
    ids=["flags", "eligible", "rights", "name"],
)
def test_what_differs_otherwise_stays_apart(other):
    assert [group.count for group in same(text_of(block(ANON), other))] == [1, 1]


def test_seven_and_eight_digits_and_a_size_of_more():
    all_of_it = "0000-800000000000 rw-p 00000000 00:00 0 "
    groups = same(text_of(block(all_of_it, 9_999_999, size_kib=137_438_953_472), block(LIBRARY, 99_999_900)))
    assert groups[0].length_bytes == 137_438_953_472 * KIB
    assert groups[1].use.locked_bytes == (99_999_900 + KEYS.index("Locked")) * KIB


def test_nine_digits_are_left_to_the_other_way():
    text = text_of(block(ANON), block(LIBRARY, 100_000_000))
    assert groups_by_columns(text) is None
    assert SmapsReader(seen_bytes=1 << 30).parse(text)[0].use.rss_bytes == (100_000_000 + KEYS.index("Rss")) * KIB


def test_no_figure_is_lost_where_the_first_mapping_is_of_another_form():
    text = text_of(block(ANON, 100_000_000), block(LIBRARY))
    assert groups_by_columns(text) is None
    old = "".join(line for line in block(ANON).splitlines(True) if not line.startswith(("THPeligible", "VmFlags")))
    assert groups_by_columns((old * 2).encode()) is None, "before VmFlags (Linux 3.8) a figure stands last"
    (group,) = SmapsReader(seen_bytes=1 << 30).parse((old * 2).encode())
    assert group.use.locked_bytes == 2 * (4 + KEYS.index("Locked")) * KIB


def test_a_file_named_like_a_key_cannot_mislead():
    groups = same(text_of(block(ANON), block(HOSTILE), block(LIBRARY)))
    (found,) = [group for group in groups if group.kind is MappingKind.MEMFD]
    assert found.path == "/memfd:a  VmFlags: Size: \n \x1b[31m"


def test_a_header_broken_in_two_by_a_mailer_is_left_to_the_other_way():
    head, _, name = LIBRARY.partition("     ")
    text = text_of(block(ANON), block(f"{head}\n  {name.strip()}"))
    assert groups_by_columns(text) is None
    assert [group.path for group in SmapsReader(seen_bytes=1 << 30).parse(text)] == ["", "/usr/lib/libc.so.6"]


@pytest.mark.parametrize("part_bytes", [1, 100, 700, 1500, 5000])
def test_wherever_a_long_text_is_parted(monkeypatch, part_bytes):
    monkeypatch.setattr("rtdebug.snapshot.columns._PART_BYTES", part_bytes)
    blocks = (block(HEAP), block(ANON, 3), block(HOSTILE), block(LIBRARY), block(OTHER_ANON, 5, flags="rd"))
    for count in range(1, len(blocks) + 1):
        same(text_of(*blocks[:count]))
    same(text_of(*blocks).removesuffix(b"\n") + b"\n")


def test_names_of_any_bytes():
    name = ANON.rstrip() + " /tmp/\udcff\udc80 a\rb"
    (group,) = same(text_of(block(name)))
    assert group.path == "/tmp/\udcff\udc80 a\rb"


def test_a_line_that_some_kernels_add():
    (group,) = same(text_of(block(ANON, keys_after="ProtectionKey:         0")))
    assert group.vm_flags == "rd wr mr mw me ac"


def test_the_line_that_was_a_blank_short():
    """Linux 5.4 (Ubuntu 20.04) and some after it; there THPeligible has tabs."""
    text = text_of(block(ANON, 3), block(LIBRARY), block(OTHER_ANON, 5), block(HOSTILE, eligible=1))
    text = text.replace(b"FilePmdMapped: ", b"FilePmdMapped:").replace(b"THPeligible:    ", b"THPeligible:\t\t")
    anon, *_, hostile = same(text)
    assert anon.use.swap_bytes == (3 + 5 + 2 * KEYS.index("Swap")) * KIB
    assert anon.use.filepmdmapped_bytes == (3 + 5 + 2 * KEYS.index("FilePmdMapped")) * KIB
    assert (anon.thp_eligible, hostile.thp_eligible) == (False, True)


def test_protection_keys_part_no_groups():
    keys = [f"ProtectionKey:  {key:>8}" for key in (0, 1)]
    (group,) = same(text_of(block(ANON, keys_after=keys[0]), block(OTHER_ANON, keys_after=keys[1])))
    assert group.count == 2


def test_older_kernels_know_less():
    keys = [key for key in KEYS if key not in ("Pss_Dirty", "KSM", "FilePmdMapped")]
    (group,) = same(text_of(block(ANON, keys=keys)))
    assert group.use.ksm_bytes is None
    assert group.use.swap_bytes == (4 + keys.index("Swap")) * KIB


def test_no_mappings():
    assert SmapsReader().parse(b"") == ()
    assert SmapsReader(seen_bytes=1 << 30).parse(b"") == ()


@pytest.mark.parametrize("cut", range(10, 700, 53))
def test_a_text_cut_short_is_an_error_or_a_part_never_wrong(cut):
    text = text_of(block(ANON), block(LIBRARY))[:-cut]
    try:
        groups = SmapsReader(seen_bytes=1 << 30).parse(text)
    except MapsError:
        return
    assert all(group.use.rss_bytes in (None, (4 + KEYS.index("Rss")) * KIB) for group in groups)


def test_there_is_room_for_so_many_groups():
    blocks = [block(f"{at:x}000-{at + 1:x}000 r--p 00000000 fe:00 {at}     /lib/{at}", at) for at in range(100, 120)]
    reader = SmapsReader(room=5)
    groups = reader.parse(text_of(*blocks))
    assert [group.is_rest for group in groups] == [False] * 5 + [True]
    assert groups[0].path == "/lib/119"  # the largest are kept
    assert groups[-1].count == 15
    assert sum(group.use.rss_bytes for group in groups) == sum(at + 2 for at in range(100, 120)) * KIB
    assert limited(groups, 0)[0].count == 20


def test_real_texts(cases):
    for path in sorted([*cases.glob("*.smaps"), *cases.glob("*smaps*.txt")]):
        text = path.read_bytes()
        entries = parse_smaps(text.decode("utf-8", "surrogateescape"))
        groups = SmapsReader().parse(text)
        assert sum(group.count for group in groups) == len(entries)
        known = [entry.use.rss_bytes for entry in entries if entry.use.rss_bytes is not None]
        assert sum(group.use.rss_bytes or 0 for group in groups) == sum(known)
        by_columns = groups_by_columns(text)
        assert by_columns is None or sorted(map(repr, by_columns)) == sorted(map(repr, groups_by_lines(text)))


def test_the_block_is_what_this_kernel_prints():
    text = Path("/proc/self/smaps").read_bytes()
    assert re.match(rb"[0-9a-f]+-", text)
    same(text)
