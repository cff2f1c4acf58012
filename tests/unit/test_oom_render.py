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
        "shmem 0 B, swap -, page tables 4 KiB, mapped 200 MiB",
        "triggered   by server (pid 4700, thread 4703), asking for 8 pages",
        "anon 55 MiB, file 0 B (the cgroup's files, 2.0 ms after the kill,",
        "0 B -> 9 MiB in 9.0 s up to the kill, highest 9 MiB",
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
    ("usages", "age_ns", "words"),
    [
        ([2, 60, 139], 0, "2 MiB -> 139 MiB in 2.0 s up to the kill, highest 139 MiB"),
        ([2, 1, 9, 5], 9 * 10**8, "2 MiB -> 5 MiB in 3.0 s up to 900.0 ms before the kill, highest 9 MiB"),
    ],
    ids=["up to the kill", "up and down, some time before"],
)
def test_the_history_in_words(usages, age_ns, words):
    last = len(usages) - 1
    history = [{"age_ns": (last - n) * 10**9 + age_ns, "usage_bytes": u * MIB} for n, u in enumerate(usages)]
    drawn = [row.strip() for row in rows(with_fields(history=history))]
    start = next(n for n, row in enumerate(drawn) if row.startswith("history"))
    assert " ".join(drawn[start + 1 :]).startswith(f"{words} The limit")


KINDS = dict.fromkeys(("anon_bytes", "shmem_bytes", "file_bytes", "kernel_bytes", "swap_bytes", "other_bytes"))
ID = "5e" * 32
SHM = (
    FIELDS
    | {
        "oom_memcg": f"/kubepods/pod7/{ID}",
        "limit_bytes": 100 * MIB,
        "usage_bytes": 100 * MIB,
        "limit_owner": "container",
        "anon_rss_bytes": 14 * MIB,
        "file_rss_bytes": MIB // 2,
        "usage_by_kind": KINDS
        | {
            "anon_bytes": 15 * MIB,
            "shmem_bytes": 84 * MIB,
            "file_bytes": MIB // 4,
            "kernel_bytes": MIB // 2,
            "other_bytes": MIB // 4,
        },
        "tasks": [
            {"pid": 4700, "comm": "server", "rss_bytes": 60 * MIB, "swap_bytes": 0, "oom_score_adj": -5},
            {"pid": 4711, "comm": "worker", "rss_bytes": 14 * MIB + MIB // 2, "swap_bytes": 0, "oom_score_adj": 300},
        ],
        "siblings": None,
        "memory_stat": {"total_rss": 15 * MIB, "total_cache": 84 * MIB, "total_shmem": 84 * MIB, "total_dirty": 4096},
        "stat_cgroup": f"/kubepods/pod7/{ID}",
        "stat_source": "kernel_log",
        "stat_age_ns": 0,
        "memcg_levels": [
            {"cgroup": f"/kubepods/pod7/{ID}", "usage_bytes": 100 * MIB, "limit_bytes": 100 * MIB, "failcnt": 23},
            {"cgroup": "/kubepods/pod7", "usage_bytes": 101 * MIB, "limit_bytes": None, "failcnt": 0},
            {"cgroup": "/", "usage_bytes": None, "limit_bytes": None, "failcnt": None},
        ],
    }
)
SHM_BLOCK = """\
  victim      worker (pid 4711, 12 inside), uid 1000, oom_score_adj -5
  command     worker --all
  container   5e5e5e5e5e5e (docker), a worker, not its init process
  cgroup      /kubepods/pod7/5e5e5e5e5e5e
  limit       memory of /kubepods/pod7/5e5e5e5e5e5e, 100 MiB of 100 MiB, hit 23
              times, the container's own, said by the kernel log
  cgroups     /                         -
              └ kubepods/pod7     101 MiB, no limit
                └ 5e5e5e5e5e5e    100 MiB of 100 MiB  <- limit hit
  usage       of 100 MiB: 15 MiB anon, 84 MiB shared memory (tmpfs, /dev/shm:
              killing a process frees no file there), 256 KiB page cache,
              512 KiB kernel
  processes   comm     pid       RSS  oom_score_adj
              server  4700    60 MiB             -5
              worker  4711  14.5 MiB            300  <- killed
  victim held anon       14 MiB   97%  ███████████████████████▏
              file      512 KiB    3%  ▉
              shmem 0 B, swap -, page tables 4 KiB, mapped 200 MiB
  triggered   by server (pid 4700, thread 4703), asking for 8 pages,
              0xcc0(GFP_KERNEL)
  memory.stat dirty 4 KiB (the kernel's dump at the kill, of
              /kubepods/pod7/5e5e5e5e5e5e)
  history     ▁▁▂▃▄▅▆▇██
              0 B -> 9 MiB in 9.0 s up to the kill, highest 9 MiB
  The limit of 100 MiB of /kubepods/pod7/5e5e5e5e5e5e was reached. 84% of the
  usage is shared memory. worker held at most 14% of the usage: 14.5 MiB of RSS,
  97% of it anon."""


def test_shared_memory_fills_the_limit():
    line = replace(LINE, container_id=ID, container_name=None, cgroup=f"/kubepods/pod7/{ID}", fields=SHM)
    assert rows(line)[1:] == SHM_BLOCK.split("\n")


def sibling(cgroup, mib, name=None):
    usage = None if mib is None else mib * MIB
    return {"cgroup": cgroup, "usage_bytes": usage, "container_id": name and "c0ffee", "container_name": name}


SIBLINGS = [
    sibling(f"/pods/pod7/{ID}", 44, "database"),
    *(sibling(f"/pods/pod7/side{n}", 2) for n in range(5)),
    sibling("/pods/pod7/web", 1, "web"),
]
SIBLINGS_ROWS = """\
  siblings    database (5e5e5e5e5e5e)                44 MiB
              side0                                   2 MiB
              side1                                   2 MiB
              side2                                   2 MiB
              web                                     1 MiB  <- the victim
              itself, or left by removed cgroups      9 MiB"""


def test_the_neighbour_that_holds_the_memory_is_named():
    drawn = rows(with_fields(siblings=SIBLINGS, anon_rss_bytes=MIB, file_rss_bytes=0))
    start = next(n for n, row in enumerate(drawn) if row.startswith("  siblings"))
    assert "\n".join(drawn[start : start + 6]) == SIBLINGS_ROWS
    text = " ".join(" ".join(drawn).split())
    assert text.endswith(
        "worker held at most 2% of the usage: 1 MiB of RSS, 100% of it anon. "
        "The sibling database (5e5e5e5e5e5e) held 44 MiB, 69%."
    )


def test_the_longest_block_keeps_its_size():
    """Every part at its largest, with names as long as people meet them."""
    level = {"usage_bytes": 9 * MIB + 1, "limit_bytes": 64 * MIB, "failcnt": 7}
    path = "/kubepods.slice/kubepods-burstable.slice/pod7/a/b/c/d/e/f"
    paths = ["/".join(path.split("/")[:depth]) or "/" for depth in range(10, 0, -1)]
    task = {"comm": "a-long-name-xyz", "rss_bytes": 900 * MIB, "swap_bytes": 900 * MIB, "oom_score_adj": 1000}
    fields = SHM | {
        "cmdline": "java " + "-Xmx9g " * 36,
        "oom_memcg": "/kubepods.slice",
        "stat_cgroup": "/kubepods.slice",
        "memcg_levels": [{"cgroup": each, **level} for each in paths],
        "tasks": [{"pid": 4190000 + n, **task} for n in range(20)] + [{"pid": 4711, **task}],
        "siblings": [sibling(f"/kubepods.slice/side{n}", 3) for n in range(9)],
        "swap_bytes": MIB,
        "shmem_rss_bytes": MIB,
    }
    drawn = rows(replace(LINE, cgroup=path, fields=fields))
    assert max(display_width(row) for row in drawn) <= 80
    assert len(drawn) <= 50
    killed = [row for row in drawn if "<- killed" in row]
    assert len(killed) == 1
    assert "4711" in killed[0]
    assert sum("<- limit hit" in row for row in drawn) == 1


@pytest.mark.parametrize(
    ("kinds", "fields", "part"),
    [
        ({"anon_bytes": 60 * MIB, "other_bytes": 0}, {}, "usage of 60 MiB: 60 MiB anon cg"),
        ({"anon_bytes": 99 * MIB, "other_bytes": MIB}, {}, "100 MiB: 99 MiB anon cg"),
        ({"anon_bytes": 9 * MIB, "kernel_bytes": 0, "other_bytes": 2 * MIB}, {}, "9 MiB anon, 2 MiB not accounted cg"),
        ({"anon_bytes": 90 * MIB, "other_bytes": 10 * MIB}, {}, "not accounted (kernel memory is not known) cg"),
        ({"file_bytes": 9 * MIB, "other_bytes": 0}, {}, "9 MiB page cache with shared memory cg"),
        ({"anon_bytes": 9 * MIB}, {}, "usage 9 MiB anon cg"),
        (
            {"kernel_bytes": 9 * MIB, "other_bytes": 0},
            {"limit_kind": "kmem"},
            "100% of the usage is kernel memory. worker held 60 MiB",
        ),
        ({"anon_bytes": MIB, "swap_bytes": 9 * MIB, "other_bytes": 0}, {}, "90% of the usage is swap."),
        (
            {"anon_bytes": MIB, "other_bytes": 0},
            {"stat_source": "cgroup_files"},
            "1 MiB anon (the cgroup's files, 2.0 ms after the kill) cg",
        ),
    ],
)  # fmt: skip
def test_usage_by_kind(kinds, fields, part):
    line = with_fields(**{"stat_source": "kernel_log", "tasks": None, "cmdline": None, **fields})
    line = replace(line, fields={**line.fields, "usage_by_kind": KINDS | kinds})
    text = " ".join(render_oom(line).split()).replace(" victim held", " cg victim held")
    assert part in text


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"anon_rss_bytes": 20 * MIB}, True),
        ({"anon_rss_bytes": 40 * MIB}, False),
        ({"anon_rss_bytes": 20 * MIB, "limit_kind": "memory+swap", "swap_bytes": 40 * MIB}, False),
        ({"anon_rss_bytes": 20 * MIB, "limit_kind": "kmem"}, False),
        ({"anon_rss_bytes": 20 * MIB, "constraint": "global"}, False),
    ],
)
def test_a_victim_that_held_less_than_half(fields, said):
    text = " ".join(render_oom(with_fields(**{"file_rss_bytes": 0, **fields})).split())
    assert ("held at most" in text) is said


def test_one_process_is_no_list():
    assert "processes" not in render_oom(with_fields(tasks=SHM["tasks"][:1]))
    assert "processes" not in render_oom(with_fields(tasks=None))


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
        | {"tasks": [{"comm": text, "pid": 1}] * 9, "siblings": [{"cgroup": text, "container_name": text}] * 9}
        | {"memcg_levels": [level] * 11, "trigger_cgroup": text, "memory_stat": {text: 1, "anon": 5}},
    )  # fmt: skip
    drawn = rows(line, width)
    assert all(row.isprintable() for row in drawn)
    assert max(display_width(row) for row in drawn) <= width
    assert sum(row.startswith("OOM kill at") for row in drawn) == 1


@pytest.mark.parametrize("value", [None, "x", 1.5, [], {}, [None, 7, {"cgroup": 5}], {"anon": "x"}, -1, True])
def test_fields_of_another_type_are_unknown_not_a_crash(value):
    for key in SHM:
        render_oom(with_fields(**{**SHM, "siblings": SIBLINGS, key: value}))
    kinds = dict.fromkeys(KINDS, value)
    render_oom(with_fields(usage_by_kind=kinds, tasks=[kinds, {"pid": value, "comm": value}], siblings=[kinds]))


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
