import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtdebug.render.jsonl import JsonRenderer
from rtdebug.render.summary import render_summary
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
    assert found.created == {"posix": 1}


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
    assert found.created == {"posix": 10_000}
    assert found.count == 1 + 1 + 2 * 9_999


def story():
    return [
        event_line("mmap", 4711, "python3", length_bytes=96 * MIB, count=23, failures=2),
        event_line("madvise", 4711, "python3", advice="MADV_HUGEPAGE", length_bytes=64 * MIB, errno=None),
        event_line("madvise", 4711, "python3", advice="MADV_COLD", length_bytes=4096, errno="EINVAL"),
        event_line("shm_open", 42, "load\x1b[2Jer", path="/dev/shm/psm\n1", created=True),
        event_line("ftruncate", 42, "load\x1b[2Jer", path="/dev/shm/psm\n1", length_bytes=48 * MIB),
        event_line("shm_full", 42, "load\x1b[2Jer", path="/dev/shm/psm\n1"),
        event_line("oom_kill", 4711, "python3", oom_memcg="/docker/8f3c"),
    ]


GOLDEN = r"""29 events in 10.0 s (2.9/s), 3 failed, 7 lost
OOM kills 1, shared memory full 1

OOM kills
  TIME           PID  COMM     CONTAINER  LIMIT OF
  12:00:00.000  4711  python3  db         /docker/8f3c

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
                ["mmap", "brk", "mremap", "shm_open", "ftruncate", "shmget", "shmctl", "memfd_create"]
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
