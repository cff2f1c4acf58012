"""One look at a cgroup: v1 and v2, kinds that do not overlap, cgroups that vanish, ten thousand of them."""

from __future__ import annotations

import shutil
import time
from itertools import pairwise
from pathlib import Path

import pytest

from rtdebug.containers.model import Container
from rtdebug.export.counters import Counters
from rtdebug.export.exporter import Exporter, figures_of
from rtdebug.export.leak_watch import History, LeakWatch, judge_all
from rtdebug.export.model import KINDS, Leak, Reading
from rtdebug.export.reading import MemoryReader
from rtdebug.host.cgroup import MemoryHierarchy
from rtdebug.host.inside import TmpfsUsage
from rtdebug.leaks.baseline import Baselines
from tests.unit.export_things import MIB, box, v1_cgroup, v2_cgroup


def test_v2(tmp_path: Path) -> None:
    v2_cgroup(tmp_path / "docker" / "a")
    found = MemoryReader(MemoryHierarchy(2, tmp_path)).read("/docker/a")
    assert found is not None
    assert found.kinds == {
        "anon": 13 * MIB, "file": 4 * MIB, "shmem": 4 * MIB, "slab": MIB, "kernel_stack": 65536,
        "page_tables": 131072, "sock": 4096, "kernel": 3 * MIB - MIB - 65536 - 131072,
    }  # fmt: skip
    assert found.thp == {"anon": 2 * MIB, "file": 0, "shmem": 2 * MIB}
    assert found.figures["usage_bytes"] == 25 * MIB
    assert found.figures["limit_bytes"] == 64 * MIB
    assert found.figures["psi_full_us"] == 1_500_000
    assert found.figures["refaults"] == 17
    assert (found.figures["events_high"], found.figures["events_oom_kill"]) == (7, 1)
    assert found.figures["thp_fault_alloc"] == 2


def test_v1_takes_page_tables_from_processes(tmp_path: Path) -> None:
    v1_cgroup(tmp_path / "cgroup" / "docker" / "a")
    for pid, kib in ((41, 100), (42, 28)):
        (tmp_path / "proc" / str(pid)).mkdir(parents=True)
        (tmp_path / "proc" / str(pid) / "status").write_text(f"Name:\tx\nVmPTE:\t     {kib} kB\nVmSwap:\t0 kB\n")
    found = MemoryReader(MemoryHierarchy(1, tmp_path / "cgroup"), tmp_path / "proc").read("/docker/a")
    assert found is not None
    assert found.kinds == {
        "anon": 13 * MIB, "file": 4 * MIB, "shmem": 4 * MIB, "page_tables": 131072, "sock": 4096,
        "kernel": 3 * MIB - 131072,
    }  # fmt: skip
    assert "limit_bytes" not in found.figures and "psi_some_us" not in found.figures
    assert found.figures["events_max"] == 9


def test_a_cgroup_that_has_gone_or_half_gone(tmp_path: Path) -> None:
    reader = MemoryReader(MemoryHierarchy(2, tmp_path))
    assert reader.read("/docker/gone") is None
    v2_cgroup(tmp_path / "half")
    for name in ("memory.current", "memory.events", "memory.pressure", "memory.max"):
        (tmp_path / "half" / name).unlink()
    found = reader.read("/half")
    assert found is not None
    assert "usage_bytes" not in found.figures and "events_oom" not in found.figures
    assert found.kinds["anon"] == 13 * MIB


def test_rates_need_two_readings() -> None:
    before, now = (Reading({"refaults": refaults, "usage_bytes": 7}, {"anon": 5}, {}) for refaults in (100, 350))
    assert figures_of(now, None, None, 10.0) == {"usage_bytes": 7, "anon_bytes": 5}
    values = figures_of(now, TmpfsUsage(3, None), (5.0, before), 10.0)
    assert values["refaults_per_second"] == 50 and values["shm_used_bytes"] == 3
    assert figures_of(before, None, (5.0, now), 10.0)["refaults_per_second"] == 0  # a cgroup made anew


def exporter_over(tmp_path: Path, containers: list[Container], **more: object) -> Exporter:
    return Exporter(MemoryHierarchy(2, tmp_path), lambda: containers, Counters(100), None, **more)  # type: ignore[arg-type]


def without_pid(container_id: str) -> Container:
    return Container(container_id, container_id, "docker", None, "running", f"/docker/{container_id}")


def test_containers_that_vanish_between_two_looks(tmp_path: Path) -> None:
    for name in ("a", "b"):
        v2_cgroup(tmp_path / "docker" / name)
    exporter = exporter_over(tmp_path, [without_pid("a"), without_pid("b")], baselines=Baselines(10))
    assert [state.container.id for state in exporter.look().states] == ["a", "b"]
    shutil.rmtree(tmp_path / "docker" / "a")
    assert [state.container.id for state in exporter.look().states] == ["b"]
    exporter.close()


def test_pause_containers_the_root_and_what_is_too_much_are_left_out(tmp_path: Path) -> None:
    for name in ("a", "b", "pause"):
        v2_cgroup(tmp_path / "docker" / name)
    pause = Container("p", None, None, None, "running", "/docker/pause", sandbox=True)
    root = Container("r", None, None, None, "running", "/")
    exporter = exporter_over(tmp_path, [pause, root, without_pid("a"), without_pid("b")], most_containers=1)
    found = exporter.look()
    assert [state.container.id for state in found.states] == ["a"]
    assert found.left_out == 1
    exporter.close()


def test_ten_thousand_containers(tmp_path: Path) -> None:
    names = [f"{number:064x}" for number in range(10_000)]
    for name in names:
        folder = tmp_path / "docker" / name
        folder.mkdir(parents=True)
        (folder / "memory.stat").write_text("anon 4096\nfile 8192\nshmem 0\npgfault 5\n")
        (folder / "memory.current").write_text("16384\n")
    exporter = exporter_over(tmp_path, [without_pid(name) for name in names], baselines=Baselines(10))
    started = time.monotonic()
    found = exporter.look()
    assert time.monotonic() - started < 30
    assert len(found.states) == 10_000
    exporter.close()


def test_a_history_covers_more_and_more_time_in_as_much_memory() -> None:
    history = History(1)
    for second in range(0, 3 * 86400, 10):
        history.add(second, [float(second)])
    seconds, values = history.column(0)
    assert 256 <= len(seconds) <= 512
    assert seconds[0] < 3600 and seconds[-1] > 3 * 86400 - 1300
    assert list(values) == list(seconds.astype("float32"))
    assert all(second > before for before, second in pairwise(seconds))


def test_a_leak_is_found_and_what_is_flat_is_none() -> None:
    watch = LeakWatch(pause_s=1e9)
    leaking, flat = box("leaks", "a" * 64), box("flat", "b" * 64)
    for minute in range(240):
        wave = (minute * 7919) % 13 * 20_000
        kinds = {"anon": 100 * MIB + minute * MIB + wave, "shmem": 0, "kernel": 5 * MIB}
        readings = {
            "a": (leaking, Reading({}, kinds, {})),
            "b": (flat, Reading({}, {**kinds, "anon": 100 * MIB + wave}, {})),
        }
        watch.add(1_700_000_000 + 60 * minute, readings)
    found = judge_all(watch._watched, nice=0)
    assert found["a"]["anon"].level == 2
    assert found["a"]["anon"].growth_bytes_per_s == pytest.approx(MIB / 60, rel=0.1)
    assert found["b"]["anon"] == Leak(0, found["b"]["anon"].growth_bytes_per_s)
    assert "shmem" not in found["a"] and set(found["a"]) <= set(KINDS)
    watch.close()
