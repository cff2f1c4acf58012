"""Every rule of the verdicts, on dumps made to measure: one that it is for, and its neighbours that it is not for."""

from __future__ import annotations

import string

import pytest

from rtdebug.oom.facts import facts_of
from rtdebug.oom.judges import MANY_PROCESSES, STORM_PROCESSES
from rtdebug.oom.verdict import RULES, VerdictKind, judge
from rtdebug.render.oom_verdict import fill, verdict_fields
from tests.unit.oom_dumps import KIB, MIB, Task, global_dump, memcg_dump, record_of

USAGE = 64 * MIB
PYTHON = Task(7001, "python3", 15_000)


def of(lines):
    return judge(facts_of(record_of(lines)))


def stat(**parts):
    """memory.stat of v2, in MiB."""
    sizes = dict.fromkeys(("anon", "file", "kernel", "sock", "shmem", "file_dirty", "file_writeback", "zswap"), 0)
    return {key: value * MIB for key, value in (sizes | parts).items()}


def tasks(count, comm="worker", rss=100, first=7001, apart=1):
    return [Task(first + index * apart, comm, rss) for index in range(count)]


DUMPS = {
    "anon_one_process": memcg_dump(stat(anon=60), [PYTHON, Task(7002, "sh", 50)]),
    "limit_too_small": memcg_dump(stat(anon=60), tasks(4, rss=3_800)),
    "shmem": memcg_dump(stat(anon=5, file=56, shmem=55), [PYTHON]),
    "page_cache": memcg_dump(stat(anon=5, file=56, file_dirty=50), [Task(7003, "cp", 900)]),
    "kernel_memory": memcg_dump(stat(anon=5, kernel=55), [Task(7004, "find", 900)]),
    "fork_storm": memcg_dump(stat(anon=50, kernel=10), tasks(STORM_PROCESSES, "sh")),
    "many_processes": memcg_dump(stat(anon=60), tasks(MANY_PROCESSES, apart=97)),
    "node_exhausted": global_dump([PYTHON]),
    "fragmentation": global_dump([PYTHON], order=2, free_pages=300_000),
    "cpuset": global_dump([PYTHON], constraint="CONSTRAINT_CPUSET", free_pages=300_000),
    "mempolicy": global_dump([PYTHON], constraint="CONSTRAINT_MEMORY_POLICY", nodemask="1"),
    "sysrq": global_dump([PYTHON], order=-1),
    "anon": memcg_dump(stat(anon=60), [])[:-2],
    "unknown": global_dump([PYTHON], free_pages=300_000),
}


@pytest.mark.parametrize("kind", DUMPS)
def test_each_kind_has_a_dump(kind):
    verdict = of(DUMPS[kind])
    assert verdict.kind == kind
    assert verdict.advice


def test_all_kinds_are_tested():
    assert set(DUMPS) == set(VerdictKind.__args__)
    assert {rule.kind for rule in RULES} == set(DUMPS) - {"unknown"}


@pytest.mark.parametrize("kind", DUMPS)
def test_every_name_in_a_sentence_has_its_figure(kind):
    verdict = of(DUMPS[kind])
    for text, evidence in [(verdict.text, verdict.evidence), *((n.text, n.evidence) for n in verdict.notes)]:
        names = {name for _, name, _, _ in string.Formatter().parse(text) if name}
        assert names <= evidence.keys()
        assert all(evidence[name] is not None for name in names)
        assert "{" not in fill(text, evidence)


def test_the_evidence_is_what_the_dump_says():
    verdict = of(DUMPS["shmem"])
    assert verdict.evidence["shmem_bytes"] == 55 * MIB
    assert verdict.evidence["usage_bytes"] == USAGE
    assert verdict_fields(verdict)["text"].startswith("86% of the usage (55 MiB of 64 MiB) is shared memory")
    verdict = of(DUMPS["anon_one_process"])
    assert (verdict.evidence["largest_pid"], verdict.evidence["largest_comm"]) == (7001, "python3")
    assert verdict.evidence["largest_bytes"] == 15_000 * 4 * KIB


def test_file_of_v2_is_no_page_cache_where_it_is_shmem():
    assert of(memcg_dump(stat(anon=5, file=56, shmem=2), [PYTHON])).kind == "page_cache"
    assert of(memcg_dump(stat(anon=5, file=56, shmem=50), [PYTHON])).kind == "shmem"


def test_all_pods_limit_is_the_nodes():
    burstable = "/kubepods.slice/kubepods-burstable.slice"
    pod = f"{burstable}/kubepods-burstable-pod77.slice/cri-containerd-{'a7' * 32}.scope"
    for cgroup in ("/kubepods.slice", burstable, "/kubepods", "/kubepods/besteffort"):
        assert of(memcg_dump(stat(anon=60), [PYTHON], cgroup=cgroup, task_cgroup=pod)).kind == "node_exhausted"
    assert of(memcg_dump(stat(anon=60), [PYTHON], cgroup=pod)).kind == "anon_one_process"
    assert of(memcg_dump(stat(anon=60), [PYTHON], cgroup=pod.rpartition("/")[0])).kind == "anon_one_process"


def test_a_kmem_limit_that_looks_global():
    lines = global_dump([PYTHON], gfp_mask="0x0()", free_pages=300_000)
    assert of(lines).kind == "kernel_memory"
    assert of(global_dump([PYTHON], gfp_mask="0x0()")).kind == "node_exhausted"


def test_workers_whose_pids_lie_apart_are_no_storm():
    assert of(memcg_dump(stat(anon=60), tasks(STORM_PROCESSES, "sh", apart=9))).kind == "many_processes"


def test_sysrq_of_old_kernels():
    lines = ["SysRq : Manual OOM execution", *global_dump([PYTHON])]
    assert of(lines).kind == "sysrq"


def test_notes():
    def notes(lines):
        return {note.kind for note in of(lines).notes}

    assert notes(memcg_dump(stat(anon=60), [PYTHON], usage_kib=90_000)) == {"limit_lowered"}
    assert notes(memcg_dump(stat(anon=60), [PYTHON], usage_kib=65_528, order=3)) == {"larger_request"}
    assert notes(memcg_dump(stat(anon=60), [PYTHON], usage_kib=65_528)) == set()
    assert notes(DUMPS["shmem"]) == {"tmpfs_is_cache"}
    assert "swapped_out" in notes(memcg_dump(stat(anon=60), [Task(7, "a", 100, swap=900)]))
    assert "zswap" in notes(memcg_dump(stat(anon=20, kernel=40, zswap=30), [PYTHON]))
    assert "charged_elsewhere" in notes(memcg_dump(stat(anon=60), [Task(7, "a", 60_000)]))


def local(lines):
    return [line.partition(" total_")[0] if "cache:" in line else line for line in lines]


def test_v1_cache_hides_tmpfs():
    inline = "cache:50000KB rss:9000KB shmem:48000KB total_cache:50000KB total_rss:9000KB total_shmem:48000KB"
    lines = memcg_dump({}, [PYTHON], cgroup="/cart")
    lines = [
        f"Memory cgroup stats for /cart: {inline}" if line.startswith("Memory cgroup stats") else line for line in lines
    ]
    verdict = of(lines)
    assert verdict.kind == "shmem"
    (note,) = verdict.notes
    assert "docker stats" in note.text
    without = [line.replace(" shmem:48000KB", "").replace(" total_shmem:48000KB", "") for line in lines]
    verdict = of(without)
    assert [note.kind for note in verdict.notes] == ["cache_may_be_tmpfs"]
    for inactive, kind, notes in ((700, "shmem", ["tmpfs_is_cache"]), (50_000, "page_cache", [])):
        lists = f"cache:50000KB inactive_file:{inactive}KB active_file:0KB "
        verdict = of([line.replace("cache:50000KB ", lists, 1) for line in local(without)])
        assert (verdict.kind, [note.kind for note in verdict.notes]) == (kind, notes)


def test_a_comm_with_braces_is_no_placeholder():
    verdict = of(memcg_dump(stat(anon=60), [Task(7001, "{usage_bytes}", 15_000)]))
    assert "{usage_bytes} alone has" in fill(verdict.text, verdict.evidence)


@pytest.mark.parametrize(("adj", "kind"), [(0, "many_processes"), (-997, "unknown")])
def test_a_small_score_of_a_guaranteed_pod_says_nothing(adj, kind):
    """-997 of 1000 leaves no score to the largest process either."""
    lines = [
        f"api invoked oom-killer: gfp_mask=0xd0, order=0, oom_score_adj={adj}",
        "Task in /pool/a killed as a result of limit of /pool/a",
        "Memory cgroup out of memory: Kill process 7001 (api) score 2 or sacrifice child",
        "Killed process 7001 (api) total-vm:90000kB, anon-rss:61024kB, file-rss:311kB",
    ]
    assert of(lines).kind == kind
