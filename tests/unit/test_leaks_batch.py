"""Stores: read at once, by processes, by a Dask cluster, or followed while they grow: the same verdicts."""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pyarrow.parquet
import pytest

from rtdebug.errors import RtdebugError, UsageProblem
from rtdebug.leaks.batch import analyse
from rtdebug.leaks.rules import DEFAULT
from rtdebug.leaks.series import Labels, Series
from rtdebug.leaks.streaming import Follower
from rtdebug.leaks.verdict import LEAK, NO_LEAK, TOO_SHORT, judge_series
from rtdebug.leaks.workers import workers
from tests.unit.leak_series import (
    BEGIN_S,
    INTERVAL_S,
    MIB,
    cgroup_rows,
    leaking,
    process_rows,
    same_verdicts,
    steady,
    write_segment,
)

COUNT = 2400
PIECE = 600


@pytest.fixture
def containers():
    return {"leaky": leaking(COUNT).round(), "calm": steady(COUNT).round(), "late": leaking(COUNT, seed=2).round()}


@pytest.fixture
def store(tmp_path, containers):
    folder = tmp_path / "store"
    for begin in range(0, COUNT, PIECE):
        rows = cgroup_rows(containers, begin, begin + PIECE)
        rows = [row for row in rows if row["container_name"] != "late" or row["time_ns"] > (BEGIN_S + 20_000) * 10**9]
        write_segment(folder, "cgroups", rows, BEGIN_S + begin * INTERVAL_S)
    write_segment(folder, "processes", process_rows("leaky", containers["leaky"]), BEGIN_S)
    return folder


def found(analysis):
    return {
        (each.verdict.labels.name, each.verdict.labels.kind, each.verdict.labels.executable): each.verdict
        for each in analysis.judged
    }


def test_a_store(store, containers):
    verdicts = found(analyse([store]))
    leaky = verdicts["leaky", "anon", None]
    assert leaky.verdict == LEAK
    assert leaky.labels.image == "registry.example/leaky:1.0"
    assert leaky.labels.container_id == "leaky" * 4
    assert verdicts["calm", "anon", None].verdict == NO_LEAK
    assert verdicts["late", "anon", None].samples == COUNT - 2001
    assert verdicts["leaky", "rss_anon", "python3"].verdict == LEAK
    assert ("leaky", "usage", None) not in verdicts  # its kinds say more
    times = (BEGIN_S + np.arange(COUNT) * INTERVAL_S) * 10**9
    alone = judge_series(Series(Labels("leaky"), times, containers["leaky"])).verdict
    assert (leaky.growth_per_hour, leaky.interval) == (alone.growth_per_hour, alone.interval)


def test_by_processes(store):
    with ProcessPoolExecutor(2, get_context("fork")) as pool:
        same_verdicts(analyse([store], executor=pool).judged, analyse([store]).judged)


def test_by_row_groups(store):
    whole = analyse([store]).judged
    for path in store.rglob("*.parquet"):
        table = pyarrow.parquet.read_table(path)
        pyarrow.parquet.write_table(table, path, row_group_size=97)  # a sample of three containers is cut in two
        assert pyarrow.parquet.read_metadata(path).num_row_groups > 1
    same_verdicts(analyse([store]).judged, whole)
    same_verdicts(Follower([store]).poll(), whole)


def test_by_a_dask_cluster(store):
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None, protocol="tcp"
        ) as cluster,
        workers(scheduler=cluster.scheduler_address) as executor,
    ):
        same_verdicts(analyse([store], executor=executor).judged, analyse([store]).judged)


def test_no_scheduler():
    pytest.importorskip("distributed")
    with pytest.raises(RtdebugError, match="no Dask scheduler"), workers(scheduler="nonsense://x"):
        pass


def test_followed_while_it_grows(tmp_path, containers):
    """At every moment the same as a batch run over what there is, though each sample is read once."""
    folder = tmp_path / "store"
    follower = Follower([folder])
    folder.mkdir()
    assert follower.poll() == []
    for begin in range(0, COUNT, PIECE):
        write_segment(folder, "cgroups", cgroup_rows(containers, begin, begin + PIECE), BEGIN_S + begin * INTERVAL_S)
        same_verdicts(follower.poll(), analyse([folder]).judged)
    same_verdicts(follower.poll(), analyse([folder]).judged)


def test_changes_are_told_once(store):
    follower = Follower([store])
    assert {each.verdict.labels.name for each in follower.changes()} >= {"leaky", "calm"}
    assert list(follower.changes()) == []


def test_a_restart_is_known_by_its_processes(tmp_path):
    folder = tmp_path / "store"
    value = np.concatenate([leaking(COUNT // 2), leaking(COUNT // 2)])
    write_segment(folder, "cgroups", cgroup_rows({"web": value}), BEGIN_S)
    rows = process_rows("web", value, start_ns=lambda at: BEGIN_S * 10**9 + (at >= COUNT // 2) * 12_000 * 10**9)
    write_segment(folder, "processes", rows, BEGIN_S)
    verdict = found(analyse([folder]))["web", "anon", None]
    assert verdict.verdict == LEAK
    assert len(verdict.change_points_ns) == 1
    assert abs(verdict.change_points_ns[0] / 1e9 - BEGIN_S - 12_000) < 64


def test_a_clock_that_is_set_is_no_restart(tmp_path):
    """The time of a process's start is made from the clock: setting that moves it by some milliseconds."""
    folder = tmp_path / "store"
    value = leaking(COUNT)
    write_segment(folder, "cgroups", cgroup_rows({"web": value}), BEGIN_S)
    rows = process_rows("web", value, start_ns=lambda at: BEGIN_S * 10**9 + at // 800 * 3_000_000)
    write_segment(folder, "processes", rows, BEGIN_S)
    verdict = found(analyse([folder]))["web", "anon", None]
    assert (verdict.verdict, verdict.change_points_ns) == (LEAK, ())


def test_swapped_out_memory_is_still_held(tmp_path):
    """Half of the leak is in swap: neither anon alone nor swap alone is the whole."""
    folder = tmp_path / "store"
    value = leaking(COUNT)
    rows = cgroup_rows({"web": value / 2}) and [
        {**row, "swap_bytes": row["anon_bytes"]} for row in cgroup_rows({"web": value / 2})
    ]
    write_segment(folder, "cgroups", rows, BEGIN_S)
    verdict = found(analyse([folder]))["web", "anon", None]
    assert verdict.growth_per_hour == pytest.approx(300 * MIB * 360 / COUNT, rel=0.03)


def test_workers_of_one_program_are_one_series(tmp_path):
    folder = tmp_path / "store"
    value = leaking(COUNT)
    write_segment(folder, "cgroups", cgroup_rows({"web": value}), BEGIN_S)
    rows = [*process_rows("web", value / 2), *process_rows("web", value / 2, pid=42)]
    write_segment(folder, "processes", rows, BEGIN_S)
    verdict = found(analyse([folder]))["web", "rss_anon", "python3"]
    assert verdict.growth_per_hour == pytest.approx(300 * MIB * 360 / COUNT, rel=0.03)


def test_a_segment_that_is_cut_short_is_said(store):
    damaged = sorted(store.glob("cgroups-*"))[1]
    damaged.write_bytes(damaged.read_bytes()[:1000])
    analysis = analyse([store])
    assert any(damaged.name in note for note in analysis.notes)
    assert found(analysis)["leaky", "anon", None].verdict == LEAK


def test_clocks_that_cannot_be(tmp_path):
    folder = tmp_path / "store"
    rows = cgroup_rows({"web": leaking(COUNT)})
    rows[7]["time_ns"], rows[8]["time_ns"] = 5, 2**62
    write_segment(folder, "cgroups", rows, BEGIN_S)
    verdict = found(analyse([folder]))["web", "anon", None]
    assert verdict.verdict == LEAK
    assert any("2 samples left out" in note for note in verdict.notes)


def test_thousands_of_containers_of_one_sample(tmp_path):
    folder = tmp_path / "store"
    rows = cgroup_rows({f"job{number}": np.array([float(number + 1) * MIB]) for number in range(3000)})
    write_segment(folder, "cgroups", rows, BEGIN_S)
    verdicts = [each.verdict.verdict for each in analyse([folder]).judged if each.verdict.labels.kind == "anon"]
    assert verdicts == [TOO_SHORT] * 3000


def test_no_store(tmp_path):
    with pytest.raises(UsageProblem):
        analyse([tmp_path])
    with pytest.raises(RtdebugError):
        analyse([tmp_path / "missing.csv"])


def test_floors_are_passed_on(store):
    rules = DEFAULT.with_floors(10 * 86_400, None)
    assert {each.verdict.verdict for each in analyse([store], rules).judged} == {TOO_SHORT}
