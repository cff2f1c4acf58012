"""What changed between two snapshots."""

import json
from dataclasses import replace

from rtdebug.host.descriptors import FdGroup, FdKind
from rtdebug.render.diff import diff_json, render_diff
from rtdebug.snapshot.diff import Change, Diff, Fate, Subject, compare
from tests.unit.snapshots import MIB, hostile, mapping, memory_state, process, shm_object, snapshot, use


def later(**more):
    return snapshot(time_ns=snapshot().time_ns + 60_000_000_000, **more)


def found(diff, subject):
    return {(change.name, change.fate): change for change in diff.of(subject)}


def test_nothing_changed():
    assert compare(snapshot(), later()).changes == ()
    assert "nothing changed" in "\n".join(render_diff(compare(snapshot(), later()), False, None))


def test_a_process_that_grew_and_what_in_it():
    groups = (mapping(pss=3 * MIB), mapping("/new", MIB))
    grown = process(memory=use(50 * MIB, 3 * MIB, 12 * MIB), mappings=groups, threads=5)
    diff = compare(snapshot(), later(processes=(grown, snapshot().processes[1])))
    (change,) = diff.of(Subject.PROCESS)
    assert (change.fate, change.delta_bytes, change.delta_count, change.pid) == (Fate.GREW, 10 * MIB, 2, 41)
    assert [(each.name, each.fate, each.delta_bytes) for each in diff.of(Subject.MAPPING)] == [
        ("/usr/lib/libc.so.6", Fate.GREW, 2 * MIB),
        ("/new", Fate.APPEARED, MIB),
    ]
    assert found(diff, Subject.KIND)["anon.mapped_anon", Fate.GREW].delta_bytes == 10 * MIB


def test_a_process_with_the_pid_of_another_is_another():
    """Its start time tells; the command line says that it is the same worker, restarted."""
    reborn = process(start_ticks=9999, memory=use(MIB))
    (change,) = compare(snapshot(), later(processes=(reborn, snapshot().processes[1]))).of(Subject.PROCESS)
    assert (change.fate, change.delta_bytes) == (Fate.RESTARTED, MIB - 55 * MIB)
    other = replace(reborn, cmdline=("other",))
    changes = compare(snapshot(), later(processes=(other, snapshot().processes[1]))).of(Subject.PROCESS)
    assert {change.fate for change in changes} == {Fate.VANISHED, Fate.APPEARED}


def test_restarted_under_another_pid():
    reborn = process(77, start_ticks=9999)
    (change,) = compare(snapshot(), later(processes=(reborn, snapshot().processes[1]))).of(Subject.PROCESS)
    assert (change.fate, change.pid, change.before_count) == (Fate.RESTARTED, 77, 3)


def test_two_restarted_workers_are_two():
    old = tuple(process(pid, start_ticks=pid) for pid in (50, 51))
    new = tuple(process(pid, start_ticks=pid) for pid in (60, 61, 62))
    fates = [change.fate for change in compare(snapshot(processes=old), later(processes=new)).of(Subject.PROCESS)]
    assert sorted(fates) == [Fate.APPEARED, Fate.RESTARTED, Fate.RESTARTED]


def test_open_files():
    fds = (
        FdGroup(FdKind.SOCKET, "socket", False, 7, None, None, None, None),
        FdGroup(FdKind.MEMFD, "pool", True, 1, 1, 2, 8 * MIB, 8 * MIB),
    )
    diff = compare(snapshot(), later(processes=(process(fds=fds), snapshot().processes[1])))
    changes = found(diff, Subject.FD)
    assert changes["memfd pool (deleted)", Fate.APPEARED].delta_bytes == 8 * MIB
    assert changes["socket socket", Fate.GREW].delta_count == 5
    assert diff.of(Subject.FD)[0].name.startswith("memfd")  # the largest first


def test_shared_memory_by_its_inode_number():
    base = snapshot()
    files = (shm_object(allocated=9 * MIB), shm_object("/dev/shm/new", MIB, inode_id=10))
    changes = found(compare(base, later(shared=replace(base.shared, shm=files))), Subject.SHM)
    assert changes["posix /dev/shm/lonely (9)", Fate.GREW].delta_bytes == 4 * MIB
    assert changes["posix /dev/shm/new (10)", Fate.APPEARED].delta_bytes == MIB


def test_figures_of_the_cgroups():
    base = snapshot()
    state = replace(memory_state(1, 130 * MIB), failcnt=10)
    diff = compare(base, later(cgroups=(replace(base.cgroups[0], memory=state), base.cgroups[1])))
    changes = found(diff, Subject.CGROUP)
    assert changes["/box usage", Fate.GREW].delta_bytes == 30 * MIB
    assert changes["/box failcnt", Fate.GREW].delta_count == 7
    assert found(diff, Subject.KIND)["cgroup", Fate.GREW].after_bytes == 130 * MIB


def test_what_is_not_known_is_not_zero():
    unknown = process(memory=None, mappings=(), threads=None)
    diff = compare(snapshot(), later(processes=(unknown, snapshot().processes[1]), cgroups=()))
    assert not diff.of(Subject.CGROUP)
    text = "\n".join(render_diff(diff, False, None))
    assert "-" in text


def test_rows_that_are_left_out_are_counted():
    many = tuple(mapping(f"/lib/{index}", index * MIB) for index in range(1, 30))
    diff = compare(snapshot(), later(processes=(process(mappings=many), snapshot().processes[1])))
    text = "\n".join(render_diff(diff, False, 5))
    assert "... and 25 more, together +" in text
    assert "/lib/29" in text and "/lib/2 " not in text
    assert "more, together" not in "\n".join(render_diff(diff, False, None))


def test_hostile_text_is_escaped():
    text = "\n".join(render_diff(compare(hostile(), later()), True, None))
    assert "\x1b[31m" not in text and "\u202e" not in text and "\udcff" not in text
    assert r"\x1b[31mred\nname" in text


def test_json():
    document = json.loads(diff_json(compare(snapshot(), later(processes=()))))
    assert document["before"]["cgroup_bytes"] == document["after"]["cgroup_bytes"] == 100 * MIB
    vanished = [change for change in document["changes"] if change["subject"] == "process"]
    assert [(change["pid"], change["fate"], change["delta_bytes"]) for change in vanished] == [
        (41, "vanished", -55 * MIB),
        (42, "vanished", -21 * MIB),
    ]
    assert vanished[0]["after_bytes"] is None


def test_kinds_stand_below_what_they_are_part_of():
    """Whether that has changed or not; no row has the name of another."""
    names = ["cgroup", "shmem.unmapped_shmem.posix_objects", "shmem.unmapped_shmem", "anon", "shmem.mapped_shmem"]
    changes = tuple(Change(Subject.KIND, Fate.GREW, name, 0, MIB, None, None) for name in names)
    lines = list(render_diff(Diff(snapshot(), later(), changes), False, 1))[4:]
    assert [line.rstrip() for line in lines] == [
        "  CHANGE  BEFORE  AFTER  WHAT",
        "  +1 MiB     0 B  1 MiB  all that the cgroup counts",
        "     0 B                 shared memory (/dev/shm and other tmpfs, memfd, SysV)",
        "  +1 MiB     0 B  1 MiB    in files and segments that no process has mapped",
        "  +1 MiB     0 B  1 MiB      files in /dev/shm",
        "  +1 MiB     0 B  1 MiB    mapped by live processes",
        "  +1 MiB     0 B  1 MiB  anonymous memory",
    ]
