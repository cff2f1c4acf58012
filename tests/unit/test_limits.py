"""Problems with limits, what is proposed, and writing all of it or nothing."""

from dataclasses import replace
from pathlib import Path

import pandas
import pytest

from rtdebug.containers.model import Container
from rtdebug.errors import NotRunning, RtdebugError, UsageProblem
from rtdebug.host.cgroup import MemoryHierarchy
from rtdebug.host.memcg import parse_pressure
from rtdebug.limits.answer import Answer, measured
from rtdebug.limits.apply import apply, only_one, read_applied, undo
from rtdebug.limits.brake import Reading, reason_to_stop, stalled
from rtdebug.limits.demand import Demand, demand_now, demand_recorded
from rtdebug.limits.facts import Place, parse_list, place_of, read_facts
from rtdebug.limits.lines import lines_to_apply
from rtdebug.limits.probe import ProbeResult, Step
from rtdebug.limits.problems import Command, Cpuset, Facts, find_problems, jvm_heap_bytes
from rtdebug.limits.proposal import Change, propose, round_up
from rtdebug.limits.reclaim import reclaim
from rtdebug.limits.settings import read_chain
from rtdebug.render.limits import limits_page
from rtdebug.render.oom_verdict import fill
from tests.unit.trees import make_host

MIB = 1 << 20
V1_UNLIMITED = "9223372036854771712"


def v2_files(usage=100, limit="max", high="max", low=0, least=0, swap="max", anon=60, file=30, shmem=0, kills=0):
    def text(value):
        return f"{value}\n" if isinstance(value, str) else f"{value * MIB}\n"

    return {
        "memory_current": text(usage),
        "memory_max": text(limit),
        "memory_high": text(high),
        "memory_low": text(low),
        "memory_min": text(least),
        "memory_swap.max": text(swap),
        "memory_peak": text(usage),
        "memory_stat": f"anon {anon * MIB}\nfile {file * MIB}\nshmem {shmem * MIB}\ninactive_file {file * MIB}\n",
        "memory_events": f"low 0\nhigh 0\nmax 0\noom 0\noom_kill {kills}\n",
    }


def v1_files(usage=100, limit=None, soft=None, memsw=None, anon=60, disable=0, kills=0):
    def text(value):
        return f"{V1_UNLIMITED if value is None else value * MIB}\n"

    return {
        "memory_usage_in_bytes": text(usage),
        "memory_limit_in_bytes": text(limit),
        "memory_soft_limit_in_bytes": text(soft),
        "memory_memsw.limit_in_bytes": text(memsw),
        "memory_use_hierarchy": "1\n",
        "memory_oom_control": f"oom_kill_disable {disable}\nunder_oom 0\noom_kill {kills}\n",
        "memory_stat": f"total_rss {anon * MIB}\ntotal_cache {30 * MIB}\ntotal_inactive_file {30 * MIB}\n",
    }


def v2(tmp_path, own=None, parent=None):
    host = make_host(tmp_path, 2)
    host.add_cgroup("/pods", **(parent or v2_files()))
    host.add_cgroup("/pods/web", **(own or v2_files()))
    return host


def facts_of(host, cgroup="/pods/web", **changes):
    chain = read_chain(host.hierarchy, cgroup)
    facts = Facts(chain, unreclaimable_bytes=None, swap_total_bytes=0, tmpfs_size_bytes={})
    return replace(facts, **changes)


def place(host, cgroup="/pods/web", **fields):
    return Place(Container("c0ffee", "web", None, 1, "running", cgroup, **fields), host.hierarchy, cgroup)


def rules(facts):
    return {problem.rule for problem in find_problems(facts)}


@pytest.mark.parametrize(
    ("rule", "own", "parent", "near_miss"),
    [
        ("low-not-below-high", {"low": 200, "high": 200, "limit": 300}, {"low": 200}, {"low": 199, "high": 200}),
        ("min-above-low", {"least": 50, "low": 40}, {"least": 50, "low": 50}, {"least": 40, "low": 40}),
        ("high-not-below-max", {"high": 300, "limit": 300}, {}, {"high": 299, "limit": 300}),
        ("protection-beyond-parent", {"low": 50, "limit": 300}, {"low": 10}, {"low": 10, "limit": 300}),
        ("parent-below-child", {"limit": 300}, {"limit": 200}, {"limit": 200}),
        ("no-limit", {}, {}, {"limit": 300}),
    ],
)
def test_rules_of_v2(tmp_path, rule, own, parent, near_miss):
    fires = v2(tmp_path / "fires", v2_files(**own), v2_files(**parent))
    assert rule in rules(facts_of(fires))
    quiet = v2(tmp_path / "quiet", v2_files(**near_miss), v2_files(**parent))
    assert rule not in rules(facts_of(quiet))


@pytest.mark.parametrize(
    ("rule", "own", "near_miss"),
    [
        ("reservation-above-limit", {"soft": 301, "limit": 300}, {"soft": 300, "limit": 300}),
        ("oom-kill-disable-without-limit", {"disable": 1}, {"disable": 1, "limit": 300}),
        ("oom-kill-disable", {"disable": 1, "limit": 300}, {"disable": 0, "limit": 300}),
    ],
)
def test_rules_of_v1(tmp_path, rule, own, near_miss):
    for name, files, expected in (("fires", own, True), ("quiet", near_miss, False)):
        host = make_host(tmp_path / name, 1)
        host.add_cgroup("/web", **v1_files(**files))
        assert (rule in rules(facts_of(host, "/web"))) is expected


def test_a_parent_without_use_hierarchy_binds_nobody(tmp_path):
    host = make_host(tmp_path, 1)
    host.add_cgroup("/pods", **v1_files(limit=100) | {"memory_use_hierarchy": "0\n"})
    host.add_cgroup("/pods/web", **v1_files(limit=300))
    facts = facts_of(host)
    assert facts.limit_bytes == 300 * MIB
    assert "parent-below-child" not in rules(facts)


@pytest.mark.parametrize(
    ("rule", "changes", "near_miss"),
    [
        ("limit-nearly-used-up", {"unreclaimable_bytes": 270 * MIB}, {"unreclaimable_bytes": 269 * MIB}),
        ("swap-as-large-as-memory", {"swap_total_bytes": 1}, {"swap_total_bytes": 0}),
        (
            "tmpfs-not-below-limit",
            {"tmpfs_size_bytes": {"/dev/shm": 300 * MIB}},
            {"tmpfs_size_bytes": {"/dev/shm": 299 * MIB}},
        ),
        (
            "limit-below-jvm-heap",
            {"commands": (Command(7, ("/usr/bin/java", "-Xmx256m", "-jar", "app.jar")),)},
            {"commands": (Command(7, ("java", "-Xmx240m")), Command(8, ("grep", "-Xmx900m")))},
        ),
        (
            "cpuset-nodes-do-not-match",
            {"cpuset": Cpuset(frozenset({0, 8}), frozenset({0}), {0: 0, 8: 1})},
            {"cpuset": Cpuset(frozenset({0, 8}), frozenset({0, 1}), {0: 0, 8: 1})},
        ),
    ],
)
def test_rules_of_the_surroundings(tmp_path, rule, changes, near_miss):
    facts = facts_of(v2(tmp_path, v2_files(limit=300, swap=300)))
    assert rule in rules(replace(facts, **changes))
    assert rule not in rules(replace(facts, **near_miss))


def test_every_problem_has_evidence(tmp_path):
    facts = facts_of(v2(tmp_path, v2_files(low=200, high=200, least=300)), swap_total_bytes=1)
    assert len(find_problems(facts)) >= 3
    assert all(problem.evidence for problem in find_problems(facts))


@pytest.mark.parametrize(
    ("arguments", "heap"),
    [
        (("java", "-Xmx2g"), 2 << 30),
        (("/opt/jdk/bin/java", "-Xmx1g", "-XX:MaxHeapSize=512M"), 512 << 20),
        (("java", "-Xmx1000"), 1000),
        (("java", "-Xmxlots", "-jar"), None),
        (("python3", "-Xmx2g"), None),
        ((), None),
    ],
)
def test_jvm_heap(arguments, heap):
    assert jvm_heap_bytes(arguments) == heap


def test_lists_of_cpus():
    assert parse_list("0-2,8\n") == {0, 1, 2, 8}
    assert parse_list("") == frozenset()
    assert parse_list("x,3-") == {3}


def demand(working=100, observed_s=0.0, probed=False, usage=100, unreclaimable=60):
    return Demand("a test", observed_s, usage * MIB, usage * MIB, working * MIB, unreclaimable * MIB, probed)


def changed(proposal):
    return {change.knob: None if change.new_bytes is None else change.new_bytes / MIB for change in proposal.changes}


def test_the_margin_shrinks_with_what_was_seen(tmp_path):
    facts = facts_of(v2(tmp_path, v2_files(limit="max")))
    seen = (demand(observed_s=seconds, probed=True) for seconds in (0, 7200, 90000))
    limits = [changed(propose(facts, each))["max"] for each in seen]
    assert limits == [152, 132, 120]


@pytest.mark.parametrize("limit", [1000, "max"])
def test_one_look_never_lowers_or_sets_a_limit(tmp_path, limit):
    facts = facts_of(v2(tmp_path, v2_files(limit=limit)))
    looked = propose(facts, demand())
    assert "max" not in changed(looked)
    assert any("too little" in remark for remark in looked.remarks)
    assert changed(propose(facts, demand(probed=True)))["max"] == 152


def test_a_limit_that_fits_stays(tmp_path):
    proposal = propose(facts_of(v2(tmp_path, v2_files(limit=150))), demand())
    assert "max" not in changed(proposal)
    assert any("stays" in remark for remark in proposal.remarks)


def test_after_a_kill_what_it_needs_is_not_known(tmp_path):
    proposal = propose(facts_of(v2(tmp_path, v2_files(limit=100, kills=3))), demand(working=60, observed_s=90000))
    assert changed(proposal)["max"] == 152
    assert "OOM-killed 3 times" in proposal.changes[0].reason


@pytest.mark.parametrize("own", [128, "max"])
def test_a_kill_at_the_limit_of_a_parent_says_nothing_of_its_own(tmp_path, own):
    facts = facts_of(v2(tmp_path, v2_files(limit=own, usage=1, anon=1, kills=2), v2_files(limit=40)))
    proposal = propose(facts, demand(working=1))
    assert proposal.changes == ()
    assert any("2 times below the limit of 40.0 MiB of /pods" in remark for remark in proposal.remarks)


def test_a_probe_that_only_the_host_felt_measured_nothing(tmp_path):
    assert stalled(reading(0), reading(1, stall_us=200_000)) and not stalled(reading(0), reading(1, stall_us=10_000))
    result = ProbeResult(20 * MIB, 20 * MIB, (Step(18 * MIB, 20 * MIB, calm=False),), "busy", "memory.max", False)
    host = v2(tmp_path, v2_files(limit=64, anon=20))
    facts = facts_of(host)
    page = limits_page(Answer(place(host), facts, demand(), (), propose(facts, demand()), {}, result))
    assert "That says nothing of what it needs" in " ".join(" ".join(page).split())


def test_a_paused_container_is_not_probed(tmp_path):
    host = v2(tmp_path)
    where = place(host)
    paused = replace(where, container=replace(where.container, status="paused"))
    with pytest.raises(NotRunning, match="paused"):
        measured(paused, 1.0, lambda seconds: False, print)(facts_of(host))


@pytest.mark.parametrize("name", ["{x}", "{}", "{", "}", "%s", "{0.__class__}"])
def test_braces_in_the_names_of_mounts_and_cgroups_are_names(tmp_path, name):
    host = make_host(tmp_path, 2)
    host.add_cgroup(f"/{name}", **v2_files(limit=40))
    host.add_cgroup(f"/{name}/web", **v2_files(limit=80))
    chain = read_chain(host.hierarchy, f"/{name}/web")
    facts = Facts(chain, unreclaimable_bytes=39 * MIB, swap_total_bytes=0, tmpfs_size_bytes={f"/{name}": 80 * MIB})
    shown = [fill(problem.text, problem.evidence) for problem in find_problems(facts)]
    assert any(text.startswith(f"/{name} has a lower limit") for text in shown)
    assert any(text.startswith(f"/{name} may hold as much") for text in shown)
    assert any(text.startswith("98% of the limit") for text in shown)


def test_no_high_where_nothing_can_be_reclaimed(tmp_path):
    facts = facts_of(v2(tmp_path, v2_files(limit=150)))
    useless = propose(facts, demand(usage=100, unreclaimable=95))
    assert "high" not in changed(useless)
    assert any("memory.high is not proposed" in remark for remark in useless.remarks)
    assert changed(propose(facts, demand(usage=140, unreclaimable=60)))["high"] < 150


@pytest.mark.parametrize("working", [1, 17, 90, 300, 5000, 40000])
def test_what_is_proposed_is_consistent(tmp_path, working):
    facts = facts_of(v2(tmp_path, v2_files(limit="max", usage=working + 20)))
    new = changed(propose(facts, demand(working=working, usage=working * 2, unreclaimable=working // 2, probed=True)))
    assert new["low"] < new.get("high", new["max"]) <= new["max"]
    assert working < new["max"]
    assert not rules(replace(facts, chain=facts.chain)) & {"low-not-below-high", "high-not-below-max"}


def test_nothing_known_nothing_proposed(tmp_path):
    unknown = Demand("a test", 0.0, None, None, None, None)
    proposal = propose(facts_of(v2(tmp_path)), unknown)
    assert proposal.changes == ()
    assert proposal.remarks


def test_a_parent_that_is_lower_is_told(tmp_path):
    facts = facts_of(v2(tmp_path, v2_files(limit=80), v2_files(limit=90)))
    assert any("/pods limits it to 90.0 MiB" in remark for remark in propose(facts, demand()).remarks)


def test_round_figures():
    assert [round_up(count * MIB) // MIB for count in (1, 101, 257, 2049, 17000)] == [4, 104, 272, 2112, 17152]


def test_the_demand_of_one_look(tmp_path):
    host = v2(tmp_path, v2_files(usage=100, anon=60, file=30, shmem=10))
    memory = read_chain(host.hierarchy, "/pods/web")[0].memory
    without_swap = demand_now(memory, swap_free_bytes=0)
    assert (without_swap.working_set_bytes, without_swap.unreclaimable_bytes) == (70 * MIB, 70 * MIB)
    assert demand_now(memory, swap_free_bytes=50 * MIB).unreclaimable_bytes == 20 * MIB
    assert demand_now(memory, swap_free_bytes=1000 * MIB).unreclaimable_bytes == 0


def test_the_demand_of_a_recording_is_its_peak():
    frame = pandas.DataFrame(
        {
            "time_ns": [3600 * 10**9, 0, 7200 * 10**9],
            "usage_bytes": [300.0, 100.0, 200.0],
            "anon_bytes": [150.0, 50.0, 160.0],
            "shmem_bytes": [10.0, None, 20.0],
        }
    )
    recorded = demand_recorded(frame, "x")
    assert recorded is not None
    assert (recorded.observed_s, recorded.usage_bytes, recorded.peak_bytes) == (7200, 200, 300)
    assert recorded.unreclaimable_bytes == 180
    assert demand_recorded(frame.iloc[:0], "x") is None


def reading(seconds=0.0, usage=100, stall_us=0, refaulted=0, ooms=0, of_host=False):
    return Reading(int(seconds * 1e9), usage * MIB, stall_us, of_host, refaulted * MIB, ooms)


@pytest.mark.parametrize(
    ("after", "word"),
    [
        (reading(10, stall_us=400_000, refaulted=5), None),
        (reading(10, stall_us=600_000), "waited for memory 6%"),
        (reading(10, stall_us=600_000, of_host=True), "the host"),
        (reading(10, refaulted=11), "reads back 1.1 MiB/s"),
        (reading(10, ooms=1), "OOM-killed"),
        (replace(reading(10), stall_us=None, refaulted_bytes=None), None),
    ],
)
def test_the_brake(after, word):
    reason = reason_to_stop(reading(), after)
    assert (reason is None) if word is None else (word in (reason or ""))


def test_a_pressure_file_without_lines():
    assert parse_pressure("").some is None


CHANGES = (
    Change("max", "memory.max", 100 * MIB, 200 * MIB, "r"),
    Change("high", "memory.high", None, 190 * MIB, "r"),
)


def test_nothing_taken_is_not_watched(tmp_path):
    """A memory.reclaim that is a plain file takes nothing; there is nothing to be read back either."""
    facts = facts_of(v2(tmp_path, v2_files(anon=60) | {"memory_reclaim": ""}))
    waits = []
    result = reclaim(facts.own, 64 * MIB, 60.0, lambda seconds: bool(waits.append(seconds)), lambda taken: None)
    assert result.returned_bytes == 0 and "no more to take" in result.stopped
    assert waits and 60.0 not in waits


def test_the_page_names_the_command_that_puts_it_back(tmp_path):
    host = v2(tmp_path, v2_files(limit=64, anon=20))
    facts = facts_of(host)
    page = limits_page(Answer(place(host), facts, demand(), (), propose(facts, demand()), {}, None, ()))
    assert any(f"back: rtdebug limits {place(host).container.name} --undo" in line for line in page)


def test_apply_and_undo(tmp_path):
    host = v2(tmp_path, v2_files(limit=100))
    where, folder = place(host), tmp_path / "state"
    applied = apply(where, 2, CHANGES, folder)
    assert (where.path / "memory.max").read_text() == str(200 * MIB)
    assert applied == read_applied(where, folder)
    back, left = undo(where, folder)
    assert (len(back), left) == (2, [])
    assert (where.path / "memory.max").read_text() == str(100 * MIB)
    assert (where.path / "memory.high").read_text() == "max"
    with pytest.raises(UsageProblem):
        undo(where, folder)


def test_a_second_apply_remembers_the_first_old_values(tmp_path):
    where, folder = place(v2(tmp_path, v2_files(limit=100))), tmp_path / "state"
    apply(where, 2, CHANGES[:1], folder)
    apply(where, 2, (replace(CHANGES[1]), replace(CHANGES[0], old_bytes=200 * MIB, new_bytes=300 * MIB)), folder)
    undo(where, folder)
    assert (where.path / "memory.max").read_text() == str(100 * MIB)


def test_what_somebody_else_changed_is_left(tmp_path):
    where, folder = place(v2(tmp_path, v2_files(limit=100))), tmp_path / "state"
    apply(where, 2, CHANGES, folder)
    (where.path / "memory.max").write_text("12345678")
    back, left = undo(where, folder)
    assert [setting.file for setting in left] == ["memory.max"]
    assert [setting.file for setting in back] == ["memory.high"]
    assert (where.path / "memory.max").read_text() == "12345678"


def test_a_refused_file_changes_nothing(tmp_path):
    where, folder = place(v2(tmp_path, v2_files(limit=100))), tmp_path / "state"
    (where.path / "memory.high").unlink()
    (where.path / "memory.high").mkdir()
    with pytest.raises((RtdebugError, OSError)):
        apply(where, 2, CHANGES, folder)
    assert (where.path / "memory.max").read_text().strip() == str(100 * MIB)
    assert read_applied(where, folder) is None


def test_a_state_that_makes_no_sense_is_none(tmp_path):
    where, folder = place(v2(tmp_path, v2_files(limit=100))), tmp_path / "state"
    apply(where, 2, CHANGES, folder)
    (state,) = folder.glob("*.json")
    good = state.read_text()
    for text in ("", "{", '{"settings": 3}', good.replace("memory.high", "memory.x/../../../passwd")):
        state.write_text(text)
        assert read_applied(where, folder) is None
    state.write_text(good)
    anew = where.path.rename(where.path.with_name("old"))
    where.path.mkdir()
    assert anew.exists()
    assert read_applied(where, folder) is None, "another cgroup of the same path"


def test_only_one_at_a_time(tmp_path):
    where = place(v2(tmp_path))
    first, second = only_one(where, tmp_path / "state"), only_one(where, tmp_path / "state")
    with first, pytest.raises(RtdebugError, match="another rtdebug"), second:
        pass
    with only_one(where, tmp_path / "state"):
        pass


def test_v1_is_written_in_an_order_the_kernel_takes(tmp_path):
    host = make_host(tmp_path, 1)
    host.add_cgroup("/web", **v1_files(limit=100, memsw=150, kills=1))
    facts = facts_of(host, "/web")
    raised = propose(facts, demand())
    assert changed(raised) == {"max": 152, "memsw": 202}
    lines = lines_to_apply(place(host, "/web"), 1, raised.changes)["cgroup"]
    assert ["memsw" in line for line in lines] == [True, False]


@pytest.mark.parametrize(
    ("fields", "tool", "line"),
    [
        ({"runtime": "docker", "name": "a b"}, "docker", "docker update --memory 209715200 'a b'"),
        ({"runtime": "runc", "runc_root": "/run/x"}, "runc", "runc --root /run/x update --memory 209715200 c0ffee"),
        ({"runtime": "containerd", "pod": "api"}, "kubernetes", "    memory: 200Mi"),
    ],
)
def test_lines_to_copy(tmp_path, fields, tool, line):
    host = v2(tmp_path)
    container = replace(place(host).container, **fields)
    lines = lines_to_apply(Place(container, host.hierarchy, "/pods/web"), 2, CHANGES[:1])
    assert lines[tool][-1] == line
    assert lines["cgroup"] == [f"echo 209715200 > {host.hierarchy.path('/pods/web')}/memory.max"]


def test_the_root_cgroup_has_no_limits(tmp_path):
    host = v2(tmp_path)
    with pytest.raises(UsageProblem, match="root cgroup"):
        place_of(Container("x", None, None, 1, "running", "/"), host.hierarchy)
    with pytest.raises(NotRunning):
        place_of(Container("x", None, None, None, "stopped", None), host.hierarchy)


def test_a_cgroup_that_vanishes(tmp_path):
    hierarchy = MemoryHierarchy(2, tmp_path)
    with pytest.raises(NotRunning):
        read_facts(Place(Container("x", None, None, None, "running", "/gone"), hierarchy, "/gone"), Path("/nowhere"))
