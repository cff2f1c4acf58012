"""What a limited cgroup's usage is made of, who is in it and beside it: from the log, and from its files."""

from dataclasses import asdict, replace

import pytest

from rtdebug.containers.model import Container
from rtdebug.host.cgroup import MemoryHierarchy
from rtdebug.oom.history import MemorySample, StatReading
from rtdebug.oom.kernel_log import read_oom_log
from rtdebug.oom.kill import MemcgLevel, OomKill
from rtdebug.oom.report import Surroundings, build_report
from rtdebug.oom.siblings import Sibling, read_siblings
from rtdebug.oom.tasks import TASKS_AT_MOST
from rtdebug.oom.usage import UsageByKind, usage_by_kind
from tests.unit.trees import write_files

MIB = 1 << 20
POD, WEB = "/pods/pod7", "/pods/pod7/web"


@pytest.mark.parametrize(
    ("stat", "usage", "kmem", "expected"),
    [
        pytest.param(
            {"anon": 14, "file": 90, "shmem": 85, "kernel": 3, "slab": 2, "sock": 2, "swapcached": 1},
            109,
            None,
            UsageByKind(14, 85, 4, 5, None, 1),
            id="v2",
        ),
        pytest.param(
            {"anon": 14, "file": 5, "shmem": 0, "kernel_stack": 1, "pagetables": 2, "percpu": 3, "slab": 4, "sock": 0},
            29,
            None,
            UsageByKind(14, 0, 5, 10, None, 0),
            id="v2 before 5.18 has no sum of the kernel's",
        ),
        pytest.param(
            {"cache": 1, "rss": 2, "shmem": 1, "total_cache": 90, "total_rss": 14, "total_shmem": 85, "swapcached": 9},
            111,
            2,
            UsageByKind(14, 85, 0, 2, None, 10),
            id="v1: with the cgroups below, kernel memory from its own counter",
        ),
        pytest.param({"cache": 90, "rss": 14}, 104, None, UsageByKind(14, None, 90, None, None, 0), id="old v1"),
        pytest.param(
            {"cache": 90 * MIB, "rss": 14 * MIB, "inactive_file": 3 * MIB, "active_file": 2 * MIB, "unevictable": MIB},
            104 * MIB,
            None,
            UsageByKind(14 * MIB, 84 * MIB, 6 * MIB, None, None, 0),
            id="old v1: the cache is on no list of file pages",
        ),
        pytest.param({"anon": 14, "slab": 2}, None, 3, UsageByKind(14, None, None, 3, None, None), id="usage unknown"),
        pytest.param({"anon": 14, "kernel": 3}, 16, 9, UsageByKind(14, None, None, 3, None, 0), id="batches"),
        pytest.param({"pgfault": 7}, 16, None, UsageByKind(), id="nothing known is not all other"),
    ],
)
def test_usage_by_kind(stat, usage, kmem, expected):
    assert usage_by_kind(stat, usage, kmem) == expected


def levels(web=14 * MIB, pod=100 * MIB, limit=100 * MIB):
    return (
        MemcgLevel(40, WEB, web, None, 0),
        MemcgLevel(30, POD, pod, limit, 3),
        MemcgLevel(1, "/", None, None, None),
    )


KILL = OomKill(time_ns=9_000_000_000, pid=4711, tid=4711, comm="worker", levels=levels())
DUMP = """memory: usage {memory}kB, limit {memory_limit}kB, failcnt 3
{swap}kmem: usage {kmem}kB, limit {kmem_limit}kB, failcnt 0
Memory cgroup stats for /pods/pod7:
cache 89128960
rss 0
total_cache 89128960
total_rss 14680064
total_shmem 88080384
Tasks state (memory values in pages):
[  pid  ]   uid  tgid total_vm      rss rss_anon rss_file rss_shmem pgtables_bytes swapents oom_score_adj name
{tasks}oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/pods/pod7,\
task_memcg=/pods/pod7/web,task=worker,pid=4711,uid=0
Memory cgroup out of memory: Killed process 4711 (worker) total-vm:204800kB, anon-rss:14000kB, file-rss:0kB
"""
UNLIMITED_KB = 9007199254740988


def dump(memory=102400, memory_limit=102400, kmem=512, kmem_limit=UNLIMITED_KB, swap="", tasks=()):
    rows = "".join(
        f"[{pid:>7}]     0 {tgid:>5}    51200 {rss:>8} {rss:>8} 0 0 45056 {swapped:>8} {adj:>13} {comm}\n"
        for pid, tgid, rss, swapped, adj, comm in tasks
    )
    text = DUMP.format(
        memory=memory, memory_limit=memory_limit, kmem=kmem, kmem_limit=kmem_limit, swap=swap, tasks=rows
    )
    (record,) = read_oom_log(text.splitlines())
    return record


def test_usage_of_the_log():
    kinds = build_report(KILL, dump()).usage_by_kind
    assert kinds == UsageByKind(14 * MIB, 84 * MIB, MIB, MIB // 2, None, MIB // 2)


def test_usage_of_memory_and_swap():
    swap = "memory+swap: usage 163840kB, limit 163840kB, failcnt 9\n"
    report = build_report(KILL, dump(swap=swap, memory_limit=204800))
    assert report.limit_kind == "memory+swap"
    assert report.usage_by_kind.swap_bytes == 60 * MIB
    parts = [size for size in asdict(report.usage_by_kind).values() if size is not None]
    assert sum(parts) == report.usage_bytes == 160 * MIB


def test_usage_of_kernel_memory():
    report = build_report(KILL, dump(kmem=8192, kmem_limit=8192, memory_limit=204800))
    assert report.limit_kind == "kmem"
    assert report.usage_by_kind == UsageByKind(kernel_bytes=8 * MIB, other_bytes=0)


def reading(usage, cgroup=POD, seconds=9):
    return StatReading({"anon": usage - MIB, "kernel": MIB}, seconds * 10**9, cgroup, usage)


@pytest.mark.parametrize(
    ("after", "last", "anon", "source"),
    [
        pytest.param(reading(90 * MIB), reading(95 * MIB), 89 * MIB, "cgroup_files", id="right after"),
        pytest.param(reading(60 * MIB), reading(95 * MIB), 94 * MIB, "last_sample", id="given back already"),
        pytest.param(reading(60 * MIB), reading(50 * MIB), None, "cgroup_files", id="neither is of the kill"),
        pytest.param(reading(99 * MIB, WEB), None, None, "cgroup_files", id="not the limited cgroup"),
        pytest.param(None, None, None, None, id="nothing read"),
    ],
)
def test_usage_without_a_dump(after, last, anon, source):
    report = build_report(KILL, None, Surroundings(stat_after=after, last_stat=last))
    assert report.stat_source == source
    assert (report.usage_by_kind.anon_bytes if report.usage_by_kind else None) == anon


def test_the_kinds_of_real_logs_add_up_to_the_usage(cases):
    """Where a real log has both memory.stat and the usage: up to what the kernel counts in batches per CPU."""
    checked = 0
    for path in sorted(cases.glob("*.log")) + sorted(cases.glob("*.txt")):
        with path.open(encoding="utf-8", errors="surrogateescape") as lines:
            records = [record for record in read_oom_log(lines) if record.victims and record.memory_stat]
        for record in records:
            pid = record.victims[0].pid
            report = build_report(OomKill(time_ns=5, pid=pid, tid=pid), record)
            if report.usage_bytes is None or report.usage_by_kind is None:
                continue
            sizes = {name: size or 0 for name, size in asdict(report.usage_by_kind).items()}
            assert abs(sum(sizes.values()) - report.usage_bytes) <= report.usage_bytes / 100, path.name
            assert sizes["other_bytes"] <= report.usage_bytes / 20, path.name
            checked += 1
    assert checked >= 8


def test_no_limit_no_usage():
    assert build_report(replace(KILL, constraint="global", levels=levels(pod=1))).usage_by_kind is None


# --- processes ---


def test_tasks_are_the_largest_in_bytes():
    rows = [(5, 5, 10, 0, 0, "init"), (4713, 4711, 3500, 7, -3, "worker"), (6, 6, 9000, 0, 1000, "a b\tc")]
    tasks = build_report(KILL, dump(tasks=rows), Surroundings(page_size_bytes=65536)).tasks
    assert [(task.pid, task.comm) for task in tasks] == [(6, "a b\tc"), (4711, "worker"), (5, "init")]
    worker = tasks[1]
    assert (worker.rss_bytes, worker.swap_bytes, worker.oom_score_adj) == (3500 << 16, 7 << 16, -3)


def test_the_victim_is_told_however_small():
    rows = [(pid, pid, 1000 + pid, 0, 0, "big") for pid in range(1, 31)] + [(4711, 4711, 1, 0, 1000, "worker")]
    tasks = build_report(KILL, dump(tasks=rows), Surroundings(page_size_bytes=4096)).tasks
    assert [task.pid for task in tasks] == [*range(30, 30 - TASKS_AT_MOST, -1), 4711]


def test_tasks_without_a_table_or_a_page_size_are_unknown():
    assert build_report(KILL, dump(), Surroundings(page_size_bytes=4096)).tasks is None
    assert build_report(KILL, None, Surroundings(page_size_bytes=4096)).tasks is None
    rows = [(4711, 4711, 3500, 0, 0, "worker")]
    assert build_report(KILL, dump(tasks=rows)).tasks[0].rss_bytes == 3500 * 4096  # 51200 pages are 204800 kB


# --- siblings ---


@pytest.mark.parametrize(("version", "file"), [(1, "memory.usage_in_bytes"), (2, "memory.current")])
def test_siblings_are_read(tmp_path, version, file):
    write_files(tmp_path / "pods/pod7", {file: "1\n"})
    for name, text in (("db", "85\n"), ("web", "14\n"), ("off", None)):
        write_files(tmp_path / "pods/pod7" / name, {file: text} if text else {"cgroup.procs": ""})
    write_files(tmp_path / "pods/pod7/db/below", {file: "80\n"})
    (tmp_path / "pods/pod7/link").symlink_to(tmp_path)
    db = Container("c0ffee", "database", "docker", 1, "running", "/pods/pod7/db")
    pod = replace(db, id="pod", cgroup=POD)
    inode = (tmp_path / "pods/pod7/db").stat().st_ino

    found = read_siblings(MemoryHierarchy(version, tmp_path), POD, lambda number, _: db if number == inode else pod)

    assert sorted(found, key=lambda each: each.cgroup) == [
        Sibling("/pods/pod7/db", 85, "c0ffee", "database"),
        Sibling("/pods/pod7/off", None),
        Sibling("/pods/pod7/web", 14),
    ]


@pytest.mark.parametrize("parent", ["/gone", "/../out"])
def test_siblings_that_cannot_be_read(tmp_path, parent):
    assert read_siblings(MemoryHierarchy(2, tmp_path), parent, lambda *_: None) is None


def test_the_victims_branch_is_as_at_the_kill():
    box = Container("c0ffee", "web", "docker", 4711, "running", WEB)
    others = (Sibling("/pods/pod7/small", 1), Sibling("/pods/pod7/db", 85 * MIB), Sibling("/pods/pod7/off", None))
    around = Surroundings(box, WEB, presumed_limit=POD, siblings=(Sibling(WEB, 4096, "c0ffee", "web"), *others))
    expected = (others[1], Sibling(WEB, 14 * MIB, "c0ffee", "web"), others[0], others[2])
    assert build_report(KILL, dump(), around).siblings == expected
    removed = replace(around, siblings=others)
    assert build_report(KILL, dump(), removed).siblings == expected


def test_siblings_of_another_cgroup_than_the_limited_one_are_not_told():
    around = Surroundings(presumed_limit="/pods", siblings=(Sibling(POD, 7),))
    assert build_report(KILL, dump(), around).siblings is None
    assert build_report(KILL, dump(), Surroundings(presumed_limit=POD)).siblings is None


# --- history ---

SAMPLES = tuple(MemorySample(second * 10**9, second * MIB, None, None, None, None) for second in (7, 8, 9, 10))


@pytest.mark.parametrize(
    ("cgroup", "usages"),
    [
        pytest.param(POD, [7, 8, 100], id="of the limited cgroup"),
        pytest.param(WEB, [7, 8, 14], id="of a cgroup below it"),
        pytest.param("/elsewhere", [7, 8], id="its usage at the kill is not known"),
    ],
)
def test_the_history_ends_at_the_kill(cgroup, usages):
    report = build_report(KILL, dump(), Surroundings(history=SAMPLES, history_cgroup=cgroup))
    assert [sample.usage_bytes // MIB for sample in report.history] == usages
    ages = [entry["age_ns"] for entry in report.to_fields()["history"]]
    assert ages == [2 * 10**9, 10**9, 0][: len(usages)]


def test_the_history_ends_at_the_kill_as_the_log_says_it():
    report = build_report(replace(KILL, levels=()), dump(), Surroundings(history=SAMPLES[:1], history_cgroup=POD))
    assert [sample.usage_bytes for sample in report.history] == [7 * MIB, 100 * MIB]


def test_no_history_is_not_begun_by_the_kill():
    assert build_report(KILL, dump(), Surroundings(history_cgroup=POD)).history == ()
