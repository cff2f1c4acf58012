from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from rtdebug.errors import HostUnable
from rtdebug.host import cgroup, memcg
from rtdebug.limits.demand import unreclaimable_bytes

from .trees import make_host, write_files

MIB = 1 << 20


def hierarchy_of(folder: Path, mountinfo: str, controllers: str | None = None) -> cgroup.MemoryHierarchy:
    if controllers is not None:
        write_files(folder, {"cgroup/cgroup.controllers": controllers})
    write_files(folder, {"proc/self/mountinfo": mountinfo.replace("TREE", str(folder))})
    return cgroup.find_memory_hierarchy(folder / "proc")


# Which hierarchy


def test_v2(tmp_path):
    found = hierarchy_of(
        tmp_path, "31 1 0:29 / TREE/cgroup rw - cgroup2 none rw,nsdelegate\n", "cpu memory\n"
    )
    assert found == cgroup.MemoryHierarchy(2, tmp_path / "cgroup")
    assert found.path("/a/b") == tmp_path / "cgroup/a/b"
    assert found.cgroup(tmp_path / "cgroup/a/b") == "/a/b"
    assert found.cgroup(tmp_path / "cgroup") == "/"
    assert found.cgroup(tmp_path) is None


def test_hybrid_is_v1_though_v2_lies_beside_it(tmp_path):
    found = hierarchy_of(
        tmp_path,
        "30 1 0:28 / TREE/unified rw - cgroup2 none rw\n"
        "31 1 0:29 / TREE/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
        "32 1 0:30 / TREE/cgroup rw - cgroup cgroup rw,memory\n"
        "33 1 0:31 / TREE/s rw - cgroup c rw,name=systemd\n",
        "hugetlb\n",
    )
    assert found == cgroup.MemoryHierarchy(1, tmp_path / "cgroup")


def test_named_v1_hierarchy_beside_real_v2(tmp_path):
    found = hierarchy_of(
        tmp_path,
        "33 1 0:31 / TREE/s rw - cgroup c rw,name=memory\n31 1 0:29 / TREE/cgroup rw - cgroup2 none rw\n",
        "memory\n",
    )
    assert found.version == 2


def test_controller_switched_off(tmp_path):
    with pytest.raises(HostUnable, match="memory controller") as caught:
        hierarchy_of(tmp_path, "31 1 0:29 / TREE/cgroup rw - cgroup2 none rw\n", "cpu pids\n")
    assert "cgroup_disable=memory" in caught.value.hint


def test_nothing_mounted(tmp_path):
    with pytest.raises(HostUnable, match="no cgroup hierarchy") as caught:
        hierarchy_of(tmp_path, "1 0 8:1 / / rw - ext4 /dev/sda rw\n")
    assert "mount -t cgroup2" in caught.value.hint


def test_mount_that_shows_most_wins(tmp_path):
    """In a container with the host's tree mounted beside its own part of it."""
    found = hierarchy_of(
        tmp_path,
        "31 1 0:29 /docker/x TREE/own rw - cgroup c rw,memory\n"
        "32 1 0:29 / TREE/host rw - cgroup c rw,memory\n",
    )
    assert found == cgroup.MemoryHierarchy(1, tmp_path / "host")


def test_only_a_part_is_mounted():
    part = cgroup.MemoryHierarchy(1, Path("/sys/fs/cgroup/memory"), "/docker/x")
    assert part.path("/docker/x/a") == Path("/sys/fs/cgroup/memory/a")
    assert part.cgroup(Path("/sys/fs/cgroup/memory/a")) == "/docker/x/a"
    with pytest.raises(HostUnable, match="out of sight"):
        part.path("/docker/xy")


def test_path_refuses_to_climb():
    with pytest.raises(ValueError, match=r"'\.\.'"):
        cgroup.MemoryHierarchy(2, Path("/sys/fs/cgroup")).path("/a/../../../etc")


# Whose memory is counted where


def test_memory_entry_prefers_v1_memory_line():
    entries = cgroup.parse_proc_cgroup("0::/wrong\n5:name=systemd:/s\n4:cpu,memory:/right:with:colons\n")
    found = cgroup.memory_entry(entries)
    assert found is not None
    assert (found.path, found.controllers, found.hierarchy_id) == ("/right:with:colons", ("cpu", "memory"), 4)


@pytest.mark.parametrize("text", ["", "\n", "4:memory", "x:memory:/a\n", "4:memory:relative\n"])
def test_proc_cgroup_without_a_usable_line(text):
    assert cgroup.memory_entry(cgroup.parse_proc_cgroup(text)) is None


@pytest.mark.parametrize("version", [1, 2])
def test_memory_cgroup_of_a_process(tmp_path, version):
    host = make_host(tmp_path, version)
    host.add_process(77, "/a/b")
    assert cgroup.memory_cgroup_of(77, host.roots.proc) == "/a/b"
    assert cgroup.memory_cgroup_of(78, host.roots.proc) is None


def test_path_that_climbs_out_of_our_namespace_is_searched(tmp_path):
    host = make_host(tmp_path)
    host.add_process(77, "/top/in.slice")
    (tmp_path / "proc/77/cgroup").write_text("0::/../in.slice\n")
    assert cgroup.memory_cgroup_of(77, host.roots.proc) == "/top/in.slice"
    (tmp_path / "cgroup/top/in.slice/cgroup.procs").write_text("")
    assert cgroup.memory_cgroup_of(77, host.roots.proc) is None, "out of sight is unknown, not /"


def test_case_049_relative_path(cases, tmp_path):
    expected = yaml.safe_load((cases / "049-cgroupns-relative-path-session.yaml").read_text())["expected"]
    write_files(
        tmp_path,
        {
            "proc/self/mountinfo": (cases / "049-cgroupns-relative-path-session.mountinfo")
            .read_text()
            .replace("testdata/docker2/", f"{tmp_path}/"),
            "proc/2233801/cgroup": (cases / "049-cgroupns-relative-path-session.cgroup").read_text(),
            "sys/fs/cgroup/cgroup.controllers": "memory\n",
            "sys/fs/cgroup" + expected["resolved_path"] + "/cgroup.procs": "2233801\n",
        },
    )
    hierarchy = cgroup.find_memory_hierarchy(tmp_path / "proc")
    assert hierarchy.mount_point == tmp_path / "sys/fs/cgroup", "the mount whose root reaches highest"
    assert cgroup.memory_cgroup_of(2233801, tmp_path / "proc", hierarchy) == expected["resolved_path"]


def test_deleted_is_not_part_of_the_name():
    (entry,) = cgroup.parse_proc_cgroup("0::/rtdebug-x/gone.scope (deleted)\n")
    assert (entry.path, entry.deleted) == ("/rtdebug-x/gone.scope", True)


def test_case_046_memory_cgroups(cases):
    expected = yaml.safe_load((cases / "046-proc-cgroup-v1-docker-history.yaml").read_text())["expected"][
        "files"
    ]
    checked = 0
    for name, values in expected.items():
        if "memory_cgroup" in values:
            entries = cgroup.parse_proc_cgroup(
                (cases / f"046-proc-cgroup-v1-docker-history.{name}.txt").read_text()
            )
            found = cgroup.memory_entry(entries)
            assert found is not None and found.path == values["memory_cgroup"], name
            checked += 1
    assert checked >= 3


def test_case_050_version_by_the_memory_line(cases):
    expected = yaml.safe_load((cases / "050-hybrid-v1-with-0-line.yaml").read_text())["expected"]["files"]
    for name, values in expected.items():
        text = (cases / f"050-hybrid-v1-with-0-line.{name}.cgroup").read_text()
        entry = cgroup.memory_entry(cgroup.parse_proc_cgroup(text))
        assert entry is not None
        assert ("v2" if entry.hierarchy_id == 0 else "v1") == values["memory_version"], name
        if "memory_cgroup" in values:
            assert entry.path == values["memory_cgroup"], name


def test_pids_below_a_cgroup(tmp_path):
    write_files(tmp_path, {"cgroup.procs": "7\n11\n", "a/cgroup.procs": "13\n0\n", "a/b/cgroup.procs": ""})
    assert cgroup.pids_of(tmp_path) == {7, 11, 13}, "0 is a process of another pid namespace"
    assert cgroup.pids_of(tmp_path, recursive=False) == {7, 11}
    assert cgroup.pids_of(tmp_path / "gone") == frozenset()


def test_cgroup_id_is_the_inode(tmp_path):
    assert cgroup.cgroup_id(tmp_path) == tmp_path.stat().st_ino
    with pytest.raises(OSError):
        cgroup.cgroup_id(tmp_path / "gone")


# What the cgroup says


def test_case_052_limits(cases):
    expected = yaml.safe_load((cases / "052-cgroup-facts-deleted-limits.yaml").read_text())["expected"]
    for value in expected["unlimited_values"]:
        assert memcg.parse_limit(f"{value}\n") is None
    assert memcg.parse_limit(f"{expected['rounding']['read_back']}\n") == expected["rounding"]["read_back"]
    text = (cases / "052-cgroup-facts-deleted-limits.txt").read_text()
    line = next(line for line in text.splitlines() if line.startswith("0::"))
    (entry,) = cgroup.parse_proc_cgroup(line)
    assert (entry.path, entry.deleted) == (expected["deleted"]["path"], expected["deleted"]["deleted"])


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("max\n", None),
        ("18446744073709551615\n", None),
        (f"{(2**63 - 1) // 262144 * 262144}\n", None),  # 256 KiB pages
        ("0\n", 0),
        (f"{7 << 40}\n", 7 << 40),
        (f"{1 << 62}\n", 1 << 62),
        ("", None),
        (None, None),
    ],
)
def test_limits(text, limit):
    assert memcg.parse_limit(text) == limit


def test_v1_state(tmp_path):
    write_files(
        tmp_path,
        {
            "memory.usage_in_bytes": "40001536\n",
            "memory.limit_in_bytes": f"{48 * MIB}\n",
            "memory.max_usage_in_bytes": "44040192\n",
            "memory.failcnt": "23\n",
            "memory.memsw.limit_in_bytes": f"{64 * MIB}\n",
            "memory.kmem.usage_in_bytes": "655360\n",
            "memory.oom_control": "oom_kill_disable 1\nunder_oom 0\noom_kill 3\n",
            "memory.stat": "rss 1\ntotal_rss 20971520\ntotal_cache 12582912\ntotal_shmem 8388608\n"
            "total_inactive_file 1048576\ntotal_swap 4096\n",
        },
    )
    state = memcg.read_memory(tmp_path)
    assert state is not None and state.version == 1
    assert (state.usage_bytes, state.limit_bytes, state.peak_bytes) == (40001536, 48 * MIB, 44040192)
    assert (state.failcnt, state.events) == (23, {"oom_kill": 3})
    assert (state.swap_usage_bytes, state.swap_limit_bytes) == (4096, 16 * MIB)
    assert (state.anon_bytes, state.file_bytes, state.shmem_bytes) == (20971520, 12582912, 8388608)
    assert (state.kernel_bytes, state.working_set_bytes) == (655360, 40001536 - 1048576)
    assert (state.oom_kill_disable, state.under_oom) == (True, False)
    assert state.pressure is None and state.oom_group is None and state.high_bytes is None


def test_v2_state(tmp_path):
    write_files(
        tmp_path,
        {
            "memory.current": "31457280\n",
            "memory.max": "max\n",
            "memory.high": f"{40 * MIB}\n",
            "memory.swap.current": "0\n",
            "memory.swap.max": "0\n",
            "memory.oom.group": "1\n",
            "memory.events": "low 0\nhigh 17\nmax 5\noom 1\noom_kill 2\noom_group_kill 1\nnew_key 9\n",
            "memory.events.local": "oom 0\noom_kill 2\n",
            "memory.pressure": "some avg10=1.50 avg60=0.25 avg300=0.01 total=123457\n",
            "memory.stat": "anon 23\nfile 41\nshmem 7\nkernel 11\nkernel_stack 3\ninactive_file 40000000\n",
        },
    )
    state = memcg.read_memory(tmp_path)
    assert state is not None and state.version == 2
    assert (state.limit_bytes, state.high_bytes, state.peak_bytes) == (None, 40 * MIB, None)
    assert (state.swap_usage_bytes, state.swap_limit_bytes) == (0, 0)
    assert (state.anon_bytes, state.file_bytes, state.shmem_bytes, state.kernel_bytes) == (23, 41, 7, 11)
    assert state.events["new_key"] == 9 and state.events_local == {"oom": 0, "oom_kill": 2}
    assert state.oom_group is True and state.failcnt is None
    assert state.working_set_bytes == 0, "never negative: the files are not read at one instant"
    assert state.pressure == memcg.Pressure(memcg.Stall(1.5, 0.25, 0.01, 123457), None)


def test_absent_files_are_unknown_not_zero(tmp_path):
    write_files(tmp_path, {"memory.stat": "anon 5\n"})
    state = memcg.read_memory(tmp_path)
    assert state is not None
    known = {"version": 2, "stat": {"anon": 5}, "events": {}, "events_local": {}}
    for name in type(state).__slots__:
        assert getattr(state, name) == known.get(name), name
    for name in ("file_bytes", "shmem_bytes", "kernel_bytes", "working_set_bytes"):
        assert getattr(state, name) is None, name


def state_of(folder: Path, **files: str) -> memcg.MemoryState:
    state = memcg.read_memory(write_files(folder, {f"memory.{name}": text for name, text in files.items()}))
    assert state is not None
    return state


def test_socket_buffers_are_the_kernels_part(tmp_path):
    state = state_of(tmp_path, current="1000\n", stat="anon 300\nfile 40\nshmem 0\nkernel 50\nsock 600\n")
    assert (state.dominant_kind, state.by_kind_bytes["kernel"], state.kernel_bytes) == ("kernel", 650, 50)


@pytest.mark.parametrize(("usage", "dominant"), [(650, "anon"), (651, None), (None, "anon")])
def test_what_is_mostly_unknown_is_no_kind(tmp_path, usage, dominant):
    """v1 without kernel accounting: memory.stat then explains little of a usage that is the kernel's."""
    files = {} if usage is None else {"usage_in_bytes": f"{usage}\n"}
    stat = "total_cache 50\ntotal_rss 300\ntotal_shmem 0\ntotal_active_file 50\n"
    state = state_of(tmp_path, stat=stat, **files)
    assert (state.version, state.dominant_kind) == (1, dominant)


@pytest.mark.parametrize(
    ("locked", "batch", "least"), [(0, 0, 90), (10, 0, 80), (90, 0, None), (0, 90 * MIB - 9, None)]
)
def test_shmem_that_an_old_kernel_does_not_tell(tmp_path, locked, batch, least):
    """What is in the cache and on no list of file pages."""
    stat = (
        f"total_cache {130 * MIB}\ntotal_rss {30 * MIB}\ntotal_inactive_anon {120 * MIB}\n"
        f"total_active_file {40 * MIB + batch}\ntotal_inactive_file 0\ntotal_unevictable {locked * MIB}\n"
    )
    state = state_of(tmp_path, stat=stat)
    assert state.shmem_bytes is None, "it is not told"
    assert state.least_shmem_bytes == (None if least is None else least * MIB)
    assert state.by_kind_bytes.get("shmem") == state.least_shmem_bytes
    assert unreclaimable_bytes(state, 0) == (30 + (least or 0)) * MIB


def test_vanished_cgroup_is_none(tmp_path):
    assert memcg.read_memory(tmp_path / "gone") is None


def test_case_060_slab(cases, tmp_path):
    expected = yaml.safe_load((cases / "060-v1-slab-dentry-docker-cli.yaml").read_text())["expected"]
    sections = (cases / "060-v1-slab-dentry-docker-cli.txt").read_text().split("# ")
    write_files(
        tmp_path,
        {
            section.split()[0]: section.partition("\n")[2]
            for section in sections
            if section.startswith("memory.")
        },
    )
    state = memcg.read_memory(tmp_path)
    assert state is not None
    assert (state.usage_bytes, state.kernel_bytes) == (expected["usage_bytes"], expected["kmem_bytes"])
    assert (state.anon_bytes, state.file_bytes) == (expected["rss_bytes"], expected["cache_bytes"])


def read_case(cases, folder, prefix):
    files = {path.name[len(prefix) + 1 :]: path.read_text() for path in cases.glob(f"{prefix}.memory.*")}
    assert files
    state = memcg.read_memory(write_files(folder, files))
    assert state is not None
    return state, yaml.safe_load((cases / f"{prefix}.yaml").read_text())["expected"]


def test_case_062_full_v1_set(cases, tmp_path):
    state, expected = read_case(cases, tmp_path, "062-v1-eks-full-set")
    assert state.usage_bytes == expected["usage_bytes"]
    assert state.limit_bytes == expected["limit_bytes"]
    assert state.peak_bytes == expected["max_usage_bytes"]
    assert state.failcnt == expected["failcnt"]
    assert state.anon_bytes == expected["rss_bytes"]
    assert state.file_bytes == expected["cache_bytes"]
    assert state.shmem_bytes == expected["shmem_bytes"]
    assert state.kernel_bytes == expected["kmem_bytes"]
    assert state.working_set_bytes == expected["working_set_bytes"]
    assert state.events == {"oom_kill": expected["oom_kill"]}
    assert (state.swap_limit_bytes, state.swap_usage_bytes) == (0, 0), "memsw < usage is not negative swap"


def test_case_063_fields_an_old_kernel_lacks(cases, tmp_path):
    state, expected = read_case(cases, tmp_path, "063-v1-docker-no-shmem-field")
    assert state.version == 1, "though the capture has no usage_in_bytes"
    assert state.anon_bytes == expected["rss_bytes"]
    assert state.file_bytes == expected["cache_bytes"]
    assert state.limit_bytes == expected["limit_bytes"]
    assert state.shmem_bytes is None and state.swap_usage_bytes is None and state.kernel_bytes is None
    assert state.stat["total_rss_huge"] == expected["rss_huge_bytes"]


def test_case_064_page_cache(cases, tmp_path):
    state, expected = read_case(cases, tmp_path, "064-v2-page-cache-dominated")
    assert state.usage_bytes == expected["current_bytes"]
    assert state.peak_bytes == expected["peak_bytes"]
    assert state.limit_bytes is None
    assert state.kernel_bytes == expected["kernel_bytes"]
    assert state.swap_usage_bytes == expected["swap_bytes"]
    assert state.shmem_bytes == expected["shmem_bytes"]
    assert state.working_set_bytes == expected["working_set_bytes"]
    assert state.events == state.events_local == expected["events"]


def test_case_065_past_pressure(cases, tmp_path):
    state, expected = read_case(cases, tmp_path, "065-v2-memory-pressure-stalls")
    assert state.pressure is not None and state.pressure.some is not None and state.pressure.full is not None
    assert state.pressure.some.total_us == expected["psi"]["some_total_us"]
    assert state.pressure.full.total_us == expected["psi"]["full_total_us"]
    assert state.pressure.full.avg10 == expected["psi"]["full_avg10"]
    # No "kernel" line before 5.18: its parts are added up.
    assert state.kernel_bytes == 262144 + 536576 + 0 + expected["slab_bytes"]


def test_case_069_events(cases, tmp_path):
    name = "069-v2-events-semantics"
    expected = yaml.safe_load((cases / f"{name}.yaml").read_text())["expected"]
    events = {}
    for moment in ("before", "after"):
        text = (cases / f"{name}.{moment}.memory.events").read_text()
        folder = write_files(tmp_path / moment, {"memory.stat": "", "memory.events": text})
        state = memcg.read_memory(folder)
        assert state is not None
        events[moment] = state.events
    assert {key: events["after"][key] - events["before"][key] for key in expected["delta"]} == expected[
        "delta"
    ]
    assert set(expected["unknown_keys_ok"]) <= events["after"].keys()


# Which limit binds


def test_lowest_limit_of_all_ancestors_binds(tmp_path):
    host = make_host(tmp_path)
    host.add_cgroup("/a", memory_max=f"{200 * MIB}\n")
    host.add_cgroup("/a/b", memory_max=f"{100 * MIB}\n")
    host.add_cgroup("/a/b/c", memory_max="max\n")
    assert memcg.effective_limit(host.hierarchy, "/a/b/c") == memcg.EffectiveLimit(100 * MIB, "/a/b")
    host.add_cgroup("/a/b/c", memory_max=f"{100 * MIB}\n")
    assert memcg.effective_limit(host.hierarchy, "/a/b/c") == memcg.EffectiveLimit(100 * MIB, "/a/b/c")


def test_no_limit_anywhere(tmp_path):
    host = make_host(tmp_path)
    host.add_cgroup("/a", memory_max="max\n")
    assert memcg.effective_limit(host.hierarchy, "/a") is None


@pytest.mark.parametrize(("use_hierarchy", "binds"), [("1\n", True), ("0\n", False), (None, True)])
def test_v1_ancestor_binds_only_with_use_hierarchy(tmp_path, use_hierarchy, binds):
    host = make_host(tmp_path, version=1)
    files = {} if use_hierarchy is None else {"memory_use_hierarchy": use_hierarchy}
    host.add_cgroup("/a", memory_limit_in_bytes=f"{50 * MIB}\n", **files)
    host.add_cgroup("/a/b", memory_limit_in_bytes="9223372036854771712\n")
    found = memcg.effective_limit(host.hierarchy, "/a/b")
    assert found == (memcg.EffectiveLimit(50 * MIB, "/a") if binds else None)


def test_v1_limit_beyond_what_is_mounted(tmp_path):
    """Inside a container: memory.stat still tells the lowest limit of all ancestors."""
    part = cgroup.MemoryHierarchy(
        1, write_files(tmp_path, {"memory.stat": "hierarchical_memory_limit 8388608\n"}), "/x"
    )
    assert memcg.effective_limit(part, "/x") == memcg.EffectiveLimit(8388608, None)


def test_nearest_ancestor_with_memory_files(tmp_path):
    """systemd in a container moves everything to init.scope, where v2 may not enable the controller."""
    host = make_host(tmp_path)
    host.add_cgroup("/box")
    (tmp_path / "cgroup/box/init.scope").mkdir()
    assert cgroup.nearest_memory_cgroup(host.hierarchy, "/box/init.scope") == "/box"
    assert cgroup.nearest_memory_cgroup(host.hierarchy, "/box") == "/box"
