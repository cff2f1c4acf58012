"""One kill from several sources: which of them says what, and what stays unknown."""

from dataclasses import replace

import pytest

from rtdebug.containers.model import Container
from rtdebug.oom.history import MemorySample, StatReading
from rtdebug.oom.kernel_log import read_oom_log
from rtdebug.oom.kill import MemcgLevel, OomKill
from rtdebug.oom.limit import level_at_limit
from rtdebug.oom.report import Surroundings, build_report

MIB = 1 << 20
PATH = "/pods/pod7/web"
LEVELS = (
    MemcgLevel(40, PATH, 60 * MIB, 512 * MIB, 0),
    MemcgLevel(30, "/pods/pod7", 64 * MIB, 64 * MIB, 19),
    MemcgLevel(20, "/pods", 300 * MIB, None, 0),
    MemcgLevel(1, "/", None, None, None),
)
KILL = OomKill(
    time_ns=9_000_000_000,
    pid=4711,
    tid=4711,
    ns_pid=12,
    comm="worker",
    uid=1000,
    total_vm_bytes=200 * MIB,
    anon_rss_bytes=50 * MIB,
    file_rss_bytes=3 * MIB,
    shmem_rss_bytes=0,
    swap_bytes=0,
    page_table_bytes=4096,
    oom_score_adj=0,
    trigger_pid=4700,
    trigger_tid=4703,
    trigger_comm="server",
    memcg_id=40,
    oom_group=False,
    levels=LEVELS,
)
CONTAINER = Container("c0ffee", "web", "docker", 4700, "running", PATH)


def log(text):
    (record,) = read_oom_log(text.splitlines())
    return record


MEMCG_LOG = log(
    f"""server invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0
CPU: 1 PID: 4703 Comm: server Not tainted 6.1.0
memory: usage 65536kB, limit 65536kB, failcnt 23
swap: usage 0kB, limit 0kB, failcnt 0
Memory cgroup stats for /pods/pod7:
anon 60000000
oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/pods/pod7,task_memcg={PATH},\
task=worker,pid=4711,uid=1000
Memory cgroup out of memory: Killed process 4711 (worker) total-vm:204800kB, anon-rss:51200kB,\
 file-rss:3072kB, UID:1000 pgtables:4kB oom_score_adj:0"""
)
GLOBAL_LOG = log(
    f"""oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg={PATH},\
task=worker,pid=4711,uid=1000
Out of memory: Killed process 4711 (worker) total-vm:204800kB, anon-rss:51200kB, file-rss:3072kB"""
)
KILL_LINE_ONLY = log("Memory cgroup out of memory: Killed process 4711 (worker) total-vm:8kB, anon-rss:4kB")


@pytest.mark.parametrize(
    ("kill", "record", "constraint", "oom_memcg", "source", "failcnt"),
    [
        pytest.param(KILL, MEMCG_LOG, "memcg", "/pods/pod7", "kernel_log", 19, id="the log says it"),
        pytest.param(
            replace(KILL, levels=()), MEMCG_LOG, "memcg", "/pods/pod7", "kernel_log", 23, id="only the log says it"
        ),
        pytest.param(
            replace(KILL, constraint="memcg", oom_memcg_id=30),
            None,
            "memcg",
            "/pods/pod7",
            "out_of_memory",
            19,
            id="the probe says it",
        ),
        pytest.param(KILL, None, "memcg", "/pods/pod7", "at_limit", 19, id="inferred from the full level"),
        pytest.param(
            KILL, KILL_LINE_ONLY, "memcg", "/pods/pod7", "at_limit", 19, id="the dump was rate-limited"
        ),
        pytest.param(KILL, GLOBAL_LOG, "global", None, None, None, id="global, though a level is full"),
        pytest.param(
            replace(KILL, constraint="global"), None, "global", None, None, None, id="the probe says global"
        ),
        pytest.param(
            replace(KILL, levels=LEVELS[2:]), None, None, None, None, None, id="nothing says it: unknown"
        ),
        pytest.param(
            replace(KILL, constraint="memcg", oom_memcg_id=77),
            None,
            "memcg",
            None,
            "out_of_memory",
            None,
            id="a cgroup that is not on the path",
        ),
    ],
)
def test_which_limit_was_hit(kill, record, constraint, oom_memcg, source, failcnt):
    report = build_report(kill, record)
    assert (report.constraint, report.oom_memcg, report.limit_source) == (constraint, oom_memcg, source)
    assert report.failcnt == failcnt
    if oom_memcg:
        assert report.limit_bytes == 64 * MIB
        assert report.usage_bytes == 64 * MIB
        assert report.limit_kind == "memory"
    else:
        assert report.limit_bytes is None


@pytest.mark.parametrize(
    ("rooms", "index"),
    [
        pytest.param([(60, 64), (64, 64)], 1, id="the full one"),
        pytest.param([(64, 64), (64, 64)], 0, id="the innermost of two"),
        pytest.param([(70, 64), (64, 64)], 0, id="the limit was lowered below the usage"),
        pytest.param([(60, 64), (100, 128)], None, id="all have room"),
        pytest.param([(64, None), (None, 64)], None, id="no limit, no usage"),
        pytest.param([(1023, 1024), (5, 64)], 0, id="within the charge batch"),
        pytest.param([], None, id="no levels"),
    ],
)
def test_level_at_limit(rooms, index):
    levels = [
        MemcgLevel(number, f"/{number}", usage and usage * MIB, limit and limit * MIB, 0)
        for number, (usage, limit) in enumerate(rooms)
    ]
    assert level_at_limit(levels) == (None if index is None else levels[index])


def test_memory_plus_swap_limit_is_reported_as_such():
    record = log(
        "memory: usage 65448kB, limit 65536kB, failcnt 3\n"
        "memory+swap: usage 98304kB, limit 98304kB, failcnt 7\n"
        "Task in /a killed as a result of limit of /a\n"
        "Killed process 4711 (worker) total-vm:8kB, anon-rss:4kB"
    )
    report = build_report(KILL, record)
    assert (report.limit_kind, report.limit_bytes, report.failcnt) == ("memory+swap", 96 * MIB, 7)


def test_victim_from_the_event_then_from_the_log():
    blind = OomKill(time_ns=9, pid=4711, tid=4711)
    report = build_report(blind, MEMCG_LOG)
    assert (report.comm, report.uid, report.anon_rss_bytes, report.page_table_bytes) == (
        "worker",
        1000,
        50 * MIB,
        4096,
    )
    assert report.cgroup == PATH
    assert (report.trigger_pid, report.trigger_tid, report.trigger_comm) == (None, 4703, "server")
    assert report.gfp_mask == "0xcc0(GFP_KERNEL)"
    alone = build_report(blind)
    assert (
        alone.comm is alone.anon_rss_bytes is alone.swap_bytes is alone.constraint is alone.oom_group is None
    )
    assert alone.history == ()


def test_a_thread_in_the_log_is_its_process_in_the_event():
    record = log("Memory cgroup out of memory: Killed process 4719 (worker) total-vm:8kB, anon-rss:4kB")
    report = build_report(OomKill(time_ns=9, pid=4711, tid=4719), record)
    assert report.anon_rss_bytes == 4096


@pytest.mark.parametrize(
    ("container", "kill", "init", "nested", "owner"),
    [
        pytest.param(CONTAINER, KILL, False, False, "above", id="worker; pod limit"),
        pytest.param(replace(CONTAINER, pid=4711), KILL, True, False, "above", id="init"),
        pytest.param(
            replace(CONTAINER, cgroup="/pods/pod7"), KILL, False, True, "container", id="nested victim"
        ),
        pytest.param(replace(CONTAINER, cgroup="/pods"), KILL, False, True, "below", id="nested limit"),
        pytest.param(
            replace(CONTAINER, cgroup="/pods/pod"), KILL, False, False, "elsewhere", id="a prefix only"
        ),
        pytest.param(
            replace(CONTAINER, pid=None), replace(KILL, ns_pid=1), True, False, "above", id="pid 1 inside"
        ),
        pytest.param(None, replace(KILL, ns_pid=None), None, None, None, id="no container"),
    ],
)
def test_victim_and_limit_within_the_container(container, kill, init, nested, owner):
    report = build_report(kill, MEMCG_LOG, Surroundings(container, PATH))
    assert (report.victim_is_init, report.nested_cgroup, report.limit_owner) == (init, nested, owner)


def test_memory_stat_from_the_best_source():
    after = StatReading({"anon": 1}, KILL.time_ns + 2_000_000, PATH)
    before = StatReading({"anon": 2}, KILL.time_ns - 700_000_000, PATH)
    around = Surroundings(stat_after=after, last_stat=before)
    report = build_report(KILL, MEMCG_LOG, around)
    assert (report.memory_stat, report.stat_source, report.stat_cgroup) == (
        {"anon": 60000000},
        "kernel_log",
        "/pods/pod7",
    )
    assert report.stat_age_ns == 0
    report = build_report(KILL, KILL_LINE_ONLY, around)
    assert (report.memory_stat, report.stat_source, report.stat_age_ns) == (
        {"anon": 1},
        "cgroup_files",
        2_000_000,
    )
    report = build_report(KILL, None, replace(around, stat_after=None))
    assert (report.memory_stat, report.stat_source, report.stat_age_ns) == (
        {"anon": 2},
        "last_sample",
        700_000_000,
    )
    report = build_report(KILL)
    assert report.memory_stat is report.stat_source is report.stat_age_ns is None


def test_old_v1_trees_are_added_up():
    record = log(
        "Task in /a/b killed as a result of limit of /a\nMemory cgroup stats for /a: cache:8KB rss:4KB\n"
        "Memory cgroup stats for /a/b: cache:0KB rss:60KB swap:12KB\n"
        "Killed process 4711 (w) total-vm:8kB, anon-rss:4kB"
    )
    assert build_report(KILL, record).memory_stat == {"cache": 8192, "rss": 65536, "swap": 12288}


def test_group():
    text = "Tasks in /pods/pod7/web are going to be killed due to memory.oom.group set"
    record = log(f"{KILL_LINE_TEXT}\n{text}")
    assert build_report(KILL, record).oom_group is True
    assert build_report(replace(KILL, oom_group=True), KILL_LINE_ONLY).oom_group is False
    assert build_report(replace(KILL, oom_group=True)).oom_group is True
    assert build_report(replace(KILL, oom_group=None)).oom_group is None


KILL_LINE_TEXT = "Memory cgroup out of memory: Killed process 4711 (worker) total-vm:8kB, anon-rss:4kB"


def test_line_for_every_renderer():
    import json

    history = (MemorySample(KILL.time_ns - 5, 17, None, None, None, None),)
    line = build_report(KILL, MEMCG_LOG, Surroundings(CONTAINER, PATH, history=history)).to_line(10**18)
    assert (line.event, line.pid, line.ns_pid, line.comm) == ("oom_kill", 4711, 12, "worker")
    assert line.time_ns == 10**18 + KILL.time_ns
    assert (line.container_id, line.container_name, line.runtime, line.cgroup) == (
        "c0ffee",
        "web",
        "docker",
        PATH,
    )
    fields = json.loads(json.dumps(dict(line.fields)))
    assert fields["history"] == [{"age_ns": 5, "usage_bytes": 17}]
    assert fields["memcg_levels"][1] == {
        "memcg_id": 30,
        "cgroup": "/pods/pod7",
        "usage_bytes": 64 * MIB,
        "limit_bytes": 64 * MIB,
        "failcnt": 19,
    }
    assert fields["memcg_levels"][3]["usage_bytes"] is None
    assert {
        "trigger_pid", "trigger_tid", "trigger_comm", "constraint", "oom_memcg", "limit_bytes", "usage_bytes",
        "failcnt", "anon_rss_bytes", "file_rss_bytes", "shmem_rss_bytes", "swap_bytes", "page_table_bytes",
        "total_vm_bytes", "oom_score_adj", "uid", "cmdline", "memory_stat", "memcg_levels", "oom_group",
        "victim_is_init", "nested_cgroup", "limit_source", "stat_source", "history", "gfp_mask", "order",
    } <= fields.keys()  # fmt: skip
    assert not {"pid", "comm", "container", "cgroup"} & fields.keys()


EVENT = {
    "time_ns": 5, "pid": 4711, "tid": 4712, "ns_pid": 12, "comm": "worker", "memcg_id": 40, "oom_memcg_id": 0,
    "total_vm_pages": 100, "trigger_pid": 4700, "trigger_tid": 4703, "uid": 0, "order": -1, "anon_pages": 7,
    "file_pages": 0, "shmem_pages": 0, "swap_pages": 0, "page_table_bytes": 4096, "gfp_mask": 0,
    "oom_score_adj": -5, "constraint": 0xFFFF, "levels": 2, "oom_group": 0, "trigger_comm": "server",
    "memcg": [
        {"memcg_id": 40, "usage_pages": 9, "limit_pages": 16, "failcnt": 3},
        {"memcg_id": 1, "usage_pages": 0, "limit_pages": 0x7FFFFFFFFFFFFFFF // 4096, "failcnt": 0},
        {"memcg_id": 0, "usage_pages": 0, "limit_pages": 0, "failcnt": 0},
    ],
}  # fmt: skip


def test_kill_from_the_ring():
    kill = OomKill.from_event(EVENT, 4096, {40: "/a", 1: "/"})
    assert (kill.anon_rss_bytes, kill.file_rss_bytes, kill.oom_score_adj, kill.uid) == (7 * 4096, 0, -5, 0)
    assert kill.levels == (MemcgLevel(40, "/a", 9 * 4096, 16 * 4096, 3), MemcgLevel(1, "/", None, None, None))
    assert kill.constraint is kill.order is kill.gfp_mask is kill.oom_memcg_id is None
    assert kill.oom_group is False


def test_kill_by_a_probe_and_with_large_pages():
    kill = OomKill.from_event(
        {**EVENT, "constraint": 3, "order": 0, "gfp_mask": 0xCC0, "oom_memcg_id": 40}, 65536, {}
    )
    assert (kill.constraint, kill.order, kill.gfp_mask, kill.oom_memcg_id) == ("memcg", 0, "0xcc0", 40)
    assert kill.anon_rss_bytes == 7 * 65536


def test_a_task_that_could_not_be_read_is_unknown():
    nothing = dict.fromkeys(
        ("total_vm_pages", "anon_pages", "page_table_bytes", "levels", "ns_pid", "oom_score_adj"), 0
    )
    kill = OomKill.from_event({**EVENT, **nothing, "comm": ""}, 4096, {})
    assert (
        kill.comm
        is kill.anon_rss_bytes
        is kill.uid
        is kill.page_table_bytes
        is kill.ns_pid
        is kill.oom_group
        is None
    )
    assert kill.levels == ()
