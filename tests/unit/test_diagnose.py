"""Every rule of the diagnosis where it fires, and a near miss where it must not."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest

from rtdebug.containers.model import Container
from rtdebug.diagnose.app_log import read_app_log
from rtdebug.diagnose.ask import read_messages
from rtdebug.diagnose.facts import Asked, Facts, HostFacts, Moment, Neighbours, read_diagnosis
from rtdebug.diagnose.finding import Severity
from rtdebug.diagnose.rules import RULES, diagnose
from rtdebug.host.memcg import read_memory
from rtdebug.host.meminfo import BuddyZone
from rtdebug.host.thp import ThpSettings
from rtdebug.limits.problems import Command
from rtdebug.limits.problems import Facts as LimitFacts
from rtdebug.limits.settings import read_chain
from rtdebug.oom.episode import make_episode
from rtdebug.oom.kernel_log import read_oom_log
from rtdebug.render.diagnose import diagnosis_json, diagnosis_page, summary_table
from rtdebug.shm.limits import Limit, LimitKind
from rtdebug.shm.model import Creator, ObjectKind, ShmObject
from rtdebug.shm.mounts import TmpfsMount
from rtdebug.shm.report import ShmReport
from rtdebug.shm.volumes import Volume, VolumeKind
from tests.unit.trees import make_host

MIB = 1 << 20
GIB = 1 << 30
WEB = Container("c0ffee", "web", "docker", 7, "running", "/pods/web")
POSTGRES = 'ERROR:  could not resize shared memory segment "/PostgreSQL.7" to 31457280 bytes: No space left on device'
OOM_LOG = """\
[  100.000001] eater invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0
[  100.000002] memory: usage 102400kB, limit 102400kB, failcnt 77
[  100.000003] Memory cgroup stats for /pods/web:
[  100.000004] anon 95420416
[  100.000005] file 0
[  100.000006] shmem 0
[  100.000007] Tasks state (memory values in pages):
[  100.000008] [  pid  ]   uid  tgid total_vm      rss pgtables_bytes swapents oom_score_adj name
[  100.000009] [   4711]     0  4711    30000    23500   200704        0             0 eater
[  100.000010] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=web,mems_allowed=0,oom_memcg=/pods/web,\
task_memcg=/pods/web,task=eater,pid=4711,uid=0
[  100.000011] Memory cgroup out of memory: Killed process 4711 (eater) total-vm:120000kB, anon-rss:93000kB, \
file-rss:1000kB, shmem-rss:0kB, UID:0 pgtables:196kB oom_score_adj:0
"""


@dataclass(frozen=True)
class World:
    """A container on cgroup v2 that is well: no rule finds anything."""

    folder: object
    usage: int = 100
    limit: int | str = 400
    high: int | str = "max"
    anon: int = 60
    shmem: int = 0
    kernel: int = 5
    events: str = "oom_kill 0\n"
    parent_limit: int | str = "max"
    parent_events: str = "max 0\n"
    swap: int = 0
    swap_max: int = 0
    pressure: str = ""

    def facts(self, **changes) -> Facts:
        host = make_host(self.folder, 2)
        host.add_cgroup("/pods", **self._files(self.parent_limit, self.parent_events))
        host.add_cgroup("/pods/web", **self._files(self.limit, self.events, self.high))
        chain = read_chain(host.hierarchy, "/pods/web")
        needed = (self.anon + self.shmem) * MIB
        limits = LimitFacts(chain, unreclaimable_bytes=needed, swap_total_bytes=0, tmpfs_size_bytes={})
        moment = Moment(0, chain[0].memory, {"compact_stall": 0})
        well = Facts(
            container=WEB,
            host=HostFacts(
                {"MemTotal": 16 * GIB, "MemAvailable": 8 * GIB, "SwapFree": 0},
                (BuddyZone(0, "Normal", (0,) * 9 + (5, 5)),),
                ThpSettings("madvise", None, None, None, 2 * MIB, {}, {}),
            ),
            shm=report(),
            limits=limits,
            before=moment,
            now=replace(moment, time_ns=10**9),
            neighbours=Neighbours(3, 3 * GIB, 0),
        )
        return replace(well, **changes)

    def _files(self, limit, events, high="max"):
        def text(value):
            return f"{value}\n" if isinstance(value, str) else f"{value * MIB}\n"

        files = {
            "memory_current": text(self.usage),
            "memory_max": text(limit),
            "memory_high": text(high),
            "memory_low": "0\n",
            "memory_min": "0\n",
            "memory_peak": text(self.usage),
            "memory_swap.current": text(self.swap),
            "memory_swap.max": text(self.swap_max),
            "memory_events": events,
            "memory_events.local": events,
            "memory_stat": (
                f"anon {self.anon * MIB}\nfile {20 * MIB}\nshmem {self.shmem * MIB}\nkernel {self.kernel * MIB}\n"
                "pgmajfault 0\nworkingset_refault_anon 0\nworkingset_refault_file 0\nanon_thp 0\n"
            ),
        }
        return files | ({"memory_pressure": self.pressure} if self.pressure else {})


def mount(path="/dev/shm", size=256, used=1, **changes) -> TmpfsMount:
    limits = (Limit(LimitKind.MOUNT_SIZE, size * MIB, (size - used) * MIB),)
    whole = TmpfsMount(
        path=path, also_at=(), source="shm", root="/", device_id=66, is_file=False, covered=False,
        size_bytes=size * MIB, used_bytes=used * MIB, inodes=1000, inodes_left=900, options={}, read_only=False,
        volume=Volume(VolumeKind.CONTAINER), limits=limits,
    )  # fmt: skip
    return replace(whole, **changes)


def report(*mounts: TmpfsMount, objects: tuple[ShmObject, ...] = ()) -> ShmReport:
    return ShmReport(WEB, 7, 0, mounts or (mount(),), objects, "tmpfs", frozenset(), True, ())


def left_behind(mib: int, **changes) -> ShmObject:
    whole = ShmObject(
        kind=ObjectKind.POSIX, name="/dev/shm/psm_1", device_id=66, inode_id=5, size_bytes=mib * MIB,
        allocated_bytes=mib * MIB, creator=Creator(0), changed_ns=0, charged_to=("/pods/web",), mappers=(),
        holders=(), attached=None, orphan=True, shared=False,
    )  # fmt: skip
    return replace(whole, **changes)


def grown(facts: Facts, refaults: int = 0, faults: int = 0, stalls: int = 0) -> Facts:
    assert facts.now is not None
    memory = facts.now.memory
    stat = {**memory.stat, "workingset_refault_file": refaults, "pgmajfault": faults}
    return replace(facts, now=replace(facts.now, memory=replace(memory, stat=stat), vmstat={"compact_stall": stalls}))


def with_commands(facts: Facts, *commands: tuple[str, ...]) -> Facts:
    assert facts.limits is not None
    limits = replace(facts.limits, commands=tuple(Command(9, command) for command in commands))
    return replace(facts, limits=limits)


def messages(*lines: str):
    return tuple(read_app_log(lines))


def episodes(text: str = OOM_LOG):
    return tuple(map(make_episode, read_oom_log(text.splitlines())))


def pressure(avg10: float, total_us: int) -> str:
    return "".join(f"{kind} avg10={avg10} avg60=0.00 avg300=0.00 total={total_us}\n" for kind in ("some", "full"))


def host(facts: Facts, available: int, **changes) -> Facts:
    meminfo = {**facts.host.meminfo, "MemAvailable": available}
    return replace(facts, host=replace(facts.host, meminfo=meminfo, **changes))


THP = ThpSettings("always", "madvise", None, None, 2 * MIB, {"max_ptes_none": 511}, {})


def thp(folder, **options) -> Facts:
    world = World(folder, anon=340, **options)
    facts = world.facts()
    assert facts.now is not None
    memory = facts.now.memory
    huge = replace(facts.now, memory=replace(memory, stat={**memory.stat, "anon_thp": 200 * MIB}))
    return replace(facts, now=huge, host=replace(facts.host, thp=THP))


Make = Callable[[object], Facts]
EMPTY_DIR = Volume(VolumeKind.EMPTY_DIR, "cache", "uid-1")
HALF = (Limit(LimitKind.HALF_OF_RAM, 8 * GIB, 8 * GIB),)

CASES: list[tuple[str, Make, Make]] = [
    (
        "oom-killed",
        lambda f: World(f).facts(episodes=episodes()),
        lambda f: World(f).facts(episodes=episodes("[ 1.0] nothing of interest\n")),
    ),
    (
        "oom-killed-before",
        lambda f: World(f, events="oom_kill 2\n").facts(),
        lambda f: World(f, events="oom_kill 2\n").facts(episodes=episodes()),
    ),
    (
        "parent-limit-hit",
        lambda f: World(f, parent_limit=300, parent_events="max 9\n").facts(),
        lambda f: World(f, parent_limit=500, parent_events="max 9\n").facts(),
    ),
    (
        "shm-refused",
        lambda f: World(f).facts(messages=messages(POSTGRES)),
        lambda f: World(f).facts(messages=messages("LOG:  checkpoint complete: shared memory is fine")),
    ),
    (
        "emptydir-evicted",
        lambda f: World(f).facts(messages=messages('Usage of EmptyDir volume "cache" exceeds the limit "4Gi".')),
        lambda f: World(f).facts(messages=messages("emptyDir volumes: cache 4Gi")),
    ),
    (
        "shm-full",
        lambda f: World(f).facts(shm=report(mount(used=250))),
        lambda f: World(f).facts(shm=report(mount(used=240))),
    ),
    (
        "shm-full",
        lambda f: World(f).facts(shm=report(mount(), mount("/cache", 64, 64))),
        lambda f: World(f).facts(shm=report(mount("/sys/fs/cgroup", 64, 64), mount("/x", 9, 9, read_only=True))),
    ),
    (
        "shm-out-of-inodes",
        lambda f: World(f).facts(shm=report(mount(inodes_left=0))),
        lambda f: World(f).facts(shm=report(mount(inodes_left=0, inodes=None))),
    ),
    (
        "shm-small",
        lambda f: World(f).facts(shm=report(mount(size=64, used=20))),
        lambda f: World(f).facts(shm=report(mount(size=64, used=15))),
    ),
    (
        "shm-small",
        lambda f: with_commands(World(f).facts(shm=report(mount(size=64))), ("python3", "-m", "vllm.entrypoints")),
        lambda f: with_commands(World(f).facts(shm=report(mount(size=1024))), ("python3", "-m", "vllm.entrypoints")),
    ),
    (
        "shm-orphans",
        lambda f: World(f).facts(shm=report(objects=(left_behind(30),))),
        lambda f: World(f).facts(shm=report(objects=(left_behind(20), left_behind(99, orphan=False)))),
    ),
    (
        "shm-fills-memory",
        lambda f: World(f, shmem=200).facts(),
        lambda f: World(f, shmem=199).facts(),
    ),
    (
        "emptydir-without-size",
        lambda f: World(f).facts(shm=report(mount("/cache", 8192, volume=EMPTY_DIR, limits=HALF))),
        lambda f: World(f).facts(shm=report(mount("/cache", 1024, volume=EMPTY_DIR))),
    ),
    (
        "shm-charged-elsewhere",
        lambda f: World(f).facts(shm=report(objects=(left_behind(16, orphan=False, charged_to=("/pods",)),))),
        lambda f: World(f).facts(shm=report(objects=(left_behind(16, orphan=False, charged_to=("/pods/web/x",)),))),
    ),
    (
        "throttled-at-high",
        lambda f: World(f, usage=200, high=200, events="high 9\noom_kill 0\n").facts(),
        lambda f: World(f, usage=190, high=200, events="high 9\noom_kill 0\n").facts(),
    ),
    ("swap-full", lambda f: World(f, swap=96, swap_max=100).facts(), lambda f: World(f, swap=94, swap_max=100).facts()),
    (
        "thrashing",
        lambda f: grown(World(f).facts(), refaults=300, faults=120),
        lambda f: grown(World(f).facts(), refaults=300, faults=80),
    ),
    (
        "stalled",
        lambda f: World(f, pressure=pressure(12.0, 10)).facts(),
        lambda f: World(f, pressure=pressure(9.0, 10)).facts(),
    ),
    (
        "stalled-before",
        lambda f: World(f, pressure=pressure(0.0, 70_000_000)).facts(),
        lambda f: World(f, pressure=pressure(0.0, 50_000_000)).facts(),
    ),
    (
        "kernel-memory",
        lambda f: World(f, usage=300, kernel=210).facts(),
        lambda f: World(f, usage=300, kernel=190).facts(),
    ),
    ("parent-below-child", lambda f: World(f, parent_limit=300).facts(), lambda f: World(f, parent_limit=400).facts()),
    ("limit-nearly-used-up", lambda f: World(f, anon=360).facts(), lambda f: World(f, anon=350).facts()),
    ("huge-pages-near-limit", lambda f: thp(f), lambda f: thp(f, limit=500)),
    (
        "host-overcommitted",
        lambda f: host(World(f).facts(neighbours=Neighbours(9, 20 * GIB, 0)), 3 * GIB),
        lambda f: host(World(f).facts(neighbours=Neighbours(9, 20 * GIB, 0)), 4 * GIB),
    ),
    ("host-out-of-memory", lambda f: host(World(f).facts(), GIB // 2), lambda f: host(World(f).facts(), GIB)),
    (
        "fragmented",
        lambda f: host(grown(World(f).facts(), stalls=3), 8 * GIB, buddy=(BuddyZone(0, "Normal", (9,) * 9 + (0, 0)),)),
        lambda f: host(grown(World(f).facts(), stalls=3), 8 * GIB, buddy=(BuddyZone(0, "Normal", (9,) * 9 + (0, 1)),)),
    ),
]


def rules(facts: Facts) -> set[str]:
    return {finding.rule for finding in diagnose(facts)}


@pytest.mark.parametrize(("rule", "fires", "misses"), CASES, ids=[f"{n}-{case[0]}" for n, case in enumerate(CASES)])
def test_each_rule_fires_and_has_a_near_miss(tmp_path, rule, fires, misses):
    found = [finding for finding in diagnose(fires(tmp_path / "fires")) if finding.rule == rule]
    assert len(found) == 1
    assert any(value is not None for value in found[0].evidence.values())
    assert found[0].change
    assert rule not in rules(misses(tmp_path / "misses"))


def test_a_container_that_is_well_has_no_finding(tmp_path):
    assert diagnose(World(tmp_path).facts()) == ()


def test_a_container_without_a_limit_has_no_finding(tmp_path):
    assert diagnose(World(tmp_path, limit="max").facts()) == ()


def test_nothing_known_is_nothing_found():
    assert diagnose(Facts(None, HostFacts({}, (), None))) == ()


def test_every_rule_is_tested():
    texts = {rule.__name__ for rule in RULES}
    assert len(texts) == len(RULES)
    covered = {case[0] for case in CASES} | {"hung-at-limit"}
    assert len(covered) >= len(RULES)  # wrong_limits gives several


def test_hung_at_the_limit(tmp_path):
    folder = tmp_path / "v1"
    v1 = make_host(folder, 1)
    control = "oom_kill_disable 1\nunder_oom {}\noom_kill 0\n"
    for name, under in (("stuck", 1), ("fine", 0)):
        path = v1.add_cgroup(
            f"/{name}",
            memory_usage_in_bytes=f"{100 * MIB}\n",
            memory_limit_in_bytes=f"{100 * MIB}\n",
            memory_oom_control=control.format(under),
        )
        memory = read_memory(path)
        assert memory is not None
        facts = World(tmp_path / f"v2{name}").facts()
        assert facts.now is not None
        assert ("hung-at-limit" in rules(replace(facts, now=replace(facts.now, memory=memory)))) is bool(under)


def test_the_worst_comes_first(tmp_path):
    facts = World(tmp_path, shmem=200, pressure=pressure(0.0, 70_000_000)).facts(shm=report(mount(used=256)))
    order = [finding.severity for finding in diagnose(facts)]
    assert order == sorted(order, key=list(Severity).index)
    assert len(set(order)) == 3


def test_the_change_fits_the_memory_limit(tmp_path):
    facts = World(tmp_path, usage=90, limit=100, anon=20, shmem=64).facts(shm=report(mount(size=64, used=64)))
    (full,) = [finding for finding in diagnose(facts) if finding.rule == "shm-full"]
    assert "docker run --shm-size=128m" in full.change
    assert any("a memory limit of" in change for change in full.change)


def test_after_the_death_of_the_container(tmp_path):
    facts = Facts(None, World(tmp_path).facts().host, episodes=episodes())
    (finding,) = diagnose(facts)
    assert finding.evidence["victim"] == "eater (pid 4711)"
    assert finding.evidence["limit_of"] == "/pods/web"
    page = "\n".join(diagnosis_page("web", facts, (finding,)))
    assert "does not run now" in page
    assert "eater (pid 4711) was OOM-killed" in " ".join(page.split())


@pytest.mark.parametrize(
    ("line", "app", "event", "asked_bytes"),
    [
        (POSTGRES, "postgresql", "no_space", 31457280),
        ("could not resize shared memory segment to 12345 bytes: No space", "postgresql", "no_space", 12345),
        ("NCCL WARN Error while creating shared memory segment nccl-shm-x-1 (size 999)", "nccl", "no_space", 999),
        ("NCCL WARN Error: failed to extend /dev/shm/nccl-aB to 777 bytes, error: x", "nccl", "no_space", 777),
        ("RuntimeError: DataLoader worker (pid 12) is killed by signal: Bus error. x", "pytorch", "bus_error", None),
        ("DataLoader worker (pid(s) 12, 13) is killed by signal: Bus error", "pytorch", "bus_error", None),
        ("RuntimeError: unable to write to file </torch_1_2>", "pytorch", "no_space", None),
        ("unable to mmap 4096 bytes from file </torch_1_2>: x", "pytorch", "no_space", 4096),
        ("OSError: [Errno 28] shm_open: No space left on device", None, "no_space", None),
        ("Bus error (core dumped)", None, "bus_error", None),
        ("No space left on device: /var/log/x", None, None, None),
        ("the omnibus error handler", None, None, None),
    ],
)
def test_what_programs_say(tmp_path, line, app, event, asked_bytes):
    found = [(each.app, each.event, each.request_bytes) for each in read_app_log([line + "\n"])]
    assert found == ([(app, event, asked_bytes)] if event else [])
    (tmp_path / "log").write_text(f"before\n{line}\nafter\n")
    assert [each.text for each in read_messages(tmp_path / "log")] == ([line] if event else [])


def test_a_log_is_read_in_bounded_memory(tmp_path):
    log = tmp_path / "log"
    with log.open("wb") as file:
        for _ in range(64):  # one line of 64 MiB, then what counts
            file.write(b"\xffx" * (MIB // 2))
        file.write(f"\n{POSTGRES}\n".encode())
    tracemalloc.start()
    try:
        (message,) = read_messages(log)
        assert tracemalloc.get_traced_memory()[1] < 4 * MIB
    finally:
        tracemalloc.stop()
    assert message.app == "postgresql"


@pytest.mark.parametrize("option", ["--app-log", "--kernel-log"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_log_that_never_ends_can_be_left(option, number):
    argv = [sys.executable, "-m", "rtdebug", "diagnose", "cgroup:/", option, "/dev/zero"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            time.sleep(2)
            process.send_signal(number)
            _, said = process.communicate(timeout=10)
        finally:
            process.kill()
    assert process.returncode != 0
    assert b"Traceback" not in said


@pytest.mark.parametrize(
    ("status", "has_cgroup", "words"),
    [
        ("running", True, "100 MiB in use with a limit of 400 MiB (60% anon)"),  # cgroup:PATH: without a first process
        ("stopped", True, "100 MiB in use"),  # a cgroup without processes still holds memory
        ("stopped", False, "does not run now"),
        ("running", False, "no memory cgroup of its own"),  # the root
    ],
)
def test_what_is_said_of_its_state(tmp_path, status, has_cgroup, words):
    target = replace(WEB, pid=None, status=status)
    facts = World(tmp_path).facts(container=target)
    if not has_cgroup:
        facts = replace(facts, limits=None, before=None, now=None)
    assert words in " ".join(diagnosis_page("x", facts, ()))


def test_a_process_of_the_host_is_not_blamed_for_the_volumes_of_containers(tmp_path):
    path = f"/var/lib/containers/storage/overlay-containers/{'a' * 64}/userdata/shm"
    kept = Volume(VolumeKind.RUNTIME, host_path=path)
    full = mount(path, 8, 8, volume=kept)
    assert rules(World(tmp_path).facts(shm=report(mount(), full))) == set()
    inside = replace(full, path="/dev/shm")
    assert "shm-full" in rules(World(tmp_path / "b").facts(shm=report(inside)))


def test_what_was_left_behind_is_removed_before_it_is_made_larger(tmp_path):
    full = World(tmp_path).facts(shm=report(mount(size=64, used=64), objects=(left_behind(60),)))
    change = next(each.change for each in diagnose(full) if each.rule == "shm-full")
    assert "--remove-orphans" in change[0]
    assert "--shm-size" in change[1]
    others = left_behind(60, device_id=1)
    elsewhere = World(tmp_path / "b").facts(shm=report(mount(size=64, used=64), objects=(others,)))
    change = next(each.change for each in diagnose(elsewhere) if each.rule == "shm-full")
    assert "--shm-size" in change[0]


def test_proposed_commands_name_the_container(tmp_path):
    kills = tuple(replace(each, verdict=replace(each.verdict, kind="anon", advice="")) for each in episodes())
    running = World(tmp_path, anon=360).facts(episodes=kills)
    change = {each.rule: each.change for each in diagnose(running)}
    assert change["oom-killed"] == ("rtdebug: rtdebug limits web proposes a limit, and the line that sets it",)
    assert change["limit-nearly-used-up"] == change["oom-killed"]
    down = replace(running, container=replace(WEB, name="a b", status="stopped"), limits=None, shm=None)
    (line,) = next(each.change for each in diagnose(down) if each.rule == "oom-killed")
    assert line.startswith("rtdebug: when it runs again, rtdebug limits 'a b' proposes")


def test_hostile_lines_of_a_log():
    assert list(read_app_log(["x" * 10**6, "\x00\x1b[31m", "to " + "9" * 500 + " bytes"])) == []
    (found,) = read_app_log(["could not resize shared memory segment to " + "9" * 400 + " bytes"])
    assert found.request_bytes is None


def test_the_document(tmp_path):
    facts = World(tmp_path).facts(shm=report(mount("/dev/shm", 64, 64)), notes=("no \x1b[31m colour",))
    findings = diagnose(facts)
    document = json.loads(diagnosis_json("web", facts, findings))
    assert document["container_name"] == "web"
    assert {"rule", "severity", "cause", "evidence", "change"} <= set(document["findings"][0])
    assert document["findings"][0]["severity"] in [severity.value for severity in Severity]
    page = "\n".join(diagnosis_page("web", facts, findings))
    assert "\x1b" not in page


def test_braces_in_a_path_are_no_figures(tmp_path):
    facts = World(tmp_path).facts(shm=report(mount("/{used_bytes}{x!r}", 64, 64)))
    (finding,) = diagnose(facts)
    assert "/{used_bytes}{x!r} is full" in json.loads(diagnosis_json("w", facts, (finding,)))["findings"][0]["cause"]


def test_the_list_of_all(tmp_path):
    well = World(tmp_path / "a").facts()
    ill = World(tmp_path / "b").facts(shm=report(mount(used=256)))
    text = summary_table([(well, diagnose(well)), (ill, diagnose(ill))])
    assert "shm-full" in text
    assert "1 of 2 containers: nothing found." in text
    worse = replace(ill, shm=report(mount(used=256), mount("/b", used=256)), notes=("no \x1b right", "x"))
    text = summary_table([(each, diagnose(each)) for each in (ill, worse)])
    assert [line.split()[1] for line in text.splitlines()[1:3]] == ["2", "1"], "the worst first"
    assert r"note: of 1 not all could be looked at: no \x1b right" in text


def test_data_that_waits_in_sockets_is_kernel_memory_but_no_files(tmp_path):
    host = World(tmp_path, usage=300).facts()
    memory = replace(host.now.memory, stat={**host.now.memory.stat, "sock": 210 * MIB})
    findings = {each.rule: each for each in diagnose(replace(host, now=Moment(10**9, memory, {})))}
    finding = findings["kernel-memory"]
    assert finding.evidence["sock_bytes"] == 210 * MIB
    assert not any("files" in change for change in finding.change)


def test_pages_are_as_large_as_this_kernels(monkeypatch):
    monkeypatch.setattr("rtdebug.diagnose.facts.os.sysconf", lambda name: 65536 if name == "SC_PAGE_SIZE" else 0)
    around = SimpleNamespace(episodes=(), neighbours=None)
    assert read_diagnosis(Asked("web", None, None), around, 0).host.page_bytes == 65536
