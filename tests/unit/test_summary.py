import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtdebug.render.jsonl import JsonRenderer
from rtdebug.render.summary import render_summary, summary_fields
from rtdebug.tracing.line import EventLine
from rtdebug.tracing.options import EVENTS
from rtdebug.tracing.summary import TOP, SharedKey, SummaryBuilder, Totals
from tests.unit.lines import HOSTILE, NOON, SECOND, VALUES, event_line, utc  # noqa: F401 - a fixture

MIB = 1 << 20
ID = "8f3c" * 16


def summed(*lines, **known):
    builder = SummaryBuilder()
    for line in lines:
        builder.add(line)
    return builder.finish(NOON, NOON + 10 * SECOND, known.pop("lost", 0), **known)


def test_single_and_aggregated_lines_add_up_alike():
    single = summed(*[event_line("madvise", advice="MADV_COLD", length_bytes=4096) for _ in range(23)])
    aggregated = summed(
        event_line("madvise", advice="MADV_COLD", length_bytes=23 * 4096, count=23, failures=0)
    )
    assert single == aggregated
    assert single.advice == {"MADV_COLD": Totals(23, 0, 23 * 4096)}
    assert single.processes[0].events == {"madvise": Totals(23, 0, 23 * 4096)}
    assert single.events_per_second == pytest.approx(2.3)


def test_a_failed_call_counts_but_adds_no_bytes():
    found = summed(
        event_line("mmap", length_bytes=MIB, ret=0x7F00, errno=None),
        event_line("mmap", length_bytes=1 << 40, ret=-12, errno="ENOMEM"),
        event_line("mmap", length_bytes=7 << 40, count=7, errno="ENOMEM"),
    )
    assert found.events["mmap"] == Totals(9, 8, MIB)
    assert found.processes[0].mapped_bytes == MIB
    assert found.failures == 8


def test_what_happens_to_a_process_is_no_failed_call():
    found = summed(event_line("shm_full", errno="ENOSPC"), event_line("sigbus"))
    assert found.failures == 0
    assert (found.count_of("shm_full"), found.count_of("sigbus"), found.count_of("oom_kill")) == (1, 1, 0)


def test_mapped_bytes_come_from_mmap_growing_brk_and_growing_mremap():
    found = summed(
        event_line("mmap", length_bytes=16 * MIB),
        event_line("brk", length_bytes=MIB),
        event_line("brk", length_bytes=-MIB),
        event_line("mremap", old_length_bytes=16 * MIB, length_bytes=20 * MIB),
        event_line("mremap", old_length_bytes=20 * MIB, length_bytes=MIB),
        event_line("munmap", length_bytes=3 * MIB),
    )
    assert found.processes[0].mapped_bytes == 21 * MIB
    added_up = event_line("mremap", length_bytes=500 * MIB, count=100, failures=0)  # from which lengths?
    assert summed(added_up).processes[0].mapped_bytes == 0
    assert found.events["brk"].length_bytes == 0


def test_still_mapped_is_what_the_caller_says_or_not_known():
    lines = [event_line("mmap", 1, length_bytes=MIB), event_line("mmap", 2, length_bytes=MIB)]
    assert [each.still_mapped_bytes for each in summed(*lines).processes] == [None, None]
    known = summed(*lines, still_mapped={2: 4096})
    assert [(each.pid, each.still_mapped_bytes) for each in known.processes] == [(2, 4096), (1, None)]


def posix(path="/dev/shm/a"):
    return SharedKey("posix", ID, path)


def create(path="/dev/shm/a", pid=1):
    return event_line("shm_open", pid, path=path, created=True, length_bytes=0)


def test_posix_shared_memory_from_its_creation_to_its_end():
    size = event_line("ftruncate", path="/dev/shm/a", length_bytes=64 * MIB)
    unlink = event_line("shm_unlink", 2, path="/dev/shm/a")
    (found,) = summed(create()).shared_memory
    assert (found.key, found.length_bytes, found.pid, found.linked) == (posix(), None, 1, True)
    (found,) = summed(create(), size).shared_memory
    assert (found.length_bytes, found.linked) == (64 * MIB, True)
    (found,) = summed(create(), size, unlink).shared_memory
    assert (found.pid, found.linked) == (1, False)


def test_a_file_unlinked_by_another_path_is_known_by_its_inode():
    made = event_line("shm_open", path="/dev/shm/a", created=True, inode_id=5, device_id=23)
    other = event_line("shm_unlink", path="a", inode_id=5, device_id=24)
    same = event_line("shm_unlink", path="a", inode_id=5, device_id=23)
    assert [each.linked for each in summed(made, other).shared_memory] == [True]
    assert [each.linked for each in summed(made, same).shared_memory] == [False]


def test_opening_what_exists_or_failing_to_unlink_changes_nothing():
    opened = event_line("shm_open", path="/dev/shm/b", created=False, length_bytes=MIB)
    refused = event_line("shm_unlink", path="/dev/shm/a", ret=-13, errno="EACCES")
    found = summed(create(), opened, refused)
    assert [(each.key.name, each.linked) for each in found.shared_memory] == [("/dev/shm/a", True)]
    assert found.created == {"posix": 1, "sysv": 0, "memfd": 0}


def test_what_is_still_linked_overrules_the_events():
    before = posix("/dev/shm/orphan")
    found = summed(create("/dev/shm/a"), create("/dev/shm/b"), still_linked={posix(): 4096, before: 7 * MIB})
    assert [(each.key.name, each.linked, each.length_bytes, each.pid) for each in found.shared_memory] == [
        ("/dev/shm/orphan", True, 7 * MIB, None),
        ("/dev/shm/a", True, 4096, 1),
        ("/dev/shm/b", False, None, 1),
    ]


def test_the_same_path_in_two_containers_is_two_things():
    other = event_line("shm_open", 2, "c", None, path="/dev/shm/a", created=True)
    assert len(summed(create(), other).shared_memory) == 2


def test_sysv_segments():
    shmget = event_line("shmget", 1, key=0, shm_id=0, flags=["IPC_CREAT"], length_bytes=MIB)
    again = event_line("shmget", 2, key=7, shm_id=0, flags=["IPC_CREAT"], length_bytes=MIB)
    opened = event_line("shmget", 3, key=7, shm_id=9, flags=[], length_bytes=MIB)
    remove = event_line("shmctl", 2, shm_id=0, command="IPC_RMID")
    stat = event_line("shmctl", 2, shm_id=0, command="IPC_STAT")
    (found,) = summed(shmget, again, opened, stat).shared_memory
    assert (found.key, found.pid, found.length_bytes, found.linked) == (
        SharedKey("sysv", ID, "0"),
        1,
        MIB,
        True,
    )
    (found,) = summed(shmget, remove).shared_memory
    assert found.linked is False


def test_memfds_of_one_name_are_told_apart_and_have_no_link():
    lines = [
        event_line("memfd_create", path="memfd:buf", inode_id=5, length_bytes=0),
        event_line("memfd_create", path="memfd:buf", inode_id=6, length_bytes=0),
        event_line("ftruncate", path="memfd:buf", inode_id=6, memfd=True, length_bytes=MIB),
    ]
    found = summed(*lines, still_linked={}).shared_memory
    assert [(each.key.name, each.length_bytes, each.linked) for each in found] == [
        ("memfd:buf (inode 6)", MIB, None),
        ("memfd:buf (inode 5)", None, None),
    ]


def test_the_largest_come_first_and_the_rest_is_counted():
    lines = [event_line("mmap", pid, length_bytes=pid * 4096) for pid in range(1, 24)]
    found = summed(*lines, *(create(f"/dev/shm/{n}") for n in range(23)))
    assert [each.pid for each in found.processes][:3] == [23, 22, 21]
    assert len(found.processes) == len(found.shared_memory) == TOP
    assert (found.more_processes, found.more_shared_memory) == (3, 3)
    assert "and 3 more processes" in "\n".join(render_summary(found))


def test_memory_is_bounded_and_the_large_ones_survive():
    builder = SummaryBuilder()
    builder.add(event_line("mmap", 1, length_bytes=1 << 40))
    builder.add(create("/dev/shm/kept"))
    for pid in range(2, 10_001):
        builder.add(create(f"/dev/shm/{pid}", pid))
        builder.add(event_line("shm_unlink", pid, path=f"/dev/shm/{pid}"))
    assert len(builder._processes) <= 4096
    found = builder.finish(NOON, NOON + SECOND, 0)
    assert found.processes[0].pid == 1
    assert len(found.processes) + found.more_processes == 10_000
    assert found.shared_memory[0].key.name == "/dev/shm/kept"
    assert len(found.shared_memory) + found.more_shared_memory == 10_000
    assert found.created["posix"] == 10_000
    assert found.count == 1 + 1 + 2 * 9_999


def story():
    return [
        event_line("mmap", 4711, "python3", length_bytes=96 * MIB, count=23, failures=2),
        event_line("madvise", 4711, "python3", advice="MADV_HUGEPAGE", length_bytes=64 * MIB, errno=None),
        event_line("madvise", 4711, "python3", advice="MADV_COLD", length_bytes=4096, errno="EINVAL"),
        event_line("shm_open", 42, "load\x1b[2Jer", path="/dev/shm/psm\n1", created=True),
        event_line("ftruncate", 42, "load\x1b[2Jer", path="/dev/shm/psm\n1", length_bytes=48 * MIB),
        event_line("shm_full", 42, "load\x1b[2Jer", path="/dev/shm/psm\n1", size_bytes=64 * MIB),
        event_line("oom_kill", 4711, "python3", oom_memcg="/docker/8f3c"),
    ]


GOLDEN = r"""29 events in 10.0 s (2.9/s), 3 failed, 7 lost
OOM kills 1, shared memory full 1

OOM kills
  TIME           PID  COMM     CONTAINER  LIMIT OF
  12:00:00.000  4711  python3  db         /docker/8f3c

Shared memory full
  PLACE     SIZE    REFUSED  SIGBUS  CONTAINER  BY
  /dev/shm  64 MiB        1       0  db         42 load\x1b[2Jer
  /dev/shm is 64 MiB: docker run --shm-size, or in Kubernetes an emptyDir with medium: Memory
  mounted at /dev/shm (its pages count against the memory limit)

Processes
   PID  COMM           CONTAINER  MAPPED  STILL MAPPED  EVENT      COUNT  FAILED   BYTES
  4711  python3        db         96 MiB        32 MiB  mmap          23       2  96 MiB
                                                        madvise        2       1  64 MiB
                                                        oom_kill       1       0       -
    42  load\x1b[2Jer  db            0 B             -  ftruncate      1       0       -
                                                        shm_full       1       0       -
                                                        shm_open       1       0       -

Shared memory
  created: 1 posix
  KIND   NAME               SIZE  STATE   CONTAINER  CREATED BY
  posix  /dev/shm/psm\n1  48 MiB  linked  db         42 load\x1b[2Jer

Advice
  ADVICE         COUNT  FAILED   BYTES
  MADV_COLD          1       1       -
  MADV_HUGEPAGE      1       0  64 MiB
"""


def test_golden(utc):  # noqa: F811
    found = summed(*story(), lost=7, still_mapped={4711: 32 * MIB})
    assert "\n".join(render_summary(found)) + "\n" == GOLDEN


def test_losses_are_always_told():
    assert render_summary(summed()) == ["0 events in 10.0 s (0.0/s), 0 failed, 0 lost"]


def test_one_event_is_no_plural():
    assert render_summary(summed(event_line("sigbus")))[0].startswith("1 event in 10.0 s")
    assert "losses not known" in render_summary(summed(lost=None))[0]
    assert "\x1b[1;31m7 lost" in render_summary(summed(lost=7), colour=True)[0]


def test_json_is_the_documented_object_on_one_line():
    out = io.BytesIO()
    JsonRenderer(out).summary(summed(*story(), lost=None))
    (text,) = out.getvalue().splitlines()
    found = json.loads(text)
    assert list(found)[:2] == ["time", "event"]
    assert (found["event"], found["time"]) == ("summary", "2025-11-30T12:00:10.000000000Z")
    assert (found["events"], found["failures"], found["lost_events"]) == (29, 3, None)
    assert (found["oom_kills"], found["sigbus"], found["shm_full"]) == (1, 0, 1)
    assert found["advice"][1] == {
        "advice": "MADV_HUGEPAGE",
        "count": 1,
        "failures": 0,
        "length_bytes": 64 * MIB,
    }
    assert found["processes"][0]["events"][0]["event"] == "mmap"
    assert found["shm_created"] == {"posix": 1, "sysv": 0, "memfd": 0}
    assert found["shared_memory"][0]["name"] == "/dev/shm/psm\n1"
    assert found["killed"][0]["oom_memcg"] == "/docker/8f3c"


@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                [
                    *("mmap", "brk", "mremap", "shm_open", "ftruncate", "shmget", "shmctl", "memfd_create"),
                    *("shm_full", "sigbus", "oom_kill"),
                ]
            )
            | HOSTILE,
            HOSTILE,
            st.dictionaries(
                st.sampled_from(
                    [
                        "path",
                        "count",
                        "failures",
                        "errno",
                        "length_bytes",
                        "advice",
                        "shm_id",
                        "flags",
                        "created",
                        "stack",
                        "reason",
                        "size_bytes",
                        "free_inodes",
                    ]
                ),
                VALUES,
            ),
        ),
        max_size=6,
    )
)
def test_whatever_comes_is_summed_and_shown_safely(events):
    found = summed(*(event_line(event, 1, comm, comm, **fields) for event, comm, fields in events))
    assert all(line.isprintable() for line in render_summary(found))
    out = io.BytesIO()
    JsonRenderer(out).summary(found)
    assert json.loads(out.getvalue())["event"] == "summary"


@given(st.permutations(range(6)))
def test_equal_ones_have_an_order_whatever_order_they_came_in(order):
    """Else a recording, which gives its lines in another order, would show another summary than the trace."""
    pids = [4711 + number for number in order]
    lines = [event_line("mmap", pid, length_bytes=MIB) for pid in pids]
    lines += [event_line("shm_open", pid, path=f"/dev/shm/{pid}", created=True, ret=3, errno=None) for pid in pids]
    found = summed(*lines)
    assert [process.pid for process in found.processes] == sorted(pids, reverse=True)
    assert [shared.key.name for shared in found.shared_memory] == sorted(
        (f"/dev/shm/{pid}" for pid in pids), reverse=True
    )


def chosen(shown, *lines, everyone=True, **known):
    """The summary of a trace that was asked for some events only."""
    builder = SummaryBuilder(frozenset(shown), everyone)
    for line in lines:
        builder.add(line)
    return builder.finish(NOON, NOON + 10 * SECOND, 0, **known)


def text(found):
    return "\n".join(render_summary(found))


def test_what_was_mapped_is_unknown_when_nobody_asked_for_mmap():
    assert chosen({"sigbus"}, event_line("sigbus")).processes[0].mapped_bytes is None
    assert chosen({"mmap"}, event_line("mmap", length_bytes=MIB)).processes[0].mapped_bytes == MIB


FOUND = {posix("/dev/shm/old"): MIB, SharedKey("sysv", ID, "7"): MIB}


@pytest.mark.parametrize(
    ("shown", "everyone", "creations"),
    [
        pytest.param(EVENTS, True, {"posix": "not_seen", "sysv": "not_seen"}, id="all"),
        pytest.param({"sigbus"}, True, {"posix": "not_traced", "sysv": "not_traced"}, id="no creations"),
        pytest.param({"shm_open"}, True, {"posix": "not_seen", "sysv": "not_traced"}, id="files only"),
        pytest.param({"shmget"}, True, {"posix": "not_traced", "sysv": "not_seen"}, id="segments only"),
        pytest.param(EVENTS, False, {"posix": "not_traced", "sysv": "not_traced"}, id="of one process or comm"),
    ],
)
def test_nothing_is_said_of_creations_that_were_not_traced(shown, everyone, creations):
    found = chosen(shown, everyone=everyone, still_linked=FOUND)
    assert {each.key.kind: each.creation for each in found.shared_memory} == creations
    assert {each["kind"]: each["creation"] for each in summary_fields(found)["shared_memory"]} == creations
    assert text(found).count("not traced") == list(creations.values()).count("not_traced")
    assert text(found).count("before/outside trace") == list(creations.values()).count("not_seen")
    assert ("created: none" in text(found)) == ("not_traced" not in creations.values())


def test_who_created_it_is_told_though_others_were_not_traced():
    found = chosen({"shm_open"}, create(), everyone=False, still_linked=FOUND | {posix(): 4096})
    assert {each.key.name: each.creation for each in found.shared_memory} == {
        "/dev/shm/a": "seen", "/dev/shm/old": "not_traced", "7": "not_traced",
    }  # fmt: skip
    assert "created: 1 posix\n" in text(found)


@pytest.mark.parametrize(
    ("shown", "everyone", "linked"),
    [
        pytest.param({"shm_open", "shm_unlink"}, True, True, id="everyone's"),
        pytest.param({"shm_open"}, True, None, id="unlinking was not traced"),
        pytest.param({"shm_open", "shm_unlink"}, False, None, id="not that of all"),
    ],
)
def test_linked_is_unknown_where_nobody_looked_and_no_event_would_tell(shown, everyone, linked):
    assert chosen(shown, create(), everyone=everyone).shared_memory[0].linked is linked
    unlinked = event_line("shm_unlink", 1, path="/dev/shm/a")
    assert chosen(shown, create(), unlinked, everyone=everyone).shared_memory[0].linked is False
    looked = chosen(shown, create(), everyone=everyone, still_linked={posix(): MIB})
    assert looked.shared_memory[0].linked is True


@pytest.mark.parametrize("event", ["sigbus", "shm_full", "oom_kill"])
def test_how_often_is_null_for_what_was_not_traced(event):
    of_others = summary_fields(chosen({"mmap"}))
    assert of_others["traced_events"] == ["mmap"]
    assert [of_others[key] for key in ("sigbus", "shm_full", "oom_kills")] == [None, None, None]
    assert of_others["shm_created"] == {"posix": None, "sysv": None, "memfd": None}
    key = {"oom_kill": "oom_kills"}.get(event, event)
    assert summary_fields(chosen({event}))[key] == 0
    assert summary_fields(chosen({event}, event_line(event)))[key] == 1


def test_what_is_found_at_the_end_has_the_containers_name():
    found = summed(event_line("brk"), still_linked={posix(): MIB})
    assert found.shared_memory[0].container_name == "db"
    assert "8f3c8f3c" not in text(found)
    other = SharedKey("posix", "another", "/dev/shm/a")
    assert summed(event_line("brk"), still_linked={other: MIB}).shared_memory[0].container_name is None


def refused(pid=42, path="/dev/shm/psm_1", event="shm_full", /, **fields):
    size = {"size_bytes": 64 * MIB, "used_bytes": 64 * MIB - 4096}
    return event_line(event, pid, "worker", path=path, **size | fields)


def test_who_was_refused_by_which_tmpfs():
    found = summed(
        refused(by_fault=True),
        refused(42, "/dev/shm/psm_1", "sigbus", reason="tmpfs_full"),
        refused(42, "/dev/shm/sub/psm_2", length_bytes=MIB),
        refused(43),
        refused(43, "data/cache/x", size_bytes=MIB),
        refused(44, "/dev/shm/cut", "sigbus", reason="beyond_end_of_file"),
    )
    assert [(each.key.path, each.key.pid, each.shm_full, each.sigbus) for each in found.refusals] == [
        ("/dev/shm", 42, 2, 1),
        ("data/cache", 43, 1, 0),
        ("/dev/shm", 43, 1, 0),
    ]
    assert found.refusals[0].size_bytes == 64 * MIB
    assert summary_fields(found)["shared_memory_full"][0] == {
        "path": "/dev/shm",
        "container_id": ID,
        "container_name": "db",
        "size_bytes": 64 * MIB,
        "used_bytes": 64 * MIB - 4096,
        "out_of_inodes": False,
        "shm_full": 2,
        "sigbus": 1,
        "pid": 42,
        "comm": "worker",
    }
    assert "  42, 43 worker\n" in text(found)
    assert "  43 worker\n" in text(found)
    assert "  worker x15\n" in text(summed(*map(refused, range(100, 115))))


def test_a_refusal_that_one_of_two_events_tells():
    only = chosen({"sigbus"}, refused(42, "/dev/shm/a", "sigbus", reason="tmpfs_full"))
    (found,) = summary_fields(only)["shared_memory_full"]
    assert (found["shm_full"], found["sigbus"]) == (None, 1)
    assert "/dev/shm is 64 MiB: docker run --shm-size" in text(only)


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(refused(1, "data/x"), id="another tmpfs"),
        pytest.param(refused(size_inodes=23, free_inodes=0), id="too many files"),
        pytest.param(refused(size_bytes=None), id="no limit known"),
        pytest.param(refused(1, None), id="no path known"),
    ],
)
def test_the_remedy_is_for_a_full_dev_shm(line):
    shown = text(summed(line))
    assert "Shared memory full" in shown
    assert "--shm-size" not in shown
    assert "--shm-size" in text(summed(refused()))


def test_refusals_are_bounded_and_the_frequent_ones_survive():
    builder = SummaryBuilder()
    for line in (refused(1), refused(1), *(refused(pid) for pid in range(2, 5001))):
        builder.add(line)
    found = builder.finish(NOON, NOON + SECOND, 0)
    assert found.refusals[0].key.pid == 1
    assert len(found.refusals) + found.more_refusals == 5000
    assert len(builder._refusals._found) <= 1024


def test_processes_of_one_program_that_are_gone_are_one_row():
    lines = [event_line("mmap", pid, "leakshm", length_bytes=MIB) for pid in range(100, 115)]
    lines += [event_line("munmap", 100, "leakshm", length_bytes=MIB), event_line("mmap", 7, "init", length_bytes=MIB)]
    lines += [event_line("mmap", 200, "leakshm", length_bytes=MIB)]  # lives
    found = summed(*lines, still_mapped={**dict.fromkeys(range(100, 115), 0), 200: MIB, 7: 0})
    assert [(group.pid, group.processes, group.mapped_bytes) for group in found.process_groups] == [
        (200, 1, MIB),
        (None, 15, 15 * MIB),
        (7, 1, MIB),
    ]
    assert found.process_groups[1].events == {
        "mmap": Totals(15, 0, 15 * MIB),
        "munmap": Totals(1, 0, MIB),
    }
    assert text(found).count("leakshm") == 2
    assert "leakshm x15" in text(found)
    assert len(summary_fields(found)["processes"]) == 17


def test_processes_are_not_grouped_where_nobody_looked_nor_across_containers():
    alike = [event_line("brk", pid, "sh") for pid in (1, 2)]
    assert "x2" not in text(summed(*alike))
    other = EventLine(NOON, "brk", "another", None, None, None, 3, None, None, "sh", {})
    found = summed(*alike, other, still_mapped={})
    assert [group.processes for group in found.process_groups] == [2, 1]


def test_grouped_rows_leave_room_for_others():
    lines = [event_line("mmap", pid, "worker", length_bytes=MIB) for pid in range(1000, 1100)]
    found = summed(*lines, event_line("brk", 1, "init"), still_mapped={})
    assert "and" not in text(found)
    assert "init" in text(found)
    assert (len(found.processes), found.more_processes) == (TOP, 81)


K8S = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0d1c7d6e_77aa.slice/cri-containerd-{}.scope"


def test_the_summary_stays_within_a_hundred_columns():
    container = "k8s_trainer_trainer-0_ml-platform-production_0d1c7d6e"
    lines = [
        event_line("oom_kill", 123456, "pt_main_thread", container, oom_memcg=K8S.format("8f3c" * 16)),
        event_line("mmap", 123456, "pt_main_thread", container, length_bytes=1234 * MIB, count=12345, failures=0),
        event_line("shm_open", 42, "pt_main_thread", container, path="/dev/shm/" + "x" * 99, created=True),
        refused(42, "/dev/shm/" + "x" * 99),
        event_line("mmap", 1, length_bytes=MIB, stack=["f" * 300 + "+0x1 (libc.so.6)"] * 30),
    ]
    found = summed(*lines, still_mapped={})
    assert max(map(len, render_summary(found))) <= 106
    assert "cri-containerd-8f3c8f3c8f3c.scope" in text(found)


def test_stacks_are_summed_over_the_trace_and_the_largest_come_first():
    frames = ["malloc+0x1 (libc.so.6)", "main+0x2 (\x1b[2J)"]
    lines = [
        event_line("mmap", 1, length_bytes=MIB, stack=frames),
        event_line("mmap", 2, length_bytes=3 * MIB, count=3, failures=0, stack=frames),
        event_line("mmap", 2, length_bytes=7 * MIB, errno="ENOMEM", stack=frames),
        event_line("munmap", 2, length_bytes=MIB, stack=frames),
        event_line("shm_open", 2, path="/dev/shm/a", stack=["shm_open+0x3 (libc.so.6)"]),
        event_line("mmap", 2, length_bytes=99 * MIB, stack=None),
        event_line("mmap", 2, length_bytes=99 * MIB),
    ]
    found = summed(*lines)
    assert summary_fields(found)["stacks"] == [
        {"event": "mmap", "count": 5, "failures": 1, "length_bytes": 4 * MIB, "stack": frames},
        {"event": "munmap", "count": 1, "failures": 0, "length_bytes": MIB, "stack": frames},
        {
            "event": "shm_open",
            "count": 1,
            "failures": 0,
            "length_bytes": None,
            "stack": ["shm_open+0x3 (libc.so.6)"],
        },
    ]
    rows = render_summary(found)
    rows = rows[rows.index("Stacks") :]
    assert rows == [
        "Stacks",
        "  EVENT     COUNT  FAILED  BYTES",
        "  mmap          5       1  4 MiB",
        "      malloc+0x1 (libc.so.6)",
        r"      main+0x2 (\x1b[2J)",
        "  munmap        1       0  1 MiB",
        "      malloc+0x1 (libc.so.6)",
        r"      main+0x2 (\x1b[2J)",
        "  shm_open      1       0      -",
        "      shm_open+0x3 (libc.so.6)",
    ]


def test_without_stacks_there_is_no_table_of_them():
    assert "Stacks" not in text(summed(event_line("mmap", length_bytes=MIB)))


def test_stacks_are_bounded_and_the_large_ones_survive():
    builder = SummaryBuilder()
    builder.add(event_line("mmap", length_bytes=1 << 40, stack=["large"]))
    for number in range(9999):
        builder.add(event_line("mmap", length_bytes=4096, stack=[f"small {number}"]))
    assert len(builder._stacks) <= 4096
    found = builder.finish(NOON, NOON + SECOND, 0)
    assert found.stacks[0].stack.frames == ("large",)
    assert len(found.stacks) + found.more_stacks == 10_000
    assert "and 9,990 more stacks" in text(found)


def test_of_a_deep_stack_the_innermost_frames_are_shown():
    shown = text(summed(event_line("mmap", length_bytes=MIB, stack=[f"f{n}" for n in range(50)])))
    assert "f19" in shown
    assert "f20" not in shown
    assert "and 30 more frames" in shown
