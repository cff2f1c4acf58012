"""Every kernel log of the real cases through `rtdebug oom FILE -o json`: every value that is expected of it.

A key that this table does not know fails the test, so that nothing is skipped by accident. Sentences of a diagnosis
are compared with the verdict's kind.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rtdebug.oom.sources import read_userspace_kills

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[2]
CASES = Path(os.environ.get("RTDEBUG_CASES", ROOT.parent / "shared" / "cases"))
KIB = 1024
pytestmark = pytest.mark.skipif(not CASES.is_dir(), reason="the folder of real cases is not here (RTDEBUG_CASES)")

KILLED = {
    "pid": "pid",
    "comm": "comm",
    "total_vm_kb": "total_vm_bytes",
    "anon_rss_kb": "anon_rss_bytes",
    "file_rss_kb": "file_rss_bytes",
    "shmem_rss_kb": "shmem_rss_bytes",
    "pgtables_kb": "pgtables_bytes",
    "oom_score_adj": "oom_score_adj",
}
SCOPES = {"CONSTRAINT_NONE": "global", "CONSTRAINT_CPUSET": "cpuset", "CONSTRAINT_MEMORY_POLICY": "mempolicy"}
LEVELS = {"pod": "pod", "lxc guest, not the docker container": "lxc"}
DOMINANT = {"dirty page cache (file), not process memory": "file"}
VERDICTS = {  # by the number of the case: what its diagnosis comes to
    "006": ["page_cache"],
    "008": ["node_exhausted"],
    "012": ["kernel_memory", "kernel_memory"],
    "013": ["cpuset"],
    "015": ["mempolicy"],
    "017": ["many_processes", "unknown"],
    "020": ["anon_one_process"],
    "023": ["shmem", "shmem"],
    "027": ["shmem"],
    "035": ["unknown"],
    "041": ["anon_one_process"],
    "043": ["node_exhausted"],
}


def kernel_cases():
    found = []
    for path in sorted(CASES.glob("*.yaml")) if CASES.is_dir() else ():
        case = yaml.safe_load(path.read_text())
        if "kernel_oom_events" in (case.get("expected") or {}):
            found.append(pytest.param(path.name[:3], case, id=path.stem))
    return found


@pytest.fixture(scope="module")
def episodes():
    """All of them, by file, in one go."""
    logs = [str(CASES / name) for parameter in kernel_cases() for name in parameter.values[1]["files"]]
    done = subprocess.run(
        [sys.executable, "-m", "rtdebug", "oom", *logs, "-o", "json"], cwd=ROOT, capture_output=True, check=True
    )
    found = {log: [] for log in logs}
    for line in done.stdout.splitlines():
        episode = json.loads(line)
        found[episode["file"]].append(episode)
    return found


def kb(value):
    return None if value is None else value * KIB


def counter(name):
    def check(episode, expected):
        found = episode["counters"][name]
        expected = dict(expected)
        if expected.pop("unlimited", False):
            assert found["unlimited"]
            assert found["limit_bytes"] is None
            expected.pop("limit_kb", None)
        names = {"usage_kb": "usage_bytes", "limit_kb": "limit_bytes"}
        assert {key: found[names.get(key, key)] for key in expected} == {
            key: kb(value) if key in names else value for key, value in expected.items()
        }

    return check


def plain(key, change=lambda value: value):
    def check(episode, expected):
        assert episode[key] == change(expected)

    return check


def check_killed(episode, expected):
    found = episode["killed"]
    assert [killed["pid"] for killed in found] == [each["pid"] for each in expected]
    for killed, each in zip(found, expected, strict=True):
        assert {key: killed[name] for key, name in KILLED.items() if key in each} == {
            key: kb(each[key]) if key.endswith("_kb") else each[key] for key in KILLED if key in each
        }
        if each.get("uid") is not None:  # else: it may stand in the summary line
            assert killed["uid"] == each["uid"]


def check_part(key):
    def check(episode, expected):
        if expected is None:
            assert episode[key] is None
            return
        assert {name: episode[key][name] for name in expected if name != "oom_adj"} == {
            name: value for name, value in expected.items() if name != "oom_adj"
        }

    return check


def check_trigger(episode, expected):
    check_part("trigger")(episode, expected)


def check_tasks(episode, expected):
    rows = {row["pid"]: row for row in episode["tasks"]}
    for each in expected:
        assert {key: rows[each["pid"]][key] for key in each} == each


def check_from_summary(episode, expected):
    (killed,) = episode["killed"]
    assert {key: killed[key] for key in expected} == expected
    assert killed["anon_rss_bytes"] is None


def check_reaped(key):
    return lambda episode, expected: [each[key] for each in episode["reaped"]] == expected or pytest.fail(key)


def host(key, change=lambda value: value):
    def check(episode, expected):
        assert episode["host_memory"][key] == change(expected)

    return check


def check_stats(factor):
    def check(episode, expected):
        assert {key: value * factor for key, value in expected.items()}.items() <= episode["memory_stat"].items()

    return check


CHECKS = {
    "complete": plain("complete"),
    "missing": lambda episode, expected: bool(episode["missing"]) == bool(expected) or pytest.fail("missing"),
    "scope": plain("scope", lambda value: value.split()[0] if value else None),
    "constraint_text": plain("scope", SCOPES.get),
    "global_oom": lambda episode, expected: (episode["scope"] != "memcg") == expected or pytest.fail("scope"),
    **{
        key: plain(key)
        for key in (
            *("oom_memcg", "task_memcg", "container_id", "outer_container_id", "cpuset_container_id", "pod_uid", "qos"),
            *("runtime", "mems_allowed", "nodemask", "failcnt", "binding_limit", "kill_lines", "owner_uid", "unit"),
            *("no_killable_process", "group_kill"),
        )
    },
    "container_id_of_victim": plain("container_id"),
    "lxc_id": plain("lxc_name"),
    "service": plain("unit"),
    "rootless": lambda episode, expected: (episode["owner_uid"] not in (None, 0)) == expected or pytest.fail("uid"),
    "limit_level": plain("limit_level", LEVELS.get),
    "usage_kb": plain("usage_bytes", kb),
    "limit_kb": plain("limit_bytes", kb),
    "memsw": counter("memory+swap"),
    "kmem": counter("kmem"),
    "swap": counter("swap"),
    "stats_kb": check_stats(KIB),
    "stats_bytes": check_stats(1),
    "dominant": plain("dominant_kind", lambda value: DOMINANT.get(value, value)),
    "trigger": check_trigger,
    "selected": check_part("selected"),
    "killed": check_killed,
    "primary_victim": lambda episode, expected: episode["killed"][0]["pid"] == expected or pytest.fail("first"),
    "victim_from_summary": check_from_summary,
    "skipped_already_exiting": plain("skipped_pids"),
    "reaped": check_reaped("pid"),
    "reaped_comms": check_reaped("comm"),
    "tasks": check_tasks,
    "tasks_sample": check_tasks,
    "task_rows": lambda episode, expected: len(episode["tasks"]) == expected or pytest.fail("rows"),
    "page_size_kb": plain("page_size_bytes", kb),
    "swap_total_kb": host("swap_total_bytes", kb),
    "swap_free_kb": host("swap_free_bytes", kb),
    "pages_ram": host("ram_pages"),
    "free_pages": host("free_pages"),
    "host_free_pages": host("free_pages"),
    "diagnosis": lambda episode, expected: None,  # VERDICTS, below
}


@pytest.mark.parametrize(("number", "case"), kernel_cases())
def test_case(number, case, episodes):
    (log,) = (str(CASES / name) for name in case["files"])
    found, expected = episodes[log], case["expected"]
    assert len(found) == expected["kernel_oom_events"]
    for episode, event in zip(found, expected["events"], strict=True):
        for key, value in event.items():
            CHECKS[key](episode, value)
    if "unique_killed" in expected:
        assert len({killed["pid"] for episode in found for killed in episode["killed"]}) == expected["unique_killed"]
    if "culprit_container_id" in expected:
        culprits = {episode["cpuset_container_id"] for episode in found}
        assert culprits == {expected["culprit_container_id"]}
        assert found[0]["slab_failed_memcgs"] == [expected["culprit_container_id"]]
        assert found[0]["suppressed_dumps"] == 70
    if number in VERDICTS:
        assert [episode["verdict"]["kind"] for episode in found] == VERDICTS[number]


def test_derived_figures(episodes):
    by_number = {Path(log).name[:3]: found for log, found in episodes.items()}
    assert by_number["001"][0]["killed"][0]["swap_bytes"] == 33297304 * KIB
    assert by_number["026"][0]["killed"][0]["swap_bytes"] == 6144 * KIB
    assert by_number["029"][0]["headroom_bytes"] == 16 * KIB
    assert by_number["015"][0]["host_memory"]["free_bytes"] == 1378257 * 4 * KIB
    assert by_number["012"][0]["host_memory"]["ram_bytes"] == 33554298 * 4 * KIB
    (page_cache,) = by_number["006"]
    assert round(page_cache["verdict"]["evidence"]["share"] * 100, 1) == 96.7


def test_userspace_kills():
    (case,) = (parameter.values[1] for parameter in kernel_cases() if parameter.values[0] == "039")
    (log,) = (CASES / name for name in case["files"])
    found = list(read_userspace_kills(log))
    for kill, expected in zip(found, case["expected"]["userspace_kills"], strict=True):
        assert {key: getattr(kill, key) for key in expected} == expected
