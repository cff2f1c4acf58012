from pathlib import Path

from rtdebug.host.meminfo import BuddyZone, parse_buddyinfo, parse_meminfo, read_meminfo
from rtdebug.host.thp import parse_choice, read_thp


def test_meminfo_is_in_bytes_and_counts_stay_counts():
    text = "MemTotal:       24684712 kB\nHugePages_Total:      3\nActive(anon): 12 kB\nBroken\nOther: x kB\nCut: 12 k"
    assert parse_meminfo(text) == {"MemTotal": 24684712 * 1024, "HugePages_Total": 3, "Active(anon)": 12288}


def test_this_hosts_meminfo_is_read():
    assert read_meminfo()["MemTotal"] > 2**20
    assert read_meminfo(Path("/nowhere")) == {}


def test_buddyinfo():
    text = "Node 0, zone      DMA      0      1\nNode 1, zone   Normal    216     55\nNode 1, zone   Normal 2 x\nNode\n"
    assert parse_buddyinfo(text) == (BuddyZone(0, "DMA", (0, 1)), BuddyZone(1, "Normal", (216, 55)))


def test_the_chosen_word():
    assert parse_choice("always defer defer+madvise [madvise] never\n") == "madvise"
    assert parse_choice("always madvise never") is None
    assert parse_choice(None) is None


def test_thp_settings_with_mthp_sizes(tmp_path):
    folder = tmp_path / "kernel/mm/transparent_hugepage"
    (folder / "khugepaged").mkdir(parents=True)
    (folder / "hugepages-64kB").mkdir()
    (folder / "enabled").write_text("always [madvise] never\n")
    (folder / "shmem_enabled").write_text("always within_size advise [never] deny force\n")
    (folder / "use_zero_page").write_text("1\n")
    (folder / "hpage_pmd_size").write_text("2097152\n")
    (folder / "khugepaged/max_ptes_none").write_text("511\n")
    (folder / "hugepages-64kB/enabled").write_text("always [inherit] madvise never\n")
    settings = read_thp(tmp_path)
    assert settings is not None
    assert (settings.enabled, settings.shmem_enabled, settings.defrag) == ("madvise", "never", None)
    assert settings.use_zero_page is True
    assert settings.pmd_size_bytes == 2 << 20
    assert settings.khugepaged == {"max_ptes_none": 511}
    assert (settings.sizes[65536].enabled, settings.sizes[65536].shmem_enabled) == ("inherit", None)


def test_a_kernel_without_thp(tmp_path):
    assert read_thp(tmp_path) is None
