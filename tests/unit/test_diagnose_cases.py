"""The real cases of memory files and shared memory: what the diagnosis says of them, and what it must not say."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from rtdebug.diagnose.app_log import AppMessage
from rtdebug.diagnose.ask import read_messages
from rtdebug.diagnose.facts import Facts, HostFacts, Moment
from rtdebug.diagnose.finding import Finding, Severity
from rtdebug.diagnose.rules import diagnose
from rtdebug.host.memcg import MemoryState, read_memory
from rtdebug.host.thp import ThpSettings
from rtdebug.limits.demand import unreclaimable_bytes
from rtdebug.limits.problems import Facts as LimitFacts
from rtdebug.limits.settings import read_chain
from rtdebug.shm.limits import Limit, LimitKind
from rtdebug.shm.mounts import TmpfsMount
from rtdebug.shm.volumes import Volume, VolumeKind
from tests.unit.test_diagnose import MIB, WEB, left_behind, mount, report
from tests.unit.trees import make_host, write_files

yaml = pytest.importorskip("yaml")

CASES = Path(os.environ.get("RTDEBUG_CASES", Path(__file__).parents[2].parent / "shared" / "cases"))
GIB = 1 << 30
THP = ThpSettings("madvise", None, None, None, 2 * MIB, {}, {})
HOST = HostFacts({"MemTotal": 64 * GIB, "MemAvailable": 32 * GIB, "SwapFree": 0}, (), THP)

pytestmark = pytest.mark.skipif(not CASES.is_dir(), reason="the folder of real cases is not here (RTDEBUG_CASES)")


def expected_of(number: str):
    (path,) = CASES.glob(f"{number}-*.yaml")
    return yaml.safe_load(path.read_text())["expected"]


def files_of(number: str) -> list[Path]:
    return [path for path in sorted(CASES.glob(f"{number}-*")) if path.suffix != ".yaml"]


def text_of(number: str) -> str:
    return "\n".join(path.read_text() for path in files_of(number))


def kernel_files(number: str) -> dict[str, str]:
    """The kernel's files of a case, by their names."""
    return {path.name[path.name.index(".memory.") + 1 :]: path.read_text() for path in files_of(number)}


def container(folder: Path, version: int, files: dict[str, str], swap_free_bytes: int = 0) -> Facts:
    """A container whose memory cgroup has these files."""
    host = make_host(folder, version)
    write_files(host.folder / "cgroup/pods/web", {"cgroup.procs": "", **files})
    host.add_cgroup("/pods")
    chain = read_chain(host.hierarchy, "/pods/web")
    memory = chain[0].memory
    limits = LimitFacts(chain[:1], unreclaimable_bytes(memory, swap_free_bytes), 0, {})
    looks = (Moment(0, memory, {}), Moment(10**9, memory, {}))
    return Facts(container=WEB, host=HOST, shm=report(), limits=limits, before=looks[0], now=looks[1])


def found(facts: Facts) -> dict[str, Finding]:
    return {finding.rule: finding for finding in diagnose(facts)}


def memory_of(facts: Facts) -> MemoryState:
    assert facts.memory is not None
    return facts.memory


def sections(text: str) -> dict[str, str]:
    """`# memory.max` and what follows it."""
    parts = re.split(r"^# (\S+)[^\n]*\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


# Memory files -----------------------------------------------------------------------------------------


def test_060_a_small_container_full_of_dentries_is_kernel_memory_and_no_finding(tmp_path):
    expected = expected_of("060")
    parts = sections(text_of("060"))
    files = {name: parts[name] for name in ("memory.stat", "memory.usage_in_bytes", "memory.kmem.usage_in_bytes")}
    facts = container(tmp_path, 1, files)
    memory = memory_of(facts)
    assert (memory.usage_bytes, memory.anon_bytes) == (expected["usage_bytes"], expected["rss_bytes"])
    assert memory.dominant_kind == "kernel"
    assert memory.by_kind_bytes["kernel"] == expected["kmem_bytes"]
    assert found(facts) == {}, "17 MB of dentries are no leak and no danger"
    limited = container(tmp_path / "limited", 1, {**files, "memory.limit_in_bytes": f"{20 * MIB}\n"})
    assert found(limited)["kernel-memory"].evidence["kernel_bytes"] == expected["kmem_bytes"]


def test_062_a_healthy_container(tmp_path):
    expected = expected_of("062")
    facts = container(tmp_path, 1, kernel_files("062"))
    memory = memory_of(facts)
    assert (memory.dominant_kind, memory.working_set_bytes) == ("anon", expected["working_set_bytes"])
    assert memory.swap_limit_bytes == 0, "memory+swap is limited to the same: no swap"
    assert found(facts) == {}


def test_063_an_old_kernel_that_does_not_tell_shmem(tmp_path):
    expected = expected_of("063")
    files = {"memory.usage_in_bytes": f"{expected['rss_bytes'] + expected['cache_bytes']}\n", **kernel_files("063")}
    facts = container(tmp_path, 1, files)
    memory = memory_of(facts)
    assert memory.dominant_kind == "anon"
    assert "shmem" not in memory.by_kind_bytes
    assert memory.by_kind_bytes["file"] == expected["inactive_file_bytes"] + expected["active_file_bytes"]
    assert found(facts) == {}
    always = replace(facts, host=replace(HOST, thp=replace(THP, enabled="always")))
    assert "huge-pages-near-limit" not in found(always), "60 % of the limit is not near it"


def test_064_page_cache_is_no_leak(tmp_path):
    facts = container(tmp_path, 2, kernel_files("064"))
    expected = expected_of("064")
    memory = memory_of(facts)
    assert (memory.dominant_kind, memory.working_set_bytes) == ("file", expected["working_set_bytes"])
    assert memory.by_kind_bytes["file"] == expected["file_bytes"] - expected["shmem_bytes"]
    assert facts.limits is not None and facts.limits.limit_bytes is None
    assert found(facts) == {}


def test_065_stalls_of_the_past_are_told(tmp_path):
    facts = container(tmp_path, 2, kernel_files("065"))
    expected = expected_of("065")
    assert memory_of(facts).dominant_kind == expected["dominant"]
    (finding,) = diagnose(facts)
    assert (finding.rule, finding.severity) == ("stalled-before", Severity.NOTE)
    assert finding.evidence["stalled_s"] == round(expected["psi"]["some_total_us"] / 1e6)


def test_067_what_is_available_is_the_limit_less_the_usage(tmp_path):
    expected = expected_of("067")
    facts = container(tmp_path, 2, sections(text_of("067")))
    memory = memory_of(facts)
    assert memory.dominant_kind == expected["dominant"]
    assert facts.limits is not None and facts.limits.limit_bytes is not None and memory.usage_bytes is not None
    assert facts.limits.limit_bytes - memory.usage_bytes == expected["available_bytes"]
    assert sum(memory.by_kind_bytes.values()) <= memory.usage_bytes, "no key is counted twice"
    assert found(facts) == {}


def test_068_throttled_at_memory_high_without_any_oom(tmp_path):
    expected = expected_of("068")
    pod_a, pod_b = expected["podA"], expected["podB"]
    shown = []
    for number, (high_events, anon, file) in enumerate(
        zip(pod_a["high_events"], pod_a["anon_mib"], pod_a["file_mib"], strict=True)
    ):
        usage = re.findall(r"^current: ([\d.]+) GiB", text_of("068"), re.MULTILINE)[number]
        files = {
            "memory.current": f"{int(float(usage) * GIB)}\n",
            "memory.max": f"{4 * GIB}\n",
            "memory.high": f"{pod_a['memory_high_bytes']}\n",
            "memory.stat": f"anon {int(anon * MIB)}\nfile {int(file * MIB)}\nshmem 0\n",
            "memory.events": f"high {high_events}\nmax 0\noom 0\noom_kill {pod_a['oom_kill']}\n",
        }
        facts = container(tmp_path / str(number), 2, files)
        assert memory_of(facts).dominant_kind == "anon"
        shown.append(found(facts))
    assert "throttled-at-high" not in shown[0]
    for findings in shown[1:]:
        assert findings["throttled-at-high"].severity == Severity.CRITICAL
        assert not {"oom-killed", "oom-killed-before"} & set(findings)
    swap = int(pod_b["swap_gib"][-1] * GIB)
    files = {
        "memory.current": f"{int(2.570 * GIB)}\n",
        "memory.max": f"{5 * GIB}\n",
        "memory.high": f"{pod_b['memory_high_bytes']}\n",
        "memory.stat": f"anon {int(2619.5 * MIB)}\nfile 0\nshmem 0\n",
        "memory.events": f"high {pod_b['high_events'][-1]}\noom_kill 0\n",
        "memory.swap.current": f"{swap}\n",
        "memory.swap.max": f"{int(pod_b['swap_max_gib'] * GIB)}\n",
    }
    assert {"throttled-at-high", "swap-full"} <= set(found(container(tmp_path / "b", 2, files)))


def test_069_kills_are_counted_by_oom_kill_not_by_max(tmp_path):
    expected = expected_of("069")
    (events,) = [path for path in files_of("069") if ".after." in path.name]
    (before,) = [path for path in files_of("069") if ".before." in path.name]
    files = {
        "memory.current": f"{20 * MIB}\n",
        "memory.max": f"{64 * MIB}\n",
        "memory.stat": f"anon {MIB}\n",
        "memory.events": events.read_text(),
    }
    facts = container(tmp_path, 2, files)
    write_files(tmp_path / "then", {"memory.stat": "anon 0\n", "memory.events": before.read_text()})
    earlier = read_memory(tmp_path / "then")
    assert earlier is not None
    killed = found(facts)["oom-killed-before"].evidence["oom_kills"]
    assert killed - earlier.events.get("oom_kill", 0) == expected["processes_killed"] == expected["delta"]["oom_kill"]


def test_072_tmpfs_that_usage_less_cache_hides(tmp_path):
    expected = expected_of("072")
    keys = "cache|rss|shmem|inactive_anon|active_anon|inactive_file|active_file"
    stat = re.findall(rf"^({keys}) (\d+)$", text_of("072"), re.MULTILINE)
    numbers = dict(re.findall(r"^(usage_in_bytes|limit_in_bytes) (\d+)$", text_of("072"), re.MULTILINE))
    files = {
        "memory.stat": "".join(f"{key} {value}\ntotal_{key} {value}\n" for key, value in stat),
        **{f"memory.{name}": f"{value}\n" for name, value in numbers.items()},
    }
    facts = container(tmp_path, 1, files)
    memory = memory_of(facts)
    assert (memory.dominant_kind, memory.shmem_bytes) == ("shmem", expected["shmem_bytes"])
    assert memory.by_kind_bytes["file"] == 0
    assert facts.limits is not None and facts.limits.unreclaimable_bytes == expected["docker_stats_new_bytes"]
    finding = found(facts)["shm-fills-memory"]
    assert finding.evidence["shmem_bytes"] == expected["shmem_bytes"]


# Shared memory ----------------------------------------------------------------------------------------


def with_log(number: str, *mounts: TmpfsMount, **changes) -> dict[str, Finding]:
    return found(Facts(container=WEB, host=HOST, shm=report(*mounts), messages=messages_of(number), **changes))


def messages_of(number: str) -> tuple[AppMessage, ...]:
    return tuple(message for path in files_of(number) for message in read_messages(path))


@pytest.mark.parametrize(("number", "used"), [("081", 0), ("082", 0), ("084", 60), ("085", 0)])
def test_postgresql_asked_for_less_than_there_is_and_was_refused(number, used):
    expected = expected_of(number)
    refused = with_log(number, mount(size=64, used=used))["shm-refused"]
    assert refused.evidence["app"] == expected["app"]
    assert refused.evidence["largest_request_bytes"] == expected["request_bytes"]
    assert refused.evidence["shm_size_bytes"] == 64 * MIB
    assert "df shows afterwards is not the peak" in refused.cause
    assert any("--shm-size" in change for change in refused.change)


@pytest.mark.parametrize("number", ["086", "088"])
def test_every_wording_of_the_same_exhaustion(number):
    expected = expected_of(number)
    messages = messages_of(number)
    lines = [line for line in text_of(number).splitlines() if line.strip()]
    assert len(messages) == len(lines)
    assert {message.app for message in messages} == {expected["app"]}
    sizes = [message.request_bytes for message in messages if message.request_bytes]
    assert sizes == expected.get("sizes_bytes", [])
    refused = with_log(number, mount(size=64, used=1))["shm-refused"]
    assert refused.evidence["app"] == expected["app"]
    assert any("--shm-size=1g" in change for change in refused.change)
    if number == "088":
        assert expected["pid"] in {message.pid for message in messages}
        assert "bus error" in refused.cause


def test_090_an_empty_dir_that_shows_half_of_the_ram():
    expected = expected_of("090")
    size = expected["mount_size_gib"] * GIB
    half = Limit(LimitKind.HALF_OF_RAM, size, size)
    volume = Volume(VolumeKind.EMPTY_DIR, "dshm")
    shm = replace(mount(used=0), size_bytes=size, limits=(half,), volume=volume)
    findings = found(Facts(container=WEB, host=HOST, shm=report(shm)))
    assert set(findings) == {"emptydir-without-size"}
    finding = findings["emptydir-without-size"]
    assert finding.evidence["size_bytes"] == size
    assert "evicting" in finding.cause


def test_092_a_third_in_use_is_a_risk_and_no_proof():
    expected = expected_of("092")
    (finding,) = diagnose(Facts(container=WEB, host=HOST, shm=report(mount(size=64, used=expected["used_mib"]))))
    assert (finding.rule, finding.severity) == ("shm-small", Severity.WARNING)


def test_093_a_bus_error_with_less_than_the_size_in_use():
    expected = expected_of("093")
    free = expected["shm_size_bytes"] - expected["overhead_bytes"]
    assert free == expected["max_segment_bytes"]
    refused = with_log("093", replace(mount(size=64), used_bytes=expected["overhead_bytes"]))["shm-refused"]
    assert refused.evidence["shm_size_bytes"] == expected["shm_size_bytes"]
    assert "bus error" in refused.cause


def test_096_pages_stay_charged_to_who_touched_them_first(tmp_path):
    expected = expected_of("096")
    volume = Volume(VolumeKind.EMPTY_DIR, "empty_dir_volume")
    logs = replace(mount("/logs", used=300), size_bytes=expected["size_limit_bytes"], volume=volume)
    old = left_behind(300, name="/logs/old", charged_to=("/pods",), orphan=False)
    findings = found(Facts(container=WEB, host=HOST, shm=report(mount(), logs, objects=(old,))))
    assert set(findings) == {"shm-charged-elsewhere"}
    assert findings["shm-charged-elsewhere"].evidence["count_bytes"] == 300 * MIB
    assert "a restart frees none" in findings["shm-charged-elsewhere"].cause
    limit = {"memory.current": f"{MIB}\n", "memory.max": f"{expected['limit_bytes']}\n", "memory.stat": "anon 0\n"}
    facts = container(tmp_path, 2, limit)
    assert facts.limits is not None
    large = replace(facts.limits, tmpfs_size_bytes={"/logs": expected["size_limit_bytes"]})
    beyond = found(replace(facts, limits=large))["tmpfs-not-below-limit"]
    assert beyond.evidence["limit_bytes"] == expected["limit_bytes"], "sizeLimit 200Gi is no protection"


def test_097_a_memory_limit_does_not_enlarge_dev_shm(tmp_path):
    expected = expected_of("097")
    files = {
        "memory.current": f"{expected['written_bytes'] + MIB}\n",
        "memory.max": f"{expected['cgroup_limit_mib'] * MIB}\n",
        "memory.stat": f"anon {MIB}\nfile {expected['written_bytes']}\nshmem {expected['written_bytes']}\n",
    }
    dev = mount("/dev", size=64, used=0)
    full = replace(mount(size=64), used_bytes=expected["written_bytes"])
    facts = replace(container(tmp_path, 2, files), shm=report(dev, full), messages=messages_of("097"))
    findings = found(facts)
    assert findings["shm-full"].evidence["path"] == "/dev/shm"
    assert findings["shm-full"].evidence["size_bytes"] == expected["shm_size_bytes"]
    assert "shm-refused" in findings, "dd's own words"
    assert not {"shm-fills-memory", "limit-nearly-used-up"} & set(findings)
