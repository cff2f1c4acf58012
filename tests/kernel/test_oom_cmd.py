"""`rtdebug oom` on real kills in small cgroups of our own: from the ring buffer, and as they happen."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.runtime_fixtures import Docker
from tests.kernel.tracing import ROOT, Trace
from tests.kernel.workload import MIB, Workload, memory_cgroup, memory_mount, run

pytestmark = pytest.mark.kernel

LIMIT = 24 * MIB
RATE_LIMIT_S = 5.5
"""Of ten kills in 5 s the kernel leaves out the dump of the rest: wait until the next is dumped whole."""


def oom(*arguments: object, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "rtdebug", "oom", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, input=stdin, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done


def episodes(*arguments: object) -> list[dict[str, Any]]:
    return [json.loads(line) for line in oom(*arguments, "-o", "json").stdout.splitlines()]


def path_of(cgroup: Path) -> str:
    return f"/{cgroup.relative_to(memory_mount()[0])}"


def watching(cgroup: Path, folder: Path) -> Trace:
    """The last two reports are kept."""
    return Trace("--watch", "--keep", 2, "--keep-dir", folder, "--container", path_of(cgroup), command="oom")


def test_a_kill_is_in_the_ring_buffer() -> None:
    time.sleep(RATE_LIMIT_S)
    with memory_cgroup(LIMIT) as cgroup:
        before_ns = time.time_ns()
        result = run("oom", 64 * MIB, cgroup=cgroup)
        after_ns = time.time_ns()
        assert result.returncode == -signal.SIGKILL
        (episode,) = episodes("--container", path_of(cgroup), "--since", "1h")
        page = oom("--container", path_of(cgroup)).stdout.decode()
    assert (episode["scope"], episode["oom_memcg"], episode["task_memcg"]) == ("memcg", *2 * [path_of(cgroup)])
    (killed,) = episode["killed"]
    assert (killed["pid"], killed["comm"], killed["uid"]) == (result.pid, "oom", os.getuid())
    assert episode["limit_bytes"] == LIMIT
    assert episode["complete"]
    assert episode["missing"] == []
    assert episode["verdict"]["kind"] == "anon_one_process"
    assert episode["verdict"]["evidence"]["largest_pid"] == result.pid
    # the kernel's clock is not adjusted as CLOCK_REALTIME is: within a second of a boot of some days
    assert before_ns - 10**9 <= episode["time_ns"] <= after_ns + 10**9
    assert episode["time_kind"] == "utc"
    assert page.startswith("OOM kill at 20")
    assert f"oom (pid {result.pid})" in page


def test_shared_memory_is_told_from_a_leak() -> None:
    time.sleep(RATE_LIMIT_S)
    with memory_cgroup(LIMIT) as cgroup:
        run("oom", 64 * MIB, "shm", cgroup=cgroup)
        (episode,) = episodes("--container", path_of(cgroup))
    assert episode["verdict"]["kind"] == "shmem"
    assert episode["dominant_kind"] == "shmem"
    assert episode["verdict"]["evidence"]["shmem_bytes"] > LIMIT // 2
    assert "tmpfs_is_cache" in [note["kind"] for note in episode["verdict"]["notes"]]


def test_the_same_kill_out_of_dmesg() -> None:
    with memory_cgroup(LIMIT) as cgroup:
        result = run("oom", 64 * MIB, cgroup=cgroup)
        (here,) = episodes("--container", path_of(cgroup))
    for arguments in ([], ["-T"], ["-x"], ["--time-format=iso"], ["-r"]):
        log = subprocess.run(["dmesg", *arguments], capture_output=True, check=True).stdout
        found = oom("-", "-o", "json", "--container", path_of(cgroup), stdin=log).stdout.splitlines()
        there = json.loads(found[0])
        assert len(found) == 1, arguments
        assert there["killed"] == here["killed"]
        assert there["killed"][0]["pid"] == result.pid
        assert there["memory_stat"] == here["memory_stat"]


def test_a_watch_shows_and_keeps_the_kill(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    with (
        memory_cgroup(LIMIT) as cgroup,
        Workload("oom", 64 * MIB, "anon", "worker", cgroup=cgroup) as workload,
        watching(cgroup, folder) as watch,
    ):
        workload.go()
        workload.finish()
        watch.wait_for("oom_kill")
    line = watch.result.one("oom_kill")
    assert watch.result.returncode == 0
    assert line["cgroup"] == path_of(cgroup)
    assert line["verdict"]["kind"] == "anon_one_process"
    (kept,) = folder.iterdir()
    assert kept.stat().st_mode & 0o777 == 0o700
    files = {path.name: path for path in kept.iterdir()}
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in files.values())
    assert json.loads(files["oom.json"].read_text()) == line
    assert files["oom.txt"].read_text().startswith("OOM kill at ")


def test_only_the_last_reports_are_kept_and_the_snapshot_is_of_the_survivors(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("not a report")
    with memory_cgroup(LIMIT) as cgroup, Workload("pause", cgroup=cgroup) as survivor:
        survivor.go()
        with watching(cgroup, tmp_path) as watch:
            pids = [run("oom", 64 * MIB, cgroup=cgroup).pid for _ in range(3)]
            watch.wait_for("oom_kill", pid=pids[-1])
        kept = sorted(path for path in tmp_path.iterdir() if path.name.startswith("oom-"))
        assert [int(path.name.rpartition("-")[2]) for path in kept] == pids[1:]
        archive = kept[-1] / "memory.tar.gz"
        assert archive.exists(), (kept[-1] / "oom.txt").read_text()
        shown = subprocess.run(
            [sys.executable, "-m", "rtdebug", "show", str(archive), "-o", "json"], cwd=ROOT, capture_output=True
        )
        assert str(survivor.pid) in shown.stdout.decode(), shown.stderr
    assert (tmp_path / "mine").exists()


def test_a_docker_container_that_fills_its_dev_shm(docker: Docker, tmp_path: Path) -> None:
    box = docker.start("rtdebug-oom-cart", memory_bytes=64 * MIB, shm_bytes=128 * MIB)
    time.sleep(RATE_LIMIT_S)
    with Trace("--watch", "--keep", 2, "--keep-dir", tmp_path, "--container", box.id[:12], command="oom") as watch:
        fill = ["exec", box.name, "/bin/sh", "-c", "dd if=/dev/zero of=/dev/shm/x bs=1M count=100; true"]
        with contextlib.suppress(subprocess.CalledProcessError):  # exec ends as what it ran
            docker.call(*fill)
        watch.wait_for("oom_kill")
    line = watch.result.of("oom_kill")[0]
    (episode, *_) = episodes("--container", box.id)
    page = oom("--container", box.name, "-o", "text").stdout.decode()
    assert (line["container_id"], episode["container_id"]) == (box.id, box.id)
    assert (line["verdict"]["kind"], episode["verdict"]["kind"]) == ("shmem", "shmem")
    assert episode["limit_level"] == "container"
    assert (episode["runtime"], episode["container_name"]) == ("docker", box.name)
    assert f" whose {box.name}, docker {box.id[:12]}, image " in " ".join(page.split())
    kept = sorted(path for path in tmp_path.iterdir() if path.name.startswith("oom-"))
    assert (kept[-1] / "memory.tar.gz").exists(), (kept[-1] / "oom.txt").read_text()
