"""From records to lines: fields of every event, who a process was, and names of constants."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rtdebug.host import constants
from rtdebug.tracing.decode import Decoder
from rtdebug.tracing.entries import (
    clock_entry,
    line_entry,
    place_entry,
    process_entry,
    stack_entry,
    tmpfs_entry,
)
from rtdebug.tracing.fields import Host, is_error, signed
from rtdebug.tracing.line import EventLine
from rtdebug.tracing.processes import MAX_EXITED, MAX_EXITED_AT_ONCE, MAX_VERSIONS, Place, Process, cmdline_of
from tests.unit.records import BOX, OFFSET_NS, SCHEMA, call, counted, event

PAGE = 4096
MIB = 1 << 20
PLACE = Place("/docker/c0ffee", BOX)


def new_decoder(machine: str = "x86_64") -> Decoder:
    decoder = Decoder(SCHEMA, Host(machine, PAGE), OFFSET_NS)
    decoder.learn(place_entry(31, PLACE))
    decoder.learn(process_entry(Process(4177, 7, "worker", "worker -v", 4100, 1000, 31)))
    return decoder


@pytest.fixture
def decoder() -> Decoder:
    return new_decoder()


def one(decoder: Decoder, record: np.ndarray) -> EventLine:
    give = decoder.calls if record.dtype == SCHEMA.call_record else decoder.events
    (line,) = give(record)
    return line


def test_a_line_says_who(decoder: Decoder) -> None:
    line = one(decoder, call("madvise", address=0x7000, length_bytes=2 * MIB, advice=14))
    assert line.time_ns == OFFSET_NS + 5_000
    assert (line.container_id, line.container_name, line.runtime) == (BOX.id, "web", "docker")
    assert (line.cgroup, line.pid, line.ns_pid, line.tid, line.comm) == (
        "/docker/c0ffee",
        4177,
        7,
        4178,
        "worker",
    )
    assert line.fields == {
        "address": 0x7000,
        "length_bytes": 2 * MIB,
        "advice": "MADV_HUGEPAGE",
        "ret": 0,
        "errno": None,
    }


def test_an_unknown_process_is_null_not_zero(decoder: Decoder) -> None:
    line = one(decoder, call("munmap", pid=99))
    assert (line.container_id, line.cgroup, line.ns_pid, line.comm) == (None, None, None, None)


def test_mmap(decoder: Decoder) -> None:
    record = call("mmap", address=0x7F00_0000, ret=0x7F00_0000, length_bytes=8192, prot=3, flags=0x22)
    assert one(decoder, record).fields == {
        "address": 0x7F00_0000,
        "length_bytes": 8192,
        "prot": ["PROT_READ", "PROT_WRITE"],
        "flags": ["MAP_PRIVATE", "MAP_ANONYMOUS"],
        "ret": 0x7F00_0000,
        "errno": None,
    }


def test_failed_mmap_has_no_address(decoder: Decoder) -> None:
    fields = one(decoder, call("mmap", ret=-12, length_bytes=8192, flags=2)).fields
    assert (fields["address"], fields["ret"], fields["errno"]) == (None, -12, "ENOMEM")
    assert fields["prot"] == ["PROT_NONE"]


def test_mremap_has_both_ends(decoder: Decoder) -> None:
    record = call("mremap", address=0x1000, ret=0x9000, length_bytes=8192, old_length_pages=1, flags=1)
    fields = one(decoder, record).fields
    assert (fields["old_address"], fields["address"]) == (0x1000, 0x9000)
    assert (fields["old_length_bytes"], fields["length_bytes"]) == (4096, 8192)
    assert fields["flags"] == ["MREMAP_MAYMOVE"]


def test_brk_that_shrinks_is_negative(decoder: Decoder) -> None:
    fields = one(decoder, call("brk", address=0x5000, length_bytes=(1 << 64) - 4096, ret=0x5000)).fields
    assert fields["length_bytes"] == -4096


def test_process_madvise_names_the_advised(decoder: Decoder) -> None:
    fields = one(decoder, call("process_madvise", flags=4242, length_bytes=8192, advice=21, ret=8192)).fields
    assert (fields["target_pid"], fields["advice"], fields["ret"]) == (4242, "MADV_PAGEOUT", 8192)


def test_many_calls_keep_their_order(decoder: Decoder) -> None:
    array = np.concatenate([call("madvise", address=number) for number in range(9_001)])
    assert [line.fields["address"] for line in decoder.calls(array)] == list(range(9_001))


def test_unknown_kinds_are_counted_not_guessed(decoder: Decoder) -> None:
    record, other = call("mmap"), event("shm_open")
    record["event"] = 15
    strange = np.frombuffer(other.tobytes(), SCHEMA.event_record).copy()
    strange["header"]["event"] = 63
    assert not [*decoder.calls(record), *decoder.events(strange)]
    assert decoder.unknown_records == 2


def test_stack_only_where_one_was_taken(decoder: Decoder) -> None:
    decoder.learn(stack_entry(4177, 5, ["main+0x1 (app)"]))
    assert one(decoder, call("madvise", stack_id=5)).fields["stack"] == ["main+0x1 (app)"]
    assert one(decoder, call("madvise", stack_id=6)).fields["stack"] is None
    assert "stack" not in one(decoder, call("madvise")).fields


def test_aggregated(decoder: Decoder) -> None:
    array = np.concatenate(
        [
            counted("madvise", count=23, length_bytes=23 * MIB, advice=4),
            counted("madvise", count=3, length_bytes=3 * PAGE, advice=4, error=22),
            counted("mmap", count=5, length_bytes=5 * PAGE, prot=1, mapping=0x8002),
            counted("brk", count=2, length_bytes=(1 << 64) - 8192),
        ]
    )
    good, bad, mapped, heap = decoder.aggregates(5_000, array)
    assert good.fields == {
        "aggregated": True,
        "count": 23,
        "failures": 0,
        "length_bytes": 23 * MIB,
        "advice": "MADV_DONTNEED",
        "errno": None,
    }
    assert (bad.fields["failures"], bad.fields["errno"]) == (3, "EINVAL")
    assert mapped.fields["flags"] == ["MAP_PRIVATE", "MAP_POPULATE"]
    assert heap.fields["length_bytes"] == -8192
    assert (good.container_name, good.pid, good.tid) == ("web", 4177, None)


# POSIX shared memory and memfds


def test_shm_open_that_creates(decoder: Decoder) -> None:
    values = {"ret": 4, "created": 1, "inode_id": 9, "device_id": 25}
    record = event("shm_open", name=b"seg", flags=0o302, mode=0o600, **values)
    assert one(decoder, record).fields == {
        "path": "/dev/shm/seg",
        "flags": ["O_RDWR", "O_CREAT", "O_EXCL"],
        "mode": "0600",
        "created": True,
        "length_bytes": 0,
        "inode_id": 9,
        "device_id": 25,
        "ret": 4,
        "errno": None,
    }


def test_failed_shm_open_shows_the_users_path(decoder: Decoder) -> None:
    fields = one(decoder, event("shm_open", ret=-2, name=b"/dev/shm/none", user_path=1)).fields
    assert (fields["path"], fields["errno"], fields["mode"]) == ("/dev/shm/none", "ENOENT", None)
    assert (fields["length_bytes"], fields["inode_id"], fields["created"]) == (None, None, False)


def test_folders_in_dev_shm(decoder: Decoder) -> None:
    record = event("shm_unlink", name=b"f", parent=b"b", grandparent=b"a")
    assert one(decoder, record).fields["path"] == "/dev/shm/a/b/f"


def test_directories_without_room_are_dots(decoder: Decoder) -> None:
    record = event("shm_open", name=b"f", parent=b"b", grandparent=b"a", deeper=1)
    assert one(decoder, record).fields["path"] == "/dev/shm/.../a/b/f"
    record = event("shm_full", name=b"f", parent=b"b", at_shm=1, deeper=1, inode_id=1)
    assert one(decoder, record).fields["path"] == "/dev/shm/.../b/f"


@pytest.mark.parametrize(
    ("name", "parent", "path"),
    [
        (b"f", b"", "/dev/shm/f"),
        (b"f", b"b", "/dev/shm/b/f"),
        (b"../f", b"b", "/dev/shm/f"),
        (b"./x/../f", b"b", "/dev/shm/b/f"),
    ],
)
def test_a_relative_path_begins_at_its_directory(decoder: Decoder, name: bytes, parent: bytes, path: str) -> None:
    record = event("shm_unlink", name=name, parent=parent, user_path=1)
    assert one(decoder, record).fields["path"] == path


def test_what_was_unlinked_has_no_known_length(decoder: Decoder) -> None:
    fields = one(decoder, event("shm_unlink", name=b"/dev/shm/f", user_path=1)).fields
    assert (fields["length_bytes"], fields["inode_id"]) == (None, None)


def test_hostile_names_come_through_unchanged(decoder: Decoder) -> None:
    name = b"\x1b[2J\n\xff../'\""
    fields = one(decoder, event("shm_open", name=name)).fields
    assert fields["path"].encode("utf-8", "surrogateescape") == b"/dev/shm/" + name


def test_memfd_has_one_name_from_create_to_ftruncate(decoder: Decoder) -> None:
    created = one(decoder, event("memfd_create", name=b"buf", flags=3, ret=5)).fields
    cut = one(decoder, event("ftruncate", name=b"buf", memfd=1, length_bytes=MIB)).fields
    assert created["path"] == cut["path"] == "/memfd:buf"
    assert created["flags"] == ["MFD_CLOEXEC", "MFD_ALLOW_SEALING"]
    assert (cut["memfd"], cut["length_bytes"]) == (True, MIB)


def test_failed_ftruncate_keeps_the_length_asked_for(decoder: Decoder) -> None:
    fields = one(decoder, event("ftruncate", name=b"seg", ret=-27, length_bytes=1 << 62)).fields
    assert (fields["length_bytes"], fields["errno"], fields["memfd"]) == (1 << 62, "EFBIG", False)


# System V


def test_sysv(decoder: Decoder) -> None:
    got = one(decoder, event("shmget", ret=3, shm_id=3, key=0, flags=0o1600, length_bytes=MIB)).fields
    assert (got["shm_id"], got["key"], got["flags"], got["mode"]) == (3, 0, ["IPC_CREAT"], "0600")
    at = one(decoder, event("shmat", ret=0x7000_0000, shm_id=3, length_bytes=MIB, flags=0o10000)).fields
    assert (at["address"], at["length_bytes"], at["flags"]) == (0x7000_0000, MIB, ["SHM_RDONLY"])
    dt = one(decoder, event("shmdt", address=0x7000_0000)).fields
    assert dt == {"address": 0x7000_0000, "ret": 0, "errno": None}
    ctl = one(decoder, event("shmctl", shm_id=3, command=0x100)).fields
    assert (ctl["command"], ctl["shm_id"]) == ("IPC_RMID", 3)


def test_failed_sysv_calls(decoder: Decoder) -> None:
    got = one(decoder, event("shmget", ret=-28, shm_id=-1, key=-5)).fields
    assert (got["shm_id"], got["key"], got["errno"]) == (None, -5, "ENOSPC")
    at = one(decoder, event("shmat", ret=-22, shm_id=9)).fields
    assert (at["address"], at["length_bytes"]) == (None, None)


# A tmpfs that is full


def test_shm_full(decoder: Decoder) -> None:
    decoder.learn(tmpfs_entry(25, "/dev/shm"))
    record = event(
        "shm_full", name=b"seg", device_id=25, syscall_id=285, length_bytes=8 * MIB, size_pages=16384,
        used_pages=16384, size_inodes=100, free_inodes=0, tmpfs=1,
    )  # fmt: skip
    assert one(decoder, record).fields == {
        "path": "/dev/shm/seg",
        "length_bytes": 8 * MIB,
        "syscall": "fallocate",
        "syscall_id": 285,
        "by_fault": False,
        "size_bytes": 64 * MIB,
        "used_bytes": 64 * MIB,
        "size_inodes": 100,
        "free_inodes": 0,
        "device_id": 25,
        "inode_id": None,
    }


def test_tmpfs_without_limit_is_null(decoder: Decoder) -> None:
    fields = one(decoder, event("shm_full", by_fault=1, tmpfs=1)).fields
    nulls = ("size_bytes", "used_bytes", "size_inodes", "free_inodes", "syscall", "syscall_id", "path")
    assert [fields[name] for name in nulls] == [None] * len(nulls)


def test_system_calls_are_numbered_by_the_machine() -> None:
    record = event("shm_full", syscall_id=47)
    assert one(new_decoder("aarch64"), record).fields["syscall"] == "fallocate"
    assert one(new_decoder("x86_64"), record).fields["syscall"] is None
    assert one(new_decoder("mips"), record).fields["syscall_id"] == 47


def test_a_shm_device_is_learnt_from_shm_open(decoder: Decoder) -> None:
    record = event("sigbus", name=b"seg", device_id=31, tmpfs=1)
    assert one(decoder, record).fields["path"] == "seg"
    one(decoder, event("memfd_create", name=b"m", device_id=4))
    one(decoder, event("shm_open", name=b"seg", device_id=31))
    assert one(decoder, record).fields["path"] == "/dev/shm/seg"
    assert one(decoder, event("sigbus", name=b"x", device_id=4, tmpfs=1)).fields["path"] == "x"


@pytest.mark.parametrize(
    ("name", "path"),
    [(b"SYSV00000000", "/SYSV00000000"), (b"memfd:x", "/memfd:x"), (b"/tmp/y", "/tmp/y"), (b"", None)],
)
def test_paths_of_a_fault_are_those_of_proc_maps(decoder: Decoder, name: bytes, path: str | None) -> None:
    assert one(decoder, event("sigbus", name=name, tmpfs=1)).fields["path"] == path


MAPPED = {"mapping_start": 0x7000, "mapping_end": 0x17000, "inode_id": 5, "signal_code": 2, "address": 0x8123}


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"file_offset_bytes": 8192, "file_length_bytes": 8192}, "beyond_end_of_file"),
        ({"file_offset_bytes": 0, "file_length_bytes": 0}, "beyond_end_of_file"),
        # the last page is there as a whole, though the file ends in it
        ({"file_offset_bytes": 8191, "file_length_bytes": 4097}, None),
        ({"file_offset_bytes": 8192, "file_length_bytes": 4097}, "beyond_end_of_file"),
        ({"file_length_bytes": MIB, "tmpfs": 1, "size_pages": 10, "used_pages": 10}, "tmpfs_full"),
        ({"file_length_bytes": MIB, "tmpfs": 1, "size_pages": 10, "used_pages": 9}, "tmpfs_full"),
        ({"file_length_bytes": MIB, "tmpfs": 1, "size_pages": 16384, "used_pages": 16321}, "tmpfs_full"),
        ({"file_length_bytes": MIB, "tmpfs": 1, "size_pages": 16384, "used_pages": 16384, "signal_code": 1}, None),
        ({"file_length_bytes": MIB, "tmpfs": 0, "size_pages": 10, "used_pages": 10}, None),
        ({"file_length_bytes": MIB, "tmpfs": 1, "size_pages": 0, "used_pages": 0}, None),
        (
            {"file_offset_bytes": 8192, "file_length_bytes": 0, "tmpfs": 1, "size_pages": 9, "used_pages": 9},
            "beyond_end_of_file",
        ),
        ({"signal_code": 4}, "hwpoison"),
        ({"signal_code": 0}, None),
        ({"signal_code": -6}, None),
        ({"mapping_start": 0, "mapping_end": 0}, None),
        ({"inode_id": 0}, None),
    ],
)
def test_reason_of_a_sigbus(decoder: Decoder, values: dict[str, int], reason: str | None) -> None:
    assert one(decoder, event("sigbus", **(MAPPED | values))).fields["reason"] == reason


def test_sigbus_fields(decoder: Decoder) -> None:
    record = event("sigbus", **MAPPED, file_offset_bytes=8192, file_length_bytes=4096, name=b"data")
    fields = one(decoder, record).fields
    assert (fields["signal_code"], fields["address"], fields["path"]) == ("BUS_ADRERR", 0x8123, "data")
    assert (fields["mapping_start"], fields["mapping_end"]) == (0x7000, 0x17000)
    assert (fields["file_offset_bytes"], fields["file_length_bytes"]) == (8192, 4096)
    assert (fields["size_bytes"], fields["inode_id"]) == (None, None)


# OOM kills


def test_oom_kill_record(decoder: Decoder) -> None:
    record = event(
        "oom_kill", memcg_id=31, oom_memcg_id=31, anon_pages=100, shmem_pages=3, trigger_pid=4180, order=0,
        constraint=3, levels=2, oom_score_adj=-999, trigger_comm=b"trig",
        memcg=[(31, 256, 256, 12), (1, 9000, (1 << 63) // 4096 - 1, 0)] + [(0, 0, 0, 0)] * 9,
    )  # fmt: skip
    fields = one(decoder, record).fields
    assert (fields["constraint"], fields["oom_memcg"]) == ("memcg", "/docker/c0ffee")
    assert (fields["limit_bytes"], fields["usage_bytes"], fields["failcnt"]) == (MIB, MIB, 12)
    assert (fields["anon_rss_bytes"], fields["shmem_rss_bytes"]) == (100 * PAGE, 3 * PAGE)
    assert (fields["oom_score_adj"], fields["cmdline"], fields["trigger_comm"]) == (-999, "worker -v", "trig")
    assert [level["limit_bytes"] for level in fields["memcg_levels"]] == [MIB, None]
    assert [level["cgroup"] for level in fields["memcg_levels"]] == ["/docker/c0ffee", None]


def test_oom_kill_of_which_little_is_known(decoder: Decoder) -> None:
    fields = one(decoder, event("oom_kill", order=-1, constraint=0xFFFF)).fields
    nulls = ("constraint", "oom_memcg", "limit_bytes", "usage_bytes", "failcnt", "trigger_pid", "gfp_mask")
    assert [fields[name] for name in nulls] == [None] * len(nulls)
    assert fields["memcg_levels"] == []


# Processes


def comm_at(decoder: Decoder, time_ns: int, pid: int = 4177) -> str | None:
    return one(decoder, call("munmap", pid=pid, time_ns=time_ns)).comm


def test_a_call_before_an_exec_keeps_the_old_name(decoder: Decoder) -> None:
    cmdline = b"new\0--flag\0\0garbage"
    values = {"cmdline": cmdline, "cmdline_bytes": 11}
    assert not [*decoder.events(event("process_exec", time_ns=9_000, comm=b"new", memcg_id=31, **values))]
    assert comm_at(decoder, 8_999) == "worker"
    assert comm_at(decoder, 9_000) == "new"
    assert decoder.processes.find(4177, 9_000).cmdline == "new --flag"


def test_a_child_inherits(decoder: Decoder) -> None:
    list(decoder.events(event("process_fork", pid=5000, tid=5000, ns_pid=12, parent_pid=4177, memcg_id=31)))
    line = one(decoder, call("munmap", pid=5000))
    assert (line.container_name, line.ns_pid, line.comm) == ("web", 12, "worker")
    assert decoder.processes.find(5000, 5_000).cmdline == "worker -v"


def test_a_pid_that_is_used_again_is_somebody_else(decoder: Decoder) -> None:
    list(decoder.events(event("process_exit", time_ns=9_000)))
    assert comm_at(decoder, 9_000) == "worker"
    list(decoder.events(event("process_fork", time_ns=9_500, comm=b"other", memcg_id=77)))
    assert comm_at(decoder, 9_100) == "worker"
    line = one(decoder, call("munmap", time_ns=9_600))
    assert (line.comm, line.container_id) == ("other", None)


def test_a_process_that_moves_changes_its_container(decoder: Decoder) -> None:
    other = replace(BOX, id="d00d" * 16, name="db")
    decoder.learn(place_entry(40, Place("/docker/d00d", other)))
    list(decoder.events(event("process_enter", time_ns=9_000, memcg_id=40)))
    assert one(decoder, call("munmap", time_ns=8_000)).container_name == "web"
    assert one(decoder, call("munmap", time_ns=9_000)).container_name == "db"


def test_a_nested_cgroup_belongs_to_the_container(decoder: Decoder) -> None:
    made = event("cgroup_mkdir", cgroup_id=50, parent_id=31, path=b"/docker/c0ffee/inner")
    assert list(decoder.events(made)) == []
    list(decoder.events(event("process_enter", time_ns=9_000, memcg_id=50)))
    line = one(decoder, call("munmap", time_ns=9_000))
    assert (line.cgroup, line.container_name) == ("/docker/c0ffee/inner", "web")
    list(decoder.events(event("cgroup_rmdir", cgroup_id=50)))
    assert one(decoder, call("munmap", time_ns=9_000)).container_name == "web"


def test_a_cgroup_may_be_learnt_after_the_process(decoder: Decoder) -> None:
    list(decoder.events(event("process_fork", pid=6000, memcg_id=60, time_ns=1)))
    assert one(decoder, call("munmap", pid=6000)).cgroup is None
    decoder.learn(place_entry(60, Place("/late", None)))
    assert one(decoder, call("munmap", pid=6000)).cgroup == "/late"


def test_versions_and_the_dead_are_bounded(decoder: Decoder) -> None:
    for time_ns in range(100):
        list(decoder.events(event("process_comm", time_ns=time_ns)))
    assert len(decoder.processes.versions(4177)) == MAX_VERSIONS
    list(decoder.events(event("process_exit", time_ns=200)))
    bury(decoder, MAX_EXITED)
    assert decoder.processes.versions(4177), "a call of it may still lie in a ring"
    decoder.processes.forget_exited(decoder.processes.exited_count)
    assert decoder.processes.versions(4177) == ()
    assert len(decoder.processes.versions(10_000)) == 1


def test_the_dead_are_bounded_also_while_their_calls_are_not_decoded(decoder: Decoder) -> None:
    bury(decoder, MAX_EXITED_AT_ONCE + 1)
    assert decoder.processes.versions(10_000) == ()
    assert len(decoder.processes.versions(10_001)) == 1


def bury(decoder: Decoder, count: int) -> None:
    for pid in range(10_000, 10_000 + count):
        decoder.processes.add(Process(pid))
        list(decoder.events(event("process_exit", pid=pid, time_ns=300)))


def test_a_late_burial_spares_the_new_owner_of_the_pid(decoder: Decoder) -> None:
    list(decoder.events(event("process_exit", time_ns=200)))
    list(decoder.events(event("process_fork", time_ns=300)))
    bury(decoder, MAX_EXITED + 1)
    decoder.processes.forget_exited(decoder.processes.exited_count)
    assert decoder.processes.exited_count == MAX_EXITED
    assert decoder.processes.versions(4177)


@pytest.mark.parametrize(
    ("raw", "cmdline"), [(b"", None), (b"\0\0", None), (b"a\0b c\0", "a b c"), (b"\xff\0", "\udcff")]
)
def test_cmdline(raw: bytes, cmdline: str | None) -> None:
    assert cmdline_of(raw) == cmdline


# Entries


def test_the_clock_may_be_set(decoder: Decoder) -> None:
    decoder.learn(clock_entry(7))
    assert one(decoder, call("munmap", time_ns=5)).time_ns == 12


def test_a_line_is_given_back() -> None:
    line = EventLine(1, "oom_kill", None, "n\udcff", None, "/x", 2, None, 2, None, {"history": [[1, 2]]})
    assert new_decoder().learn(line_entry(line)) == line


def test_unknown_entries_are_left_alone() -> None:
    assert new_decoder().learn({"something new": {"x": 1}}) is None


# Constants


def test_flags_lose_nothing() -> None:
    assert constants.map_names(0x40022 | 21 << 26, "x86_64") == (
        "MAP_PRIVATE",
        "MAP_ANONYMOUS",
        "MAP_HUGETLB",
        "MAP_HUGE_2MB",
    )
    assert constants.map_names(0x42, "x86_64") == ("MAP_PRIVATE", "MAP_32BIT")
    assert constants.map_names(0x42, "aarch64") == ("MAP_PRIVATE", "0x40")
    assert constants.map_names(30 << 26 | 1, "x86_64")[-1] == "MAP_HUGE_1GB"
    assert constants.map_names(16 << 26 | 1, "aarch64")[-1] == "MAP_HUGE_64KB"
    assert constants.prot_names(0x11, "aarch64") == ("PROT_READ", "PROT_BTI")
    assert constants.prot_names(0x11, "x86_64") == ("PROT_READ", "0x10")
    assert constants.shmget_names(0o5600) == ("IPC_CREAT", "SHM_HUGETLB")
    assert constants.shmctl_name(99) == "0x63"
    assert constants.advice_name(102) == "MADV_GUARD_INSTALL"
    assert constants.advice_name(77) == "0x4d"


def test_open_flags_differ_by_machine() -> None:
    assert constants.open_names(0o40002, "x86_64") == ("O_RDWR", "O_DIRECT")
    assert constants.open_names(0o40002, "aarch64") == ("O_RDWR", "O_DIRECTORY")
    assert constants.open_names(0o4010001, "x86_64") == ("O_WRONLY", "O_SYNC")
    assert constants.open_names(0o20200002, "x86_64") == ("O_RDWR", "O_TMPFILE")


def test_names_are_those_of_this_machines_headers() -> None:
    """Python's own tables come from the C library: a second witness where it runs on Linux."""
    import errno
    import mmap
    import os
    import platform

    assert {n: constants.errno_name(n) for n in errno.errorcode if n < 133} == {
        n: ALIASES.get(name, name) for n, name in errno.errorcode.items() if n < 133
    }
    for number, name in constants.MADV.items():
        assert getattr(mmap, name, number) == number
    for number, name in constants.MAP.items():
        assert getattr(mmap, name, number) == number
    machine = platform.machine()
    for name in ("O_CREAT", "O_EXCL", "O_TRUNC", "O_DIRECT", "O_DIRECTORY", "O_NOFOLLOW", "O_CLOEXEC"):
        assert name in constants.open_names(getattr(os, name), machine)


ALIASES = {"EDEADLOCK": "EDEADLK", "ENOTSUP": "EOPNOTSUPP", "EWOULDBLOCK": "EAGAIN"}


def test_results() -> None:
    assert [is_error(ret) for ret in (-4096, -4095, -1, 0, 1)] == [False, True, True, False, False]
    assert constants.errno_name(512) == "errno 512"
    assert [signed(number) for number in (0, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)] == [
        0,
        (1 << 63) - 1,
        -(1 << 63),
        -1,
    ]
