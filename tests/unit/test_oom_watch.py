"""The watch of a trace: what it reads of cgroups at a kill, in a tree of our own, with time passed in."""

from contextlib import closing

import pytest

from rtdebug.containers.model import Container
from rtdebug.host.cgroup import MemoryHierarchy
from rtdebug.oom.watch import OomWatch
from rtdebug.tracing.processes import Place, Process, ProcessTable
from tests.unit.test_oom_report import EVENT
from tests.unit.trees import write_files

S = 1_000_000_000
PID = (1 << 22) + 23  # of no process: the real kernel log is read where we may
MIB = 1 << 20


def level(memcg_id, pages, limit):
    return {"memcg_id": memcg_id, "usage_pages": pages, "limit_pages": limit or 1 << 62, "failcnt": 3}


class Tree:
    """/pod with its limit of 100 MiB, and /pod/db and /pod/web in it; web is traced."""

    def __init__(self, folder):
        self.folder = folder
        self.container = Container("c0ffee", "web", "docker", PID, "running", "/pod/web")
        self.processes = ProcessTable()
        for memcg_id, path in ((2, "/pod"), (4, "/pod/web")):
            self.processes.add_place(memcg_id, Place(path, self.container if memcg_id == 4 else None))
        self.processes.add(Process(PID, memcg_id=4))
        self.write("", 0)
        self.write("pod/db", 85)
        inode = (folder / "pod/db").stat().st_ino
        self.processes.add_place(inode, Place("/pod/db", Container("beef", "db", "docker", 1, "running", "/pod/db")))

    def write(self, cgroup, mib):
        usage = mib * MIB
        files = {"memory.stat": f"anon {usage}\nfile 0\nshmem 0\nkernel 0\n", "memory.current": f"{usage}\n"}
        write_files(self.folder / cgroup, files)

    def watch(self):
        return closing(OomWatch(MemoryHierarchy(2, self.folder), self.processes, 4096))

    def kill(self, seconds, web=14, pod=100):
        levels = [level(4, web * 256, None), level(2, pod * 256, 100 * 256)]
        return {**EVENT, "time_ns": seconds * S, "pid": PID, "tid": PID, "memcg": levels, "levels": 2}


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


def test_history_starts_anew_with_each_start(tree):
    with tree.watch() as watch:
        watch.follow("/pod/web")
        for second, mib in enumerate((3, 5, 7)):
            tree.write("pod/web", mib)
            watch.advance(second * S)
        (report,) = watch.add_kill(tree.kill(3), 3 * S) + watch.finish(3 * S)
        assert [sample.usage_bytes // MIB for sample in report.history] == [3, 5, 7, 14]
        watch.follow("/pod/web")  # started again
        tree.write("pod/web", 1)
        watch.advance(4 * S)
        (report,) = watch.add_kill(tree.kill(5, web=13), 5 * S) + watch.finish(5 * S)
        assert [sample.usage_bytes // MIB for sample in report.history] == [1, 13]


def test_the_limited_cgroup_and_its_children_are_read(tree):
    tree.write("pod", 96)
    tree.write("pod/web", 10)  # of its 14 the kernel has freed 4
    with tree.watch() as watch:
        (report,) = watch.add_kill(tree.kill(3), 3 * S) + watch.finish(3 * S)
    assert (report.oom_memcg, report.stat_cgroup, report.stat_source) == ("/pod", "/pod", "cgroup_files")
    assert report.usage_by_kind.anon_bytes == 96 * MIB
    assert [(each.container_name, each.usage_bytes // MIB) for each in report.siblings] == [("db", 85), ("web", 14)]


def test_the_victims_own_limit_has_no_siblings(tree):
    tree.write("pod/web", 10)
    event = tree.kill(3)
    event["memcg"] = [level(4, 14 * 256, 14 * 256), level(2, 50 * 256, 100 * 256)]
    with tree.watch() as watch:
        (report,) = watch.add_kill(event, 3 * S) + watch.finish(3 * S)
    assert (report.oom_memcg, report.siblings, report.tasks) == ("/pod/web", None, None)
