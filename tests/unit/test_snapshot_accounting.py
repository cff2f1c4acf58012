"""Where the memory is: whatever the figures, all lines add up to what the cgroup counts."""

from dataclasses import replace

import pytest

from rtdebug.host.maps import MappingKind
from rtdebug.host.text import parse_keyed
from rtdebug.snapshot.accounting import account, binding_limit, pss_by_kind
from tests.unit.snapshots import MIB, mapping, memory_state, process, shm_object, snapshot, use


def with_memory(state, **more):
    base = snapshot(**more)
    return replace(base, cgroups=(replace(base.cgroups[0], memory=state), *base.cgroups[1:]))


def parts_of(accounting):
    return {part.kind: part for part in accounting.parts}


def check_sums(accounting):
    """All that is split adds up, and both ways of counting give the same."""
    def check(part):
        if part.parts:
            assert sum(inner.bytes for inner in part.parts) == part.bytes, part.kind
            for inner in part.parts:
                check(inner)

    for part in accounting.parts:
        check(part)
    total = sum(part.bytes for part in accounting.parts)
    assert total + accounting.difference_bytes == accounting.cgroup_bytes
    assert sum(share.bytes for share in accounting.shares) == total


def test_v1():
    accounting = account(snapshot())
    check_sums(accounting)
    parts = parts_of(accounting)
    assert {kind: part.bytes // MIB for kind, part in parts.items()} == {
        "anon": 60, "shmem": 20, "page_cache": 15, "kernel": 4,
    }  # fmt: skip
    assert accounting.difference_bytes == MIB
    inner = [(part.kind, part.bytes // MIB) for part in parts["anon"].parts]
    assert inner == [("mapped_anon", 59), ("unmapped_anon", 1)]
    assert [(part.kind, part.bytes) for part in accounting.beside] == [("swap", MIB)]


def test_shared_memory_that_nobody_maps_is_named():
    unmapped = parts_of(account(snapshot()))["shmem"].parts[1]
    assert (unmapped.kind, unmapped.bytes) == ("unmapped_shmem", 7 * MIB)
    objects = [(part.kind, part.bytes // MIB) for part in unmapped.parts]
    assert objects == [("posix_objects", 5), ("other_shmem", 2)]


def test_objects_of_which_the_kernel_has_not_counted_all_pages_yet():
    base = snapshot()
    late = snapshot(shared=replace(base.shared, shm=(shm_object(allocated=7 * MIB + 8192),)))
    accounting = account(late)
    check_sums(accounting)
    objects = [(part.kind, part.bytes) for part in parts_of(accounting)["shmem"].parts[1].parts]
    assert objects == [("posix_objects", 7 * MIB + 8192), ("late_shmem", -8192)]


def test_objects_that_others_pay_for_are_not_counted():
    base = snapshot()
    large = snapshot(shared=replace(base.shared, shm=(shm_object(allocated=50 * MIB),)))
    accounting = account(large)
    check_sums(accounting)
    assert parts_of(accounting)["shmem"].parts[1].parts == ()


def test_v2_has_the_kinds_of_kernel_memory():
    stat = {
        "anon": 50 * MIB, "file": 30 * MIB, "shmem": 13 * MIB, "file_mapped": 15 * MIB, "swapcached": MIB,
        "kernel": 9 * MIB, "slab_reclaimable": 4 * MIB, "slab_unreclaimable": 2 * MIB, "kernel_stack": MIB,
        "pagetables": MIB, "percpu": 0, "sock": 2 * MIB, "pgfault": 12345678,
    }  # fmt: skip
    accounting = account(with_memory(memory_state(2, 92 * MIB, **stat)))
    check_sums(accounting)
    parts = parts_of(accounting)
    assert parts["page_cache"].bytes == 16 * MIB  # file, less shmem, less what is in the swap cache
    assert parts["sock"].bytes == 2 * MIB
    assert parts["kernel"].parts[-1].kind == "other_kernel"
    assert parts["kernel"].parts[-1].bytes == MIB
    assert parts["anon"].parts[1].kind == "foreign_anon"  # 59 MiB in processes
    assert parts["anon"].parts[1].bytes == -9 * MIB


def test_mapped_files_that_others_read_first():
    stat = {"total_rss": 59 * MIB, "total_cache": 20 * MIB, "total_shmem": 13 * MIB, "total_mapped_file": 13 * MIB}
    accounting = account(with_memory(memory_state(1, 90 * MIB, **stat)))
    check_sums(accounting)
    inner = {part.kind: part.bytes for part in parts_of(accounting)["page_cache"].parts}
    assert inner == {"mapped_page_cache": 4 * MIB, "foreign_page_cache": -4 * MIB, "unmapped_page_cache": 7 * MIB}


def test_a_kernel_that_does_not_tell_shmem_apart():
    accounting = account(with_memory(memory_state(1, 90 * MIB, total_rss=60 * MIB, total_cache=20 * MIB)))
    check_sums(accounting)
    assert "shmem" not in parts_of(accounting)
    assert parts_of(accounting)["page_cache_and_shmem"].bytes == 20 * MIB


def test_a_kernel_whose_lists_give_shmem_away():
    lists = {"total_active_file": 3 * MIB, "total_inactive_file": 4 * MIB}
    accounting = account(with_memory(memory_state(1, 90 * MIB, total_rss=60 * MIB, total_cache=20 * MIB, **lists)))
    check_sums(accounting)
    parts = parts_of(accounting)
    assert (parts["shmem"].bytes, parts["page_cache"].bytes) == (13 * MIB, 7 * MIB)


def test_without_a_cgroup_the_processes_are_still_there():
    accounting = account(snapshot(cgroups=()))
    assert accounting.cgroup_bytes is None and accounting.difference_bytes is None
    assert [share.pid for share in accounting.shares] == [41, 42]
    assert accounting.notes


def test_all_processes_gone():
    accounting = account(snapshot(processes=()))
    check_sums(accounting)
    assert parts_of(accounting)["anon"].parts[1].bytes == 60 * MIB


def test_before_the_rollup_told_the_kinds():
    groups = (
        mapping(pss=5, kind=MappingKind.SHM, path="/dev/shm/x"),
        mapping(pss=7, use=use().__class__(pss_bytes=7, anonymous_bytes=3)),
        mapping(pss=11, kind=MappingKind.HEAP, path="[heap]", inode_id=0),
    )
    old = use(pss_anon_bytes=None)
    assert pss_by_kind(process(memory=old, mappings=groups)) == (14, 4, 5)


def test_the_limit_that_binds_may_be_above():
    base = snapshot()
    above = replace(memory_state(), limit_bytes=90 * MIB)
    taken = replace(base, cgroups=(base.cgroups[0], replace(base.cgroups[1], path="/pod", memory=above)))
    assert binding_limit(taken) == (90 * MIB, "/pod")
    assert binding_limit(snapshot(cgroups=(base.cgroups[1],))) is None


@pytest.mark.parametrize(
    ("name", "current", "kinds"),
    [
        ("064-v2-page-cache-dominated", 10498404352, {"anon": 1411100672, "kernel": 195010560, "shmem": 20480}),
    ],
)
def test_real_cgroups(cases, name, current, kinds):
    stat = parse_keyed((cases / f"{name}.memory.stat").read_text())
    accounting = account(with_memory(memory_state(2, current, **stat), processes=()))
    check_sums(accounting)
    parts = parts_of(accounting)
    assert {kind: parts[kind].bytes for kind in kinds} == kinds
    assert parts["page_cache"].bytes / current > 0.8
    assert abs(accounting.difference_bytes) / current < 0.03


def test_slab_of_a_container_that_uses_nothing_else(cases):
    """Case 060: the kernel's memory is nearly all of it."""
    assert (cases / "060-v1-slab-dentry-docker-cli.txt").exists()
    state = memory_state(1, 17113088, total_rss=491520, total_cache=0, total_shmem=0)
    state = replace(state, kmem_usage_bytes=16547840)
    accounting = account(with_memory(state, processes=()))
    check_sums(accounting)
    assert parts_of(accounting)["kernel"].bytes == 16547840
    assert accounting.difference_bytes == 73728 <= accounting.slack_bytes
