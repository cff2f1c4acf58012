"""The block of an OOM kill: what it says, and that nothing from a container breaks it."""

from dataclasses import replace

import pytest

from rtdebug.render.escape import display_width
from rtdebug.render.oom import render_oom, sparkline
from rtdebug.tracing.line import EventLine

MIB = 1 << 20
FIELDS = {
    "constraint": "memcg",
    "oom_memcg": "/pods/pod7",
    "limit_kind": "memory",
    "limit_bytes": 64 * MIB,
    "usage_bytes": 64 * MIB,
    "failcnt": 23,
    "limit_source": "kernel_log",
    "limit_owner": "above",
    "anon_rss_bytes": 48 * MIB,
    "file_rss_bytes": 12 * MIB,
    "shmem_rss_bytes": 0,
    "swap_bytes": None,
    "page_table_bytes": 4096,
    "total_vm_bytes": 200 * MIB,
    "oom_score_adj": -5,
    "uid": 1000,
    "cmdline": "worker --all",
    "victim_is_init": False,
    "nested_cgroup": False,
    "oom_group": False,
    "trigger_pid": 4700,
    "trigger_tid": 4703,
    "trigger_comm": "server",
    "gfp_mask": "0xcc0(GFP_KERNEL)",
    "order": 3,
    "memcg_levels": [
        {
            "memcg_id": 40,
            "cgroup": "/pods/pod7/web",
            "usage_bytes": 60 * MIB,
            "limit_bytes": 512 * MIB,
            "failcnt": 0,
        },
        {
            "memcg_id": 30,
            "cgroup": "/pods/pod7",
            "usage_bytes": 64 * MIB,
            "limit_bytes": 64 * MIB,
            "failcnt": 23,
        },
        {"memcg_id": 20, "cgroup": "/pods", "usage_bytes": 300 * MIB, "limit_bytes": None, "failcnt": 0},
        {"memcg_id": 1, "cgroup": "/", "usage_bytes": None, "limit_bytes": None, "failcnt": None},
    ],
    "memory_stat": {"anon": 55 * MIB, "file": 0, "sock": 0, "pgfault": 7001},
    "stat_cgroup": "/pods/pod7",
    "stat_source": "cgroup_files",
    "stat_age_ns": 2_000_000,
    "history": [{"age_ns": (9 - n) * 10**9, "usage_bytes": n * MIB} for n in range(10)],
}
LINE = EventLine(
    10**18, "oom_kill", "c0ffee" * 10, "web", "docker", "/pods/pod7/web", 4711, 12, 4711, "worker", FIELDS
)


def rows(line, width=80):
    return render_oom(line, width).split("\n")


def with_fields(**fields):
    return replace(LINE, fields={**FIELDS, **fields})


def test_says_who_where_by_what_and_holding_what():
    text = render_oom(LINE)
    for part in [
        "victim      worker (pid 4711, 12 inside), uid 1000, oom_score_adj -5",
        "command     worker --all",
        "container   web (docker c0ffeec0ffee), a worker, not its init process",
        "memory of /pods/pod7, 64 MiB of 64 MiB, hit 23 times, above",
        "anon       48 MiB   80%  ███████████████████▎",
        "file       12 MiB   20%",
        "swap            -",
        "triggered   by server (pid 4700, thread 4703), asking for 8 pages",
        "anon 55 MiB, file 0 B (the cgroup's files, 2.0 ms after the kill,",
        "0 B to 9 MiB in 9.0 s",
        "The limit of 64 MiB of /pods/pod7 was reached. worker held 60 MiB of RSS, 80%",
    ]:
        assert part in text


def test_the_tree_marks_the_limit_that_was_hit_and_no_other():
    tree = [row for row in rows(LINE) if "└" in row or row.startswith("  cgroups")]
    assert [("<- limit hit" in row) for row in tree] == [False, False, True, False]
    assert tree[0].split() == ["cgroups", "/", "-"]
    assert "pod7" in tree[2]
    assert "64 MiB of 64 MiB" in tree[2]
    assert "300 MiB, no limit" in tree[1]


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"constraint": "global", "oom_memcg": None}, "the host itself was out of memory"),
        ({"constraint": "cpuset"}, "the memory nodes that the cpuset allows were full"),
        ({"constraint": "mempolicy"}, "memory policy"),
        ({"constraint": None, "limit_bytes": None, "oom_memcg": None, "limit_source": None}, "is not known"),
        ({"limit_kind": "memory+swap"}, "The memory+swap limit of 64 MiB"),
        ({"oom_group": True}, "killed with its whole group"),
        ({"victim_is_init": True}, "its init process"),
        ({"trigger_pid": 4711, "trigger_tid": 4711}, "by the victim itself, asking"),
        ({"nested_cgroup": True}, "in a cgroup below the container's"),
        ({"limit_source": "at_limit"}, "inferred"),
        ({"swap_bytes": 60 * MIB}, "and 60 MiB of swap"),
        (dict.fromkeys(FIELDS), "What worker held is not known"),
        ({"memory_stat": {"rss": 1, "total_rss": 5 * MIB, "cache": 0}}, "rss 5 MiB, cache 0 B"),
    ],
)
def test_kinds_of_kills_are_told_apart(fields, part):
    text = " ".join(render_oom(with_fields(**fields)).split())
    assert part in text


@pytest.mark.parametrize(
    ("usages", "words"),
    [
        ([2, 60, 139], ["2 MiB to 139 MiB in 2.0 s, the last 900.0 ms before the kill"]),
        ([2, 1, 9, 5], ["2 MiB to 5 MiB in 3.0 s, the last 900.0 ms before the kill", "between 1 MiB and 9 MiB"]),
    ],
    ids=["up", "up and down"],
)
def test_the_history_says_when_its_last_sample_was(usages, words):
    last = len(usages) - 1
    history = [{"age_ns": (last - n) * 10**9 + 9 * 10**8, "usage_bytes": u * MIB} for n, u in enumerate(usages)]
    drawn = [row.strip() for row in rows(with_fields(history=history))]
    start = next(n for n, row in enumerate(drawn) if row.startswith("history"))
    assert drawn[start + 1 : start + 1 + len(words)] == words
    assert not drawn[start + 1 + len(words)].startswith("between")


HOSTILE = [
    "\x1b[2J\x1b]0;x\x07",
    "a\nOOM kill at 00:00",
    "‮evil",
    "宽" * 300,
    "\udcff\udcfe",
    "x" * 5000,
    " " * 99,
    "",
    "%s{}",
]


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("width", [40, 80, 200])
def test_hostile_text_stays_within_its_rows(text, width):
    level = {"cgroup": f"/{text}/{text}", "usage_bytes": 1, "limit_bytes": 1}
    line = EventLine(
        0, "oom_kill", text, text, text, f"/{text}", 1, 1, 1, text,
        {key: text if isinstance(value, str) else value for key, value in FIELDS.items()}
        | {"memcg_levels": [level] * 11, "trigger_cgroup": text, "memory_stat": {text: 1, "anon": 5}},
    )  # fmt: skip
    drawn = rows(line, width)
    assert all(row.isprintable() for row in drawn)
    assert max(display_width(row) for row in drawn) <= width
    assert sum(row.startswith("OOM kill at") for row in drawn) == 1


@pytest.mark.parametrize("value", [None, "x", 1.5, [], {}, [None, 7, {"cgroup": 5}], {"anon": "x"}, -1, True])
def test_fields_of_another_type_are_unknown_not_a_crash(value):
    for key in FIELDS:
        render_oom(with_fields(**{key: value}))


@pytest.mark.parametrize(
    ("values", "width", "expected"),
    [
        ([0, 1, 2, 3, 4, 5, 6, 7, 8], 9, "▁▂▃▄▅▆▇██"),
        ([0, 0], 5, "▁▁"),
        ([5, 5, 5], 3, "███"),
        ([1, 100, 1, 1], 2, "█▁"),
    ],
)
def test_sparkline(values, width, expected):
    assert sparkline(values, width) == expected
