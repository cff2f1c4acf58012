"""Limits of real cgroups: what a probe finds, what reclaim takes, and all is as before, whatever happens."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kernel.runtime_fixtures import Docker, Runc, wait_for
from tests.kernel.workload import MIB, Workload, memory_cgroup, memory_mount

pytestmark = pytest.mark.kernel
RTDEBUG = str(Path(sys.executable).parent / "rtdebug")
LIMIT, ANON, COLD, HOT = 200 * MIB, 23, 61, 17
V2 = memory_mount()[1] if os.geteuid() == 0 else False


def rtdebug(*arguments: object, status: int = 0, timeout_s: float = 60) -> str:
    """Run it; return its standard output."""
    done = subprocess.run(
        [RTDEBUG, *map(str, arguments)], capture_output=True, text=True, timeout=timeout_s, check=False
    )
    assert done.returncode == status, done.stderr
    return done.stdout


def answer(*arguments: object) -> dict:
    """Return the JSON document."""
    return json.loads(rtdebug(*arguments, "-o", "json"))


def knobs(cgroup: Path) -> dict[str, str]:
    """Return every file that rtdebug may write."""
    names = ("memory.limit_in_bytes", "memory.soft_limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.oom_control")
    names += ("memory.min", "memory.low", "memory.high", "memory.max", "memory.swap.max")
    return {name: (cgroup / name).read_text() for name in names if (cgroup / name).exists()}


def usage(cgroup: Path) -> int:
    """Return what the cgroup holds."""
    return int((cgroup / ("memory.current" if V2 else "memory.usage_in_bytes")).read_text())


@contextmanager
def working(tmp_path: Path, cold: int = COLD, hot: int = HOT, limit: int = LIMIT) -> Iterator[tuple[Path, Workload]]:
    """Give a cgroup whose only process has a known working set."""
    file = tmp_path / "rtdebug-pages"
    with memory_cgroup(limit) as cgroup, Workload("working_set", ANON, cold, hot, file, cgroup=cgroup) as workload:
        workload.go()
        wait_for(lambda: usage(cgroup) > (ANON + cold + hot) * MIB, "the workload to have its pages")
        time.sleep(0.5)  # the rounds that make the hot pages hot
        yield cgroup, workload
    file.unlink()


def target(cgroup: Path) -> str:
    """Return its name for rtdebug."""
    return f"cgroup:/{cgroup.relative_to(memory_mount()[0])}"


def test_a_probe_finds_the_working_set_and_puts_everything_back(tmp_path: Path) -> None:
    limit = 2 * LIMIT  # far above all of it
    with working(tmp_path, limit=limit) as (cgroup, _):
        before = knobs(cgroup)
        # on a loop device over a tmpfs, as in the lab, what the writer's pages take there is charged to the writer too
        below = int(dict(map(str.split, (cgroup / "memory.stat").read_text().splitlines())).get("shmem", 0))
        found = answer("limits", target(cgroup), "--probe", "--step-time", "1s")
        assert knobs(cgroup) == before
    probe = found["probe"]
    # the kernel's share (page tables, slab of the file's pages) comes on top; a step is 5 %
    assert (ANON + HOT) * MIB * 0.8 < probe["working_set_bytes"] < (ANON + HOT + COLD * 0.6) * MIB + below
    assert probe["started_bytes"] > (ANON + HOT + COLD) * MIB
    assert found["demand"]["probed"] is True
    (new,) = [change["new_bytes"] for change in found["proposal"]["changes"] if change["knob"] == "max"]
    assert probe["working_set_bytes"] < new < limit


def test_kill_9_in_the_middle_of_a_probe_leaves_nothing(tmp_path: Path) -> None:
    with working(tmp_path) as (cgroup, workload):
        before = knobs(cgroup)
        for delay_s in (0.0, 0.3, 0.9):
            argv = [RTDEBUG, "limits", target(cgroup), "--probe", "--step-time", "200ms"]
            with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
                assert process.stderr is not None
                next(line for line in process.stderr if line.startswith("down to"))
                time.sleep(delay_s)
                process.kill()
            wait_for(lambda: knobs(cgroup) == before, "the limits to be put back", 5)
        assert Path(f"/proc/{workload.pid}").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_probe_that_is_ended_says_what_it_found(tmp_path: Path, number: int) -> None:
    with working(tmp_path) as (cgroup, _):
        before = knobs(cgroup)
        argv = [RTDEBUG, "limits", target(cgroup), "--probe", "--step-time", "30s"]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            wait_for(lambda: usage(cgroup) < (ANON + COLD + HOT) * MIB or knobs(cgroup) != before, "the first step")
            time.sleep(0.3)
            process.send_signal(number)
            out, _ = process.communicate(timeout=20)
            assert process.returncode == 0
        assert "you ended it" in " ".join(out.split())
        assert knobs(cgroup) == before


def test_reclaim_takes_page_cache_and_says_what_it_took(tmp_path: Path) -> None:
    with working(tmp_path) as (cgroup, _):
        before = knobs(cgroup)
        at_first = usage(cgroup)
        took = answer("reclaim", target(cgroup), "24M", "--watch", "1s")
        assert knobs(cgroup) == before
        assert at_first - usage(cgroup) > 18 * MIB  # the second witness
    assert 20 * MIB < took["returned_bytes"] < 40 * MIB
    assert took["by_kind_bytes"]["file"] > 18 * MIB
    assert abs(took["by_kind_bytes"]["anon"]) < 2 * MIB
    assert took["stopped"] is None
    assert took["watched_s"] >= 1


def test_reclaim_stops_when_there_is_no_more(tmp_path: Path) -> None:
    with working(tmp_path, cold=11, hot=1) as (cgroup, workload):
        took = answer("reclaim", target(cgroup), "4G", "--watch", "100ms")
        assert took["stopped"]
        assert usage(cgroup) > ANON * MIB * 0.9  # anon stays: there is no swap
        assert Path(f"/proc/{workload.pid}").exists()


def test_apply_writes_and_undo_puts_back(tmp_path: Path) -> None:
    with working(tmp_path, limit=100 * MIB, cold=5) as (cgroup, _):
        before = knobs(cgroup)
        found = answer("limits", target(cgroup), "--probe", "--step-time", "300ms", "--apply", "--yes")
        assert found["proposal"]["changes"]
        changed = {name for name, text in knobs(cgroup).items() if text != before[name]}
        assert changed <= {setting["file"] for setting in found["applied"]}
        assert changed
        assert "as it was" in rtdebug("limits", target(cgroup), "--undo")
        assert knobs(cgroup) == before
        rtdebug("limits", target(cgroup), "--undo", status=2)


def test_a_recording_says_what_it_needs(tmp_path: Path) -> None:
    with working(tmp_path, cold=23) as (cgroup, _):
        store = tmp_path / "store"
        rtdebug("leaks", "record", target(cgroup), "--store", store, "--interval", "500ms", "--duration", "3s")
        found = answer("limits", target(cgroup), "--from", store)
        assert "store" in found["demand"]["source"]
        assert found["demand"]["observed_s"] >= 1
        assert (ANON - 1) * MIB < found["demand"]["unreclaimable_bytes"] < (ANON + 15) * MIB
        rtdebug("limits", target(cgroup), "--from", tmp_path, "--probe", status=2)
        (tmp_path / "empty").mkdir()
        rtdebug("limits", target(cgroup), "--from", tmp_path / "empty", status=2)


def test_two_probes_at_once_are_one_too_many(tmp_path: Path) -> None:
    with working(tmp_path) as (cgroup, _):
        before = knobs(cgroup)
        argv = [RTDEBUG, "limits", target(cgroup), "--probe", "--step-time", "20s"]
        with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as first:
            assert first.stderr is not None
            wait_for(lambda: usage(cgroup) < (ANON + COLD + HOT) * MIB or knobs(cgroup) != before, "the first step")
            second = subprocess.run(
                [RTDEBUG, "reclaim", target(cgroup), "1M"], capture_output=True, text=True, timeout=20, check=False
            )
            first.send_signal(signal.SIGINT)
            first.communicate(timeout=20)
        assert second.returncode == 1
        assert "another rtdebug" in second.stderr
        assert knobs(cgroup) == before


def test_a_container_that_ends_in_the_middle(tmp_path: Path) -> None:
    with working(tmp_path) as (cgroup, workload):
        before = knobs(cgroup)
        argv = [RTDEBUG, "limits", target(cgroup), "--probe", "--step-time", "2s"]
        with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            next(line for line in process.stderr if line.startswith("Probing"))
            wait_for(lambda: usage(cgroup) < (ANON + COLD + HOT) * MIB or knobs(cgroup) != before, "the first step")
            os.kill(workload.pid, signal.SIGKILL)
            workload.finish()
            wait_for(lambda: not (cgroup / "cgroup.procs").read_text(), "the process to be gone")
            cgroup.rmdir()
            _, err = process.communicate(timeout=20)
        cgroup.mkdir()  # for the fixture to remove
        assert process.returncode in (1, 4)
        assert "Traceback" not in err
        assert "ended" in err


def test_a_real_container_of_runc(runc: Runc) -> None:
    box = runc.start(memory_bytes=96 * MIB)
    found = answer("limits", box.id)
    assert found["container_id"] == box.id
    assert found["limit_bytes"] == 96 * MIB
    assert found["cgroups"][0]["max_bytes"] == 96 * MIB
    assert found["demand"]["unreclaimable_bytes"] > 23 * MIB  # its /dev/shm: no swap takes it
    page = rtdebug("limits", box.id)
    assert "Limits of" in page
    assert "/dev/shm" not in page  # 64 MiB are below the limit


def test_a_tmpfs_that_is_as_large_as_the_limit(docker: Docker) -> None:
    box = docker.start("rtdebug-limits", memory_bytes=64 * MIB, shm_bytes=64 * MIB)
    problems = {problem["rule"]: problem for problem in answer("limits", box.name)["problems"]}
    assert problems["tmpfs-not-below-limit"]["evidence"]["tmpfs"] == "/dev/shm"


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("limits", "cgroup:/"), 2, "root cgroup"),
        (("limits", "no-such-container-at-all"), 4, ""),
        (("reclaim", "cgroup:/", "1M"), 2, "root cgroup"),
        (("reclaim", "cgroup:/", "much"), 2, "no size"),
        (("reclaim", "cgroup:/", "0"), 2, "SIZE is 0"),
        (("limits", "cgroup:/", "--undo", "--probe"), 2, "--undo"),
    ],
)
def test_bad_input(arguments: tuple[str, ...], status: int, words: str) -> None:
    done = subprocess.run([RTDEBUG, *arguments], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == status
    assert words in done.stderr
    assert "Traceback" not in done.stderr
