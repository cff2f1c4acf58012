"""Every kernel log of the real cases, against what each of them is known to say.

Keys that belong to other parts (names of containers from paths, diagnoses) are left to those; a key that
neither this table nor that list knows fails the test, so that nothing is skipped by accident.
"""

import os
import re
from pathlib import Path

import pytest

from rtdebug.oom.kernel_log import read_oom_log

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[2]
CASES = Path(os.environ.get("RTDEBUG_CASES", ROOT.parent / "shared" / "cases"))
KIB = 1024

COUNTER_KEYS = {"usage_kb": "usage_bytes", "limit_kb": "limit_bytes", "failcnt": "failcnt"}
VICTIM_KEYS = {
    "pid": ("pid", 1),
    "comm": ("comm", 1),
    "uid": ("uid", 1),
    "total_vm_kb": ("total_vm_bytes", KIB),
    "anon_rss_kb": ("anon_rss_bytes", KIB),
    "file_rss_kb": ("file_rss_bytes", KIB),
    "shmem_rss_kb": ("shmem_rss_bytes", KIB),
    "pgtables_kb": ("page_table_bytes", KIB),
    "oom_score_adj": ("oom_score_adj", 1),
}
OTHER_PARTS = {
    # which container a path names: rtdebug.containers
    *("pod_uid", "qos", "runtime", "lxc_id", "rootless", "owner_uid", "service", "unit"),
    *("outer_container_id", "container_id_of_victim", "limit_level"),
    # conclusions from a record: the analysis of logs
    *("dominant", "diagnosis", "culprit_container_id", "suppressed_dumps"),
}


def kernel_cases():
    if not CASES.is_dir():
        return []
    found = []
    for path in sorted(CASES.glob("*.yaml")):
        case = yaml.safe_load(path.read_text())
        if "kernel_oom_events" in (case.get("expected") or {}):
            found.append(pytest.param(case, id=path.stem))
    return found


def records_of(case):
    (log,) = (CASES / name for name in case["files"])
    with log.open(encoding="utf-8", errors="surrogateescape") as lines:
        return read_oom_log(lines)


def check_counter(counter, expected):
    expected = dict(expected)
    if expected.pop("unlimited", False):
        expected.pop("limit_kb", None)  # the largest number of that kernel: not a limit
        assert counter.unlimited
    for key, value in expected.items():
        factor = KIB if key.endswith("_kb") else 1
        assert getattr(counter, COUNTER_KEYS[key]) == value * factor, key


def check_victim(victim, expected):
    for key, value in expected.items():
        name, factor = VICTIM_KEYS[key]
        assert getattr(victim, name) == (value if factor == 1 or value is None else value * factor), key


def check_killed(record, expected):
    assert [victim.pid for victim in record.victims] == [each["pid"] for each in expected]
    for victim, each in zip(record.victims, expected, strict=True):
        if each["uid"] is None and record.chosen and record.chosen.uid == victim.uid:
            each = {**each, "uid": victim.uid}  # not in the kill line, but in the summary above it
        check_victim(victim, each)


def check_trigger(record, expected):
    if expected is None:
        assert record.trigger is None
        return
    names = {"pid": "tid", "oom_adj": None}
    for key, value in expected.items():
        if name := names.get(key, key):
            assert getattr(record.trigger, name) == value, key


def check_scope(record, expected):
    assert record.constraint == (expected.split()[0] if expected else None)


def check_constraint_text(record, expected):
    names = {"CONSTRAINT_NONE": "global", "CONSTRAINT_MEMORY_POLICY": "mempolicy"}
    assert record.constraint == names.get(expected, expected.removeprefix("CONSTRAINT_").lower())


def check_attributes(thing, expected):
    for key, value in expected.items():
        assert getattr(thing, key) == value, key


def check_tasks(record, expected):
    for row in expected:
        check_attributes(record.task(row["pid"]), row)


def check_missing(record, expected):
    words = {
        "trigger": ["trigger"],
        "limit": ["usage and limit"],
        "cgroup": ["cgroup"],
        "usage/limit": ["usage and limit"],
        "usage/limit lines": ["usage and limit"],
        "memory: usage line": ["usage and limit"],
        "Killed process line": ["kill line"],
        "trigger line": ["trigger"],
        "trigger line (only the CPU: line)": ["trigger"],
    }
    for item in expected:
        assert set(words[item]) <= set(record.missing), item


def check_container_id(record, expected):
    """Paths come out whole: the innermost 64-hex id of the victim's path (else of the limit's)."""
    path = record.task_memcg or record.oom_memcg or ""
    ids = re.findall(r"[0-9a-f]{64}", path)
    if record.constraint in (None, "global") and expected is None:
        return
    assert (ids[-1] if ids else None) == expected


def check_cpuset_container(record, expected):
    assert expected in record.cpuset or record.cpuset == expected


def check_limit(record, expected):
    if expected is None:
        assert record.memory is None
    else:
        check_counter(record.memory, {"limit_kb": expected})


def check_usage(record, expected):
    if expected is None:
        assert record.memory is None
    else:
        check_counter(record.memory, {"usage_kb": expected})


def check_stats_kb(record, expected):
    assert {key: value * KIB for key, value in expected.items()}.items() <= record.memory_stat.items()


CHECKS = {
    "complete": lambda record, value: record.complete == value,
    "scope": check_scope,
    "constraint_text": check_constraint_text,
    "global_oom": lambda record, value: (record.constraint != "memcg") == value,
    "oom_memcg": lambda record, value: record.oom_memcg == value,
    "task_memcg": lambda record, value: record.task_memcg == value,
    "container_id": check_container_id,
    "cpuset_container_id": check_cpuset_container,
    "mems_allowed": lambda record, value: record.mems_allowed == value,
    "nodemask": lambda record, value: record.nodemask == value,
    "trigger": check_trigger,
    "usage_kb": check_usage,
    "limit_kb": check_limit,
    "failcnt": lambda record, value: record.memory.failcnt == value,
    "memsw": lambda record, value: check_counter(record.memory_swap, value),
    "kmem": lambda record, value: check_counter(record.kmem, value),
    "swap": lambda record, value: check_counter(record.swap, value),
    "binding_limit": lambda record, value: record.limiting_counter == value,
    "stats_kb": check_stats_kb,
    "stats_bytes": lambda record, value: value.items() <= record.memory_stat.items(),
    "selected": lambda record, value: check_attributes(record.selected, value),
    "killed": check_killed,
    "kill_lines": lambda record, value: record.kill_lines == value,
    "primary_victim": lambda record, value: record.victims[0].pid == value,
    "victim_from_summary": lambda record, value: check_attributes(record.chosen, value),
    "group_kill": lambda record, value: (record.group_memcg is not None) == value,
    "skipped_already_exiting": lambda record, value: list(record.skipped_pids) == value,
    "no_killable_process": lambda record, value: record.no_killable_process == value,
    "reaped": lambda record, value: [reaped.pid for reaped in record.reaped] == value,
    "reaped_comms": lambda record, value: [reaped.comm for reaped in record.reaped] == value,
    "tasks": check_tasks,
    "tasks_sample": check_tasks,
    "task_rows": lambda record, value: len(record.tasks) == value,
    "page_size_kb": lambda record, value: record.page_size_bytes == value * KIB,
    "swap_total_kb": lambda record, value: record.host.swap_total_bytes == value * KIB,
    "swap_free_kb": lambda record, value: record.host.swap_free_bytes == value * KIB,
    "pages_ram": lambda record, value: record.host.ram_pages == value,
    "free_pages": lambda record, value: record.host.free_pages == value,
    "host_free_pages": lambda record, value: record.host.free_pages == value,
    "missing": check_missing,
}


@pytest.mark.skipif(not CASES.is_dir(), reason="the folder of real cases is not here (RTDEBUG_CASES)")
@pytest.mark.parametrize("case", kernel_cases())
def test_case(case):
    expected = case["expected"]
    records = records_of(case)
    assert len(records) == expected["kernel_oom_events"]
    if "unique_killed" in expected:
        pids = {victim.pid for record in records for victim in record.victims}
        pids |= {record.chosen.pid for record in records if record.chosen and not record.victims}
        assert len(pids) == expected["unique_killed"]
    for record, event in zip(records, expected["events"], strict=True):
        for key, value in event.items():
            if key in OTHER_PARTS:
                continue
            outcome = CHECKS[key](record, value)
            assert outcome is None or outcome, f"{key}: expected {value}"


def case_records(number):
    (path,) = CASES.glob(f"{number}-*.yaml")
    return records_of(yaml.safe_load(path.read_text()))


@pytest.mark.skipif(not CASES.is_dir(), reason="the folder of real cases is not here (RTDEBUG_CASES)")
def test_derived_figures():
    (record,) = case_records("001")
    assert record.swap_bytes(record.victims[0]) == 33297304 * KIB
    (record,) = case_records("026")
    assert record.swap_bytes(record.victims[0]) == 6144 * KIB
    (record,) = case_records("029")
    assert record.memory.headroom_bytes == 16 * KIB
    first, second = case_records("012")
    assert first.suppressed_dumps == 70
    assert second.suppressed_dumps is None
    assert first.slab_failed_memcgs == ("38f48ca368bb249b76fc7bb56f6f2028c62ed6ec57f1e930af6017cf10d179fd",)
