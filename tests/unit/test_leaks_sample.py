"""Samples of cgroups v1 and v2 and of processes: every figure, and null for what is not known."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rtdebug.containers.model import Container
from rtdebug.host.cgroup import MemoryHierarchy
from rtdebug.leaks.identity import command_of, identity_of
from rtdebug.leaks.process_sample import PSS_EVERY_NS, ProcessReader, take_pss
from rtdebug.leaks.quick import keyed, read_bytes, read_number
from rtdebug.leaks.sample import Sample, Sampler
from rtdebug.leaks.tables import CGROUPS, PROCESSES

UNLIMITED_V1 = "9223372036854771712\n"
V2 = {
    "memory.current": "1009\n",
    "memory.max": "max\n",
    "memory.swap.current": "31\n",
    "memory.stat": "anon 101\nfile 103\nkernel 107\nkernel_stack 109\npagetables 113\nsock 127\nshmem 131\nslab 137\n"
    "workingset_refault_anon 2\nworkingset_refault_file 3\npgfault 139\npgmajfault 149\n",
    "memory.events": "low 1\nhigh 2\nmax 3\noom 4\noom_kill 5\noom_group_kill 0\n",
    "memory.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=151\n"
    "full avg10=0.00 avg60=0.00 avg300=0.00 total=157\n",
}
V1 = {
    "memory.usage_in_bytes": "1013\n",
    "memory.limit_in_bytes": UNLIMITED_V1,
    "memory.kmem.usage_in_bytes": "211\n",
    "memory.kmem.tcp.usage_in_bytes": "223\n",
    "memory.failcnt": "6\n",
    "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 7\n",
    "memory.stat": "cache 1\nrss 1\ntotal_cache 227\ntotal_rss 229\ntotal_shmem 233\ntotal_swap 239\n"
    "total_workingset_refault_anon 5\ntotal_workingset_refault_file 6\ntotal_pgfault 241\ntotal_pgmajfault 251\n",
}


def make_cgroup(folder: Path, files: dict[str, str], pids: tuple[int, ...] = ()) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {**files, "cgroup.procs": "".join(f"{pid}\n" for pid in pids)}.items():
        (folder / name).write_text(text)
    return folder


def container(cgroup: str, name: str | None = "web") -> Container:
    return Container("c" * 64, name, "docker", 1, "running", cgroup, image="web:1")


def sample(top: Path, version: int, *containers: Container) -> Sample:
    return Sampler(MemoryHierarchy(version, top), "red").sample(containers)


def only_row(taken: Sample) -> dict[str, object]:
    (row,) = taken.cgroups
    return dict(zip(CGROUPS, row, strict=True))


def test_every_figure_of_v2(tmp_path: Path) -> None:
    make_cgroup(tmp_path / "a", V2)
    row = only_row(sample(tmp_path, 2, container("/a")))
    assert abs(row.pop("time_ns") - time.time_ns()) < 60 * 10**9
    assert row == {
        "host": "red", "container_id": "c" * 64, "container_name": "web", "image": "web:1", "cgroup": "/a",
        "usage_bytes": 1009, "anon_bytes": 101, "file_bytes": 103, "shmem_bytes": 131, "kernel_bytes": 107,
        "slab_bytes": 137, "kernel_stack_bytes": 109, "page_tables_bytes": 113, "sock_bytes": 127, "swap_bytes": 31,
        "limit_bytes": None, "refaults": 5, "faults": 139, "major_faults": 149, "events_low": 1, "events_high": 2,
        "events_max": 3, "events_oom": 4, "events_oom_kill": 5, "psi_some_us": 151, "psi_full_us": 157,
        "processes": 0, "threads": 0,
    }  # fmt: skip


def test_every_figure_of_v1(tmp_path: Path) -> None:
    make_cgroup(tmp_path / "a", V1)
    row = only_row(sample(tmp_path, 1, container("/a")))
    known = {name: value for name, value in row.items() if isinstance(value, int) and name != "time_ns"}
    assert known == {
        "usage_bytes": 1013, "anon_bytes": 229, "file_bytes": 227, "shmem_bytes": 233, "kernel_bytes": 211,
        "page_tables_bytes": 0, "sock_bytes": 223, "swap_bytes": 239, "refaults": 11, "faults": 241,
        "major_faults": 251, "events_max": 6, "events_oom_kill": 7, "processes": 0, "threads": 0,
    }  # fmt: skip
    unknown = {name for name, value in row.items() if value is None}
    assert unknown == {
        "slab_bytes", "kernel_stack_bytes", "limit_bytes", "events_low", "events_high", "events_oom", "psi_some_us",
        "psi_full_us",
    }  # fmt: skip


def test_a_kernel_that_gives_less(tmp_path: Path) -> None:
    make_cgroup(tmp_path / "a", {"memory.stat": "anon 11\nworkingset_refault 13\n"})
    row = only_row(sample(tmp_path, 2, container("/a", None)))
    known = {name: row[name] for name in row if isinstance(row[name], int) and name != "time_ns"}
    assert known == {"anon_bytes": 11, "refaults": 13, "processes": 0, "threads": 0}
    assert row["container_name"] is None


def test_the_lowest_limit_above_binds(tmp_path: Path) -> None:
    make_cgroup(tmp_path / "pod", {**V2, "memory.max": "4096\n"})
    make_cgroup(tmp_path / "pod/a", {**V2, "memory.max": "8192\n"})
    make_cgroup(tmp_path / "pod/b", {**V2, "memory.max": "2048\n"})
    taken = sample(tmp_path, 2, container("/pod/a"), container("/pod/b"))
    assert [dict(zip(CGROUPS, row, strict=True))["limit_bytes"] for row in taken.cgroups] == [4096, 2048]


def test_a_container_that_has_gone_has_no_row(tmp_path: Path) -> None:
    make_cgroup(tmp_path / "a", V2)
    sampler = Sampler(MemoryHierarchy(2, tmp_path), "red")
    containers = [container("/a"), container("/gone"), Container("x", None, None, 1, "running", None)]
    assert len(sampler.sample(containers).cgroups) == 1
    (tmp_path / "a/memory.stat").unlink()
    assert sampler.sample(containers).cgroups == []
    make_cgroup(tmp_path / "a", V2)
    assert len(sampler.sample(containers).cgroups) == 1


def test_processes_below_belong_to_the_innermost_container(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "100"]) as inner, subprocess.Popen(["sleep", "100"]) as outer:
        try:
            make_cgroup(tmp_path / "a", V2, (os.getpid(),))
            make_cgroup(tmp_path / "a/system/deep", V2, (outer.pid,))
            make_cgroup(tmp_path / "a/docker/b", V2, (inner.pid, 0))
            taken = sample(tmp_path, 2, container("/a"), container("/a/docker/b"))
        finally:
            inner.kill()
            outer.kill()
    assert {pid: who.cgroup for pid, (who, _) in taken.pids.items()} == {
        os.getpid(): "/a",
        outer.pid: "/a",
        inner.pid: "/a/docker/b",
    }
    assert [dict(zip(CGROUPS, row, strict=True))["processes"] for row in taken.cgroups] == [2, 1]


def test_a_process_in_no_container_is_sampled_with_its_children_and_without_its_cgroup(tmp_path: Path) -> None:
    make_cgroup(tmp_path / "a", V2, (os.getpid(),))
    with subprocess.Popen(["sh", "-c", "sleep 100 & echo; wait"], stdout=subprocess.PIPE) as shell:
        shell.stdout.readline()
        target = Container(f"pid:{shell.pid}", "sh", None, shell.pid, "running", "/a")
        taken = sample(tmp_path, 2, target)
        pids = set(taken.pids)
        for pid in pids:
            os.kill(pid, 9)
    assert taken.cgroups == []
    assert shell.pid in pids
    assert len(pids) == 2


def test_every_figure_of_a_process(tmp_path: Path) -> None:
    make_cgroup(tmp_path / "a", V2, (os.getpid(), 2**22 + 1))
    taken = sample(tmp_path, 2, container("/a"))
    (row,) = (dict(zip(PROCESSES, row, strict=True)) for row in taken.processes)
    status = Path("/proc/self/status").read_text()
    assert row["pid"] == os.getpid()
    assert row["comm"] == Path("/proc/self/comm").read_text().strip()
    assert row["identity"].startswith(Path(sys.executable).resolve().name)
    assert row["fds"] in range(3, 1000)
    assert row["threads"] == int(status.partition("Threads:")[2].split()[0])
    assert abs(row["rss_anon_bytes"] - 1024 * int(status.partition("RssAnon:")[2].split()[0])) < 32 << 20
    assert row["rss_file_bytes"] > 0
    assert row["page_tables_bytes"] > 0
    assert row["pss_bytes"] >= row["pss_anon_bytes"] > 0
    now_ns = time.time_ns()
    assert now_ns - 86400 * 10**9 < row["start_time_ns"] < now_ns + 2 * 10**9


def test_what_is_no_process_of_its_own(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as zombie:
        deadline = time.monotonic() + 10
        while Path(f"/proc/{zombie.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            assert time.monotonic() < deadline
        assert ProcessReader().read(zombie.pid) is None
    assert ProcessReader().read(zombie.pid) is None


def test_an_exec_is_another_program() -> None:
    reader = ProcessReader()
    with subprocess.Popen(["sh", "-c", "read line; exec sleep 100"], stdin=subprocess.PIPE) as process:
        try:
            deadline = time.monotonic() + 10
            while Path(f"/proc/{process.pid}/comm").read_text() != "sh\n":
                assert time.monotonic() < deadline
            while not (before := reader.read(process.pid)) or before.known.command is None:
                assert time.monotonic() < deadline
            same = reader.read(process.pid)
            assert same and before.known is same.known
            process.stdin.write(b"\n")
            process.stdin.flush()
            # None: in the middle of its exec
            while (after := reader.read(process.pid)) and after.known.command in (before.known.command, None):
                assert time.monotonic() < deadline
        finally:
            process.kill()
    assert after is not None
    assert (after.known.comm, after.known.command) == ("sleep", "sleep 100")
    assert after.known.identity != before.known.identity


def test_pss_once_a_minute_and_within_the_budget() -> None:
    reader = ProcessReader()
    figures = {os.getpid(): reader.read(os.getpid())}
    assert take_pss(reader, figures, 10**9)[os.getpid()][0] > 0
    assert take_pss(reader, figures, 10**9) == {}, "not again so soon"
    later_ns = time.monotonic_ns() + PSS_EVERY_NS + 10**9
    ticks = iter((later_ns, later_ns + 2 * 10**9))
    assert take_pss(reader, figures, 10**9, lambda: next(ticks)) == {}, "the budget is spent"
    assert os.getpid() in take_pss(reader, figures, 10**9, lambda: later_ns)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["app", "--id=5f0c9a3e-1111-2222-3333-444455556666"], ["app", "--id=00000000-1111-2222-3333-444455556667"]),
        (["app", "--pidfile=/run/48213.pid"], ["app", "--pidfile=/run/9912345.pid"]),
        (["app", "/data/4f9b0c3d2e1a"], ["app", "/data/9f9b0c3d2e1b"]),
    ],
)
def test_what_differs_from_start_to_start_is_the_same_program(one: list[str], other: list[str]) -> None:
    assert identity_of("/usr/bin/app", one) == identity_of("/usr/bin/app", other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["app", "--port=80"], ["app", "--port=8080"]),
        (["app", "serve"], ["app", "work"]),
        (["app", "a b"], ["app", "a", "b"]),
        (["app", "deadbeefcafe"], ["app", "facadedecade"]),
    ],
)
def test_other_arguments_are_another_program(one: list[str], other: list[str]) -> None:
    assert identity_of("/usr/bin/app", one) != identity_of("/usr/bin/app", other)


def test_identities_of_odd_processes() -> None:
    assert identity_of("/usr/bin/app (deleted)", ["app"]) == identity_of("/usr/bin/app", ["app"])
    assert identity_of(None, ["/bin/app"]).startswith("app-")
    assert identity_of(None, []).startswith("unknown-")
    assert identity_of("/x/\udcff\x1b[31m", []).encode()
    assert command_of(["a\udcff", "b\n" * 4000]).encode()[:8] == b"a\\xff b\n"
    assert len(command_of(["x" * 10000])) == 512
    assert command_of([]) is None


def test_small_files(tmp_path: Path) -> None:
    (tmp_path / "long").write_bytes(b"x" * 200_000)
    (tmp_path / "number").write_text("17\n")
    (tmp_path / "max").write_text("max\n")
    assert len(read_bytes(str(tmp_path / "long"))) == 200_000
    assert read_bytes(str(tmp_path / "absent")) is None
    assert [read_number(str(tmp_path / name)) for name in ("number", "max", "absent")] == [17, None, None]
    assert keyed(b"a 1\nb 2\n") == {b"a": 1, b"b": 2}
    assert keyed(None) == keyed(b"a b\n") == {}
