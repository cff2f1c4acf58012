"""`rtdebug madvise run`: each advice against its documented effect, and a process that leaves nothing behind.

Witnesses: smaps and the cgroup's files (both through the raw runs), /proc of the experiment process, cgroupfs.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path

import pytest

from rtdebug.containers.model import Container
from rtdebug.host.cgroup import find_memory_hierarchy, pids_of
from rtdebug.host.maps import read_maps
from rtdebug.host.memcg import read_memory
from rtdebug.host.meminfo import read_meminfo
from rtdebug.host.process import namespace_id
from rtdebug.host.thp import read_thp
from rtdebug.madvise import syscalls
from rtdebug.madvise.area import mapped
from rtdebug.madvise.door import find_door
from rtdebug.madvise.hindrance import anon_choices, shmem_choices
from rtdebug.madvise.leaf import PREFIX
from rtdebug.madvise.measure import Meter
from rtdebug.madvise.place import send_inside
from rtdebug.madvise.plan import Case
from tests.kernel import leftovers
from tests.kernel.runtime_fixtures import wait_for
from tests.kernel.tracing import ROOT, target
from tests.kernel.workload import MIB, Workload, memory_cgroup, memory_mount

pytestmark = pytest.mark.kernel

SIZE = 4 * MIB
PAGES = SIZE // os.sysconf("SC_PAGE_SIZE")
PATIENCE_S = 180
PR_GET_DUMPABLE = 3
V2 = memory_mount()[1] if os.geteuid() == 0 else False


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "rtdebug", "madvise", "run", *map(str, arguments)]


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    options = {"capture_output": True, "text": True, "timeout": PATIENCE_S, "check": False}
    return subprocess.run(command(*arguments), cwd=ROOT, **options)


@contextmanager
def inhabited(limit_bytes: int = 192 * MIB) -> Iterator[Path]:
    """A cgroup with a process, as the simplest container there is."""
    with memory_cgroup(limit_bytes) as cgroup, Workload("pause", cgroup=cgroup):
        yield cgroup


def leaves(cgroup: Path) -> list[Path]:
    return list(cgroup.rglob(f"{PREFIX}*"))


class Raw:
    """The runs of an experiment."""

    def __init__(self, runs: list[dict]) -> None:
        self.runs = [run for run in runs if not run["warm_up"]]

    def of(self, memory: str, advice: str, key: str) -> list:
        found = [run.get(key) for run in self.runs if (run["memory"], run["advice"]) == (memory, advice)]
        assert found, f"no run of {advice} on {memory}"
        return found

    def least(self, memory: str, advice: str, key: str) -> int:
        return min(self.of(memory, advice, key))


@pytest.fixture(scope="module")
def raw(tmp_path_factory) -> Raw:
    """One experiment with all kinds of memory and all advice, three runs of each: seen by many tests."""
    path = tmp_path_factory.mktemp("raw") / "runs.json"
    plan = path.with_name("all.toml")
    every = "NOHUGEPAGE HUGEPAGE COLLAPSE COLD PAGEOUT FREE DONTNEED REMOVE POPULATE_READ POPULATE_WRITE DONTDUMP"
    advice = [*every.split(), "MERGEABLE", "NORMAL", "SEQUENTIAL", "RANDOM", "WILLNEED"]
    plan.write_text(f"""
runs = 3
warm_up = 0
[[case]]
memory = ["anon", "shared-anon", "memfd", "shm", "sysv", "file"]
size = "{SIZE}"
access = "stride"
mode = "write"
advice = {json.dumps(advice)}
""")
    with inhabited() as cgroup:
        done = run(target(cgroup), plan, "--raw", path)
        assert done.returncode == 0, done.stderr
        assert leaves(cgroup) == []
    return Raw(json.loads(path.read_text()))


SHMEM = ("shared-anon", "memfd", "sysv", "shm")
TOLERANCE = MIB
"""Counters are kept per CPU, in batches of 64 pages."""


@cache
def thp():
    found = read_thp()
    if found is None:
        pytest.skip("a kernel without transparent huge pages")
    return found


def anon_huge_on_advice() -> bool:
    return bool(anon_choices(thp()) & {"always", "madvise"})


def no_swap() -> bool:
    return read_meminfo().get("SwapTotal") == 0


def test_baseline_is_the_memory_itself(raw: Raw) -> None:
    for memory in ("anon", *SHMEM, "file"):
        assert raw.of(memory, "none", "rss_bytes") == [SIZE] * 3, memory
        charged = [
            usage - before
            for usage, before in zip(
                raw.of(memory, "none", "usage_bytes"), raw.of(memory, "none", "mapped_usage_bytes"), strict=True
            )
        ]
        if not V2:  # there the container's own cgroup is looked at, and the file stays charged between the runs
            assert abs(sorted(charged)[1] - SIZE) < TOLERANCE, (memory, charged)
    if "always" not in anon_choices(thp()):
        assert raw.of("anon", "none", "populate_minor_faults") == [PAGES] * 3
        assert raw.of("anon", "none", "thp_bytes") == [0] * 3


def test_dontneed_frees_private_memory_within_the_call(raw: Raw) -> None:
    assert raw.of("anon", "DONTNEED", "rss_bytes") == [0] * 3
    assert abs(sorted(raw.of("anon", "DONTNEED", "returned_bytes"))[1] - SIZE) < TOLERANCE
    took = [
        back - call
        for back, call in zip(
            raw.of("anon", "DONTNEED", "return_ns"), raw.of("anon", "DONTNEED", "advice_ns"), strict=True
        )
    ]
    assert min(took) < 1_000_000, "it was back at the first look after the call"


def test_dontneed_of_shared_memory_gives_nothing_back(raw: Raw) -> None:
    for memory in SHMEM:
        assert raw.of(memory, "DONTNEED", "rss_bytes") == [0] * 3
        assert sorted(map(abs, raw.of(memory, "DONTNEED", "returned_bytes")))[1] < TOLERANCE
        assert raw.least(memory, "DONTNEED", "access_minor_faults") > 0


def test_remove_punches_a_hole_in_shared_memory(raw: Raw) -> None:
    for memory in SHMEM:
        assert raw.of(memory, "REMOVE", "errno") == [None] * 3
        assert raw.of(memory, "REMOVE", "rss_bytes") == [0] * 3
        assert abs(sorted(raw.of(memory, "REMOVE", "returned_bytes"))[1] - SIZE) < TOLERANCE
    assert raw.of("anon", "REMOVE", "errno") == ["EINVAL"] * 3


def test_free_takes_nothing_while_nobody_needs_it(raw: Raw) -> None:
    assert raw.of("anon", "FREE", "rss_bytes") == [SIZE] * 3
    assert raw.least("anon", "FREE", "lazyfree_bytes") > SIZE - TOLERANCE
    assert sorted(map(abs, raw.of("anon", "FREE", "returned_bytes")))[1] < TOLERANCE
    for memory in SHMEM:
        assert raw.of(memory, "FREE", "errno") == ["EINVAL"] * 3


def test_pageout_without_swap_does_nothing_to_anon(raw: Raw) -> None:
    if not no_swap():
        pytest.skip("this host has swap")
    for advice in ("PAGEOUT", "COLD"):
        assert raw.of("anon", advice, "errno") == [None] * 3
        assert raw.of("anon", advice, "rss_bytes") == [SIZE] * 3
        assert raw.of("anon", advice, "swap_bytes") == [0] * 3


def test_collapse_makes_huge_pages_of_what_is_there(raw: Raw) -> None:
    if raw.of("anon", "COLLAPSE", "errno") == ["EINVAL"] * 3:
        pytest.skip("this kernel has no MADV_COLLAPSE (6.1)")
    if "always" not in anon_choices(thp()):
        assert raw.of("anon", "COLLAPSE", "populated_thp_bytes") == [0] * 3
        assert raw.least("anon", "COLLAPSE", "vmstat_thp_collapse_alloc") >= SIZE // thp().pmd_size_bytes
    assert raw.of("anon", "COLLAPSE", "thp_bytes") == [SIZE] * 3
    assert raw.of("anon", "COLLAPSE", "rss_bytes") == [SIZE] * 3
    if thp().shmem_enabled != "deny":
        assert max(raw.of("memfd", "COLLAPSE", "thp_bytes")) in (0, SIZE)


def test_hugepage_before_touching_gives_huge_faults(raw: Raw) -> None:
    if not anon_huge_on_advice():
        assert raw.of("anon", "HUGEPAGE", "thp_bytes") == [0] * 3
        return
    assert raw.of("anon", "HUGEPAGE", "thp_bytes") == [SIZE] * 3
    assert raw.least("anon", "HUGEPAGE", "populate_minor_faults") == SIZE // thp().pmd_size_bytes


def test_hugepage_on_shared_memory_needs_shmem_enabled(raw: Raw) -> None:
    if shmem_choices(thp()) & {"always", "advise", "within_size", "force"}:
        pytest.skip("shmem_enabled lets it")
    for memory in ("memfd", "sysv", "shared-anon"):
        assert raw.of(memory, "HUGEPAGE", "thp_bytes") == [0] * 3


def test_nohugepage_gives_none(raw: Raw) -> None:
    assert raw.of("anon", "NOHUGEPAGE", "thp_bytes") == [0] * 3
    assert raw.of("anon", "NOHUGEPAGE", "populate_minor_faults") == [PAGES] * 3


def test_populate_takes_the_faults(raw: Raw) -> None:
    if raw.of("anon", "POPULATE_WRITE", "errno") == ["EINVAL"] * 3:
        pytest.skip("this kernel has no MADV_POPULATE_WRITE (5.14)")
    for memory in ("anon", "memfd"):
        assert raw.of(memory, "POPULATE_WRITE", "populate_minor_faults") == [0] * 3
    assert raw.of("memfd", "POPULATE_READ", "errno") == [None] * 3
    assert raw.least("file", "POPULATE_READ", "populate_minor_faults") <= 1


@pytest.mark.parametrize("advice", ["NORMAL", "SEQUENTIAL", "RANDOM", "WILLNEED", "DONTDUMP"])
def test_advice_that_changes_no_memory(raw: Raw, advice: str) -> None:
    for memory in ("anon", "memfd", "file"):
        assert raw.of(memory, advice, "errno") == [None] * 3
        assert raw.of(memory, advice, "rss_bytes") == [SIZE] * 3


def test_a_file_is_read_from_disk_each_time(raw: Raw) -> None:
    """Its pages were dropped before the run, so that somebody has to bring them."""
    assert raw.of("file", "none", "rss_bytes") == [SIZE] * 3
    assert raw.least("file", "none", "populate_minor_faults") < PAGES / 4, "the kernel maps around a fault"


# the process inside -----------------------------------------------------------------------------------------------


def inside(container: Container, body) -> tuple[object, object]:
    """Start `body` in the container; give rtdebug's end of it, and the pid of its process."""
    hierarchy = find_memory_hierarchy()
    folder = hierarchy.path(container.cgroup)
    before = pids_of(folder)
    experimenter = send_inside(find_door(container, hierarchy), hierarchy, container.cgroup, partial(unprepared, body))
    said = None
    while not said:
        said = experimenter.hear(10)
        assert said is not None, "it ended without a word"
    (pid,) = pids_of(folder) - before
    return experimenter, (pid, said[0])


def unprepared(body, leaf):
    return body


def container_of(cgroup: Path) -> Container:
    return Container(f"/{cgroup.name}", None, None, None, "running", f"/{cgroup.relative_to(memory_mount()[0])}")


def tell_and_wait(inside_) -> None:
    words = {
        "uid": os.getuid(),
        "root": sorted(path.name for path in Path("/").iterdir()),
        "pid": os.getpid(),
        "importable": can_import(),
        "dumpable": syscalls.libc()[1].prctl(PR_GET_DUMPABLE, 0, 0, 0, 0),
    }
    inside_.say(**words)
    time.sleep(30)


def can_import() -> bool:
    try:
        import xmlrpc.client  # noqa: F401 - something that nobody has imported yet
    except ImportError:
        return False
    return True


def test_it_is_where_the_container_is(runc) -> None:
    box = runc.start(memory_bytes=96 * MIB)
    container = Container(box.id, None, "runc", box.pid, "running", f"/{box.id}")
    experimenter, (pid, said) = inside(container, tell_and_wait)
    try:
        for kind in ("mnt", "ipc", "pid", "net"):
            assert namespace_id(pid, kind) == namespace_id(box.pid, kind) != namespace_id("self", kind)
        assert said["root"] == sorted(path.name for path in Path(f"/proc/{box.pid}/root").iterdir())
        assert 1 < said["pid"] < 100 and said["importable"] is False
        assert Path(f"/proc/{pid}/oom_score_adj").read_text().strip() == "1000"
        cgroup = Path(f"/proc/{pid}/cgroup").read_text()
        assert f"/{box.id}/{PREFIX}" in cgroup
        status, of_init = (Path(f"/proc/{each}/status").read_text() for each in (pid, box.pid))
        for line in ("CapEff", "CapPrm", "CapBnd", "Uid", "Gid"):
            assert value_of(status, line) == value_of(of_init, line), line
        assert value_of(status, "NoNewPrivs") == "1"
    finally:
        experimenter.close()
    assert not Path(f"/proc/{pid}").exists()
    assert leaves(find_memory_hierarchy().path(f"/{box.id}")) == []


def value_of(status: str, key: str) -> str:
    return next(line.partition(":")[2].strip() for line in status.splitlines() if line.startswith(f"{key}:"))


def holds(pid: int, secret: bytes) -> bool:
    """Whether it is anywhere in the memory of the process."""
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for mapping in read_maps(pid):
            for start in range(mapping.start, mapping.end if mapping.perms[0] == "r" else 0, 16 * MIB):
                with suppress(OSError, OverflowError):  # [vvar], [vsyscall]
                    if secret in os.pread(memory.fileno(), min(16 * MIB, mapping.end - start), start):
                        return True
    return False


def test_a_container_that_looks_into_it_finds_nothing_of_rtdebug(runc) -> None:
    """Neither its environment, nor anything else of its memory, nor its streams; and no process with more rights."""
    secret = os.environ[leftovers.MARK].encode()
    assert holds(os.getpid(), secret)
    box = runc.start(memory_bytes=96 * MIB, script="sleep 1000")
    experimenter, (pid, said) = inside(Container(box.id, None, "runc", box.pid, "running", f"/{box.id}"), tell_and_wait)
    try:
        assert Path(f"/proc/{pid}/environ").read_bytes() == b""
        assert not holds(pid, secret)
        assert said["dumpable"] == 0
        assert {str(Path(f"/proc/{pid}/fd/{number}").readlink()) for number in range(3)} == {"/dev/null"}
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            link = str(fd.readlink())
            flags = int(value_of(Path(f"/proc/{pid}/fdinfo/{fd.name}").read_text(), "flags"), 8)
            assert flags & os.O_ACCMODE == os.O_RDONLY or link.startswith(("pipe:", "/dev/null")), link
            assert not Path(link).is_dir(), link
        with Path(f"/proc/{pid}/exe").open("rb") as program:
            assert fcntl.fcntl(program, fcntl.F_GET_SEALS) & fcntl.F_SEAL_WRITE, "and not the host's Python"
        parent = int(value_of(Path(f"/proc/{pid}/status").read_text(), "PPid"))
        assert namespace_id(parent, "pid") == namespace_id("self", "pid"), "the container does not see the porter"
        assert not holds(parent, secret)
    finally:
        experimenter.close()


def test_user_namespace_of_a_rootless_container() -> None:
    """uid 0 inside is nobody outside, and so is the experiment."""
    somebody = ["setpriv", "--reuid", "100000", "--regid", "100000", "--clear-groups"]
    unshare = [*somebody, "unshare", "--user", "--map-root-user"]
    with memory_cgroup(96 * MIB) as cgroup:
        box = subprocess.Popen([*unshare, "--mount", "--ipc", "--pid", "--fork", "sleep", "1000"])
        try:
            shell = box.pid
            wait_for(lambda: Path(f"/proc/{shell}/task/{shell}/children").read_text().split(), "its child")
            child = int(Path(f"/proc/{shell}/task/{shell}/children").read_text())
            wait_for(lambda: Path(f"/proc/{child}/comm").read_text() == "sleep\n", "sleep")
            (cgroup / "cgroup.procs").write_text(str(child))
            container = Container("x", None, None, child, "running", f"/{cgroup.name}")
            experimenter, (pid, said) = inside(container, tell_and_wait)
            try:
                assert said["uid"] == 0
                assert namespace_id(pid, "user") == namespace_id(child, "user") != namespace_id("self", "user")
                assert value_of(Path(f"/proc/{pid}/status").read_text(), "Uid").split()[0] == "100000"
            finally:
                experimenter.close()
        finally:
            box.kill()
            box.wait()


def free_and_wait(leaf):
    """Body: give memory free, say so, and then how much is left once somebody has asked for it."""
    import numpy  # noqa: F401 - inside there are no imports

    meter = Meter(leaf.memory_folder)
    size = 16 * MIB

    def body(inside_) -> None:
        meter.look_at(inside_.smaps_fd)
        with mapped(Case("anon", (), size), size, 2 * MIB) as area:
            area.words()[:] = 1
            syscalls.madvise(area.address, size, 8)
            before = meter.read(area).rss_bytes
            inside_.say(before=before)
            deadline = time.monotonic() + 15
            while (now := meter.read(area).rss_bytes) == before and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(0.5)
            inside_.say(before=before, after=min(now, meter.read(area).rss_bytes))

    return body


def test_free_gives_back_under_pressure() -> None:
    """And only then: nothing was gone while nobody asked."""
    hierarchy = find_memory_hierarchy()
    with inhabited() as cgroup:
        container = container_of(cgroup)
        door = find_door(container, hierarchy)
        experimenter = send_inside(door, hierarchy, container.cgroup, free_and_wait)
        try:
            said = wait_for(lambda: experimenter.hear(1), "the first word")
            assert said[0]["before"] == 16 * MIB
            (leaf,) = leaves(cgroup)
            reclaim = cgroup / "memory.reclaim"
            if V2 and not reclaim.exists():
                pytest.skip("no memory.reclaim (5.19)")
            reclaim.write_text(str(16 * MIB)) if V2 else (leaf / "memory.force_empty").write_text("0")
            said = wait_for(lambda: experimenter.hear(1), "the last word", 30)
            assert said[0]["after"] < 8 * MIB
        finally:
            experimenter.close()


@pytest.mark.parametrize("delay_s", [0.3, 0.5, 0.7, 0.9, 1.1, 1.4])
def test_nothing_is_left_after_kill_9(delay_s: float) -> None:
    """Of rtdebug itself, while it starts or measures. The fixture looks for processes and SysV segments too."""
    with inhabited() as cgroup:
        process = subprocess.Popen(
            command(target(cgroup), "sysv,shm,anon", "8M", "write", "FREE,DONTNEED", "runs=1000"),
            cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        time.sleep(delay_s)
        process.kill()
        process.wait()
        wait_for(lambda: len(pids_of(cgroup)) == 1 and not leaves(cgroup), "all of it to be gone", 5)


def descendants(pid: int) -> list[int]:
    """rtdebug's keeper, porter and experiment process, as far as they have been started."""
    with suppress(OSError):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [each for child in map(int, children) for each in (child, *descendants(child))]
    return []


@pytest.mark.parametrize("victim", ["keeper", "porter", "experiment"])
def test_nothing_is_left_after_kill_9_of_one_of_its_processes(victim: str) -> None:
    with inhabited() as cgroup:
        process = subprocess.Popen(
            command(target(cgroup), "sysv,shm,anon", "4M", "FREE", "runs=1000", "-o", "json"),
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        wait_for(lambda: len(pids_of(cgroup)) == 2, "the experiment")
        family = descendants(process.pid)
        assert len(family) == 3
        os.kill(family[["keeper", "porter", "experiment"].index(victim)], signal.SIGKILL)
        out, err = process.communicate(timeout=20)
        assert process.returncode in (0, 1) and "Traceback" not in err
        assert "a bug in" not in err and (process.returncode or json.loads(out)["stopped"]), err
        wait_for(lambda: len(pids_of(cgroup)) == 1 and not leaves(cgroup), "all of it to be gone", 5)
        wait_for(lambda: not any(Path(f"/proc/{pid}/mem").exists() and alive(pid) for pid in family), "their end", 5)


def alive(pid: int) -> bool:
    with suppress(OSError):
        return value_of(Path(f"/proc/{pid}/status").read_text(), "State")[0] not in "ZX"
    return False


def test_a_leaf_that_nobody_could_remove_is_removed_by_the_next_experiment() -> None:
    """rtdebug and its keeper are killed at once: the process inside dies with them, its empty cgroup stays."""
    with inhabited() as cgroup:
        process = subprocess.Popen(
            command(target(cgroup), "anon", "8M", "FREE", "runs=1000"),
            cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        wait_for(lambda: len(pids_of(cgroup)) == 2, "the experiment")
        keeper = descendants(process.pid)[0]
        os.kill(keeper, signal.SIGSTOP)
        process.kill()
        process.wait()
        os.kill(keeper, signal.SIGKILL)
        wait_for(lambda: len(pids_of(cgroup)) == 1, "the experiment process to die")
        assert len(leaves(cgroup)) == 1
        assert run(target(cgroup), "anon", "2M", "FREE", "runs=1").returncode == 0
        assert leaves(cgroup) == []


def test_it_stops_when_the_container_ends() -> None:
    with memory_cgroup(96 * MIB) as cgroup, Workload("pause", cgroup=cgroup) as workload:
        process = subprocess.Popen(
            command(target(cgroup), "anon", "4M", "FREE", "runs=1000", "-o", "json"),
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        wait_for(lambda: len(pids_of(cgroup)) == 2, "the experiment")
        os.kill(workload.pid, signal.SIGKILL)
        out, err = process.communicate(timeout=20)
        assert process.returncode == 0, err
        assert json.loads(out)["stopped"] == "the container ended"
        wait_for(lambda: not leaves(cgroup), "the leaf to be gone", 5)


def test_ctrl_c_shows_what_was_measured() -> None:
    with inhabited() as cgroup:
        process = subprocess.Popen(
            command(target(cgroup), "anon", "4M", "FREE", "runs=1000", "-o", "json"),
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        wait_for(lambda: len(pids_of(cgroup)) == 2, "the experiment")
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
        assert process.returncode == 0, err
        document = json.loads(out)
        assert document["stopped"] == "interrupted" and document["results"]
        wait_for(lambda: not leaves(cgroup), "the leaf to be gone", 5)


@pytest.mark.parametrize("delay_s", [0.3, 0.5, 0.7, 0.9, 1.2, 1.6])
def test_a_container_that_ends_on_the_way_in_is_said_to_have_ended(delay_s: float) -> None:
    with memory_cgroup(96 * MIB) as cgroup, Workload("pause", cgroup=cgroup) as workload:
        process = subprocess.Popen(
            command(target(cgroup), "anon", "4M", "FREE", "runs=1000", "-o", "json"),
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        time.sleep(delay_s)
        os.kill(workload.pid, signal.SIGKILL)
        out, err = process.communicate(timeout=20)
        if process.returncode == 0:
            assert json.loads(out)["stopped"] == "the container ended"
        else:
            assert process.returncode == 4 and "bug" not in err.replace("rtdebug", ""), err
        wait_for(lambda: not leaves(cgroup), "the leaf to be gone", 5)


GROW = f"import sys; held = [bytearray(b'x') * {MIB} for _ in sys.stdin.buffer]; sys.stdin.close()"
"""A MiB more for each line it is told."""


def _left_bytes(cgroup: Path) -> int:
    state = read_memory(cgroup)
    assert state is not None and state.limit_bytes is not None and state.working_set_bytes is not None
    return state.limit_bytes - state.working_set_bytes


def test_it_stops_before_the_container_reaches_its_limit() -> None:
    """The container itself grows; nobody is killed."""
    with inhabited(64 * MIB) as cgroup:
        process = subprocess.Popen(
            command(target(cgroup), "anon", "8M", "FREE", "runs=1000", "-o", "json"),
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        wait_for(lambda: len(pids_of(cgroup)) == 2, "the experiment")
        enter = partial((cgroup / "cgroup.procs").write_text, "0")
        grown = subprocess.Popen([sys.executable, "-c", GROW], preexec_fn=enter, stdin=subprocess.PIPE, bufsize=0)
        assert grown.stdin is not None
        try:
            while process.poll() is None:
                if _left_bytes(cgroup) > (8 + 3) * MIB:  # it may have been read between two runs, without their 8 MiB
                    grown.stdin.write(b"\n")
                time.sleep(0.05)
            out, err = process.communicate()
        finally:
            grown.kill()
            grown.communicate()
        assert process.returncode == 0, err
        stopped = json.loads(out)["stopped"]
        assert "would bring" in stopped or (V2 and "wait for memory" in stopped), stopped
        state = read_memory(cgroup)
        assert state is not None and not state.events.get("oom_kill")


def test_a_size_beyond_the_limit_is_refused_with_what_is_allowed() -> None:
    with inhabited(48 * MIB) as cgroup:
        done = run(target(cgroup), "anon", "64M", "FREE")
        assert done.returncode == 2
        assert "size 64 MiB is more than the container can take" in done.stderr
        assert "allowed: 2 MiB to" in done.stderr and "Traceback" not in done.stderr


def test_a_dev_shm_that_is_too_small_is_said(runc) -> None:
    box = runc.start(memory_bytes=192 * MIB, shm_bytes=40 * MIB)
    done = run(box.id, "shm,anon", "24M", "REMOVE", "runs=1", "-o", "json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    (missing,) = document["not_measured"]
    assert missing["memory"] == "shm" and "/dev/shm has only" in missing["reason"]
    assert {each["memory"] for each in document["results"]} == {"anon"}


def test_same_seed_same_runs(tmp_path) -> None:
    orders = []
    with inhabited() as cgroup:
        for _ in range(2):
            path = tmp_path / "runs.jsonl"
            done = run(target(cgroup), "anon", "2M", "zipf", "FREE,COLD", "runs=3", "--seed", 7, "--raw", path)
            assert done.returncode == 0, done.stderr
            orders.append([json.loads(line)["advice"] for line in path.read_text().splitlines()])
    assert orders[0] == orders[1]
    assert len(orders[0]) == 12


def test_docker_container_with_answer_picture_and_parquet(docker, tmp_path) -> None:
    pd = pytest.importorskip("pandas")
    box = docker.start("rtdebug-advised", memory_bytes=160 * MIB)
    picture, raw_runs = tmp_path / "runs.png", tmp_path / "runs.parquet"
    options = ("--runs", 10, "--size", "4M", "--raw", raw_runs)
    done = run("rtdebug-advised", "give-back", *options, "--picture", picture, "-o", "json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["container_id"], document["runtime"], document["stopped"]) == (box.id, "docker", None)
    assert {"mnt", "ipc", "pid", "net"} <= set(document["namespaces"])
    assert {"memory", "advice", "median", "interval", "effect", "runs"} <= document["results"][0].keys()
    dontneed = [each for each in document["recommendation"] if each["memory"] == "anon"]
    assert dontneed[0]["advice"] == "MADV_DONTNEED" and dontneed[0]["purpose"] == "give back"
    frame = pd.read_parquet(raw_runs)
    assert len(frame) == 11 * 13 and not frame["warm_up"].all()
    assert picture.read_bytes().startswith(b"\x89PNG")
    done = run(box.id[:12], "anon", "4M", "FREE,REMOVE", "--runs", 4)
    assert done.returncode == 0, done.stderr
    assert "at need" in done.stdout and "REMOVE: madvise(2) refused it, EINVAL" in done.stdout
    docker.remove(box)
