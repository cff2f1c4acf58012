"""Peaks and the size to ask for; also for the public reports of too small a /dev/shm."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from rtdebug.errors import RtdebugError
from rtdebug.host.mounts import parse_mountinfo, tmpfs_size_bytes
from rtdebug.shm.advice import MountPeak, advise, as_option, round_up
from rtdebug.shm.limits import LimitKind
from rtdebug.shm.volumes import Volume, VolumeKind
from rtdebug.shm.watch import Watch, watch_sizes
from rtdebug.tracing.line import EventLine
from tests.unit.shm_things import MIB, container, found, limit, mount, report

yaml = pytest.importorskip("yaml")

GIB = 1 << 30
CASES = Path(os.environ.get("RTDEBUG_CASES", Path(__file__).parents[2].parent / "shared" / "cases"))


@pytest.mark.parametrize(
    ("size", "rounded", "option"),
    [
        (0, 64 * MIB, "64m"),
        (64 * MIB, 64 * MIB, "64m"),
        (64 * MIB + 1, 128 * MIB, "128m"),
        (GIB, GIB, "1g"),
        (GIB + 1, 1280 * MIB, "1280m"),
        (4 * GIB + 1, 5 * GIB, "5g"),
    ],
)
def test_rounded_to_what_people_write(size, rounded, option):
    assert (round_up(size), as_option(round_up(size))) == (rounded, option)


def test_a_peak_far_below_the_size_asks_for_nothing():
    advice = advise(MountPeak(mount(), 20 * MIB))
    assert advice is not None and (advice.enough, advice.size_bytes, advice.change) == (True, 64 * MIB, ())


def test_a_peak_near_the_size_asks_for_more():
    """50 of 64 MiB: half as much again is 75, so 128."""
    advice = advise(MountPeak(mount(), 50 * MIB))
    assert advice is not None and (advice.enough, advice.size_bytes) == (False, 128 * MIB)
    assert advice.change[0] == "docker run --shm-size=128m"
    assert "sizeLimit: 128Mi" in advice.change[-1]


def test_full_at_a_look_counts_as_full_without_any_event():
    advice = advise(MountPeak(mount(), 64 * MIB))
    assert advice is not None and (advice.enough, advice.size_bytes) == (False, 128 * MIB)
    assert any("twice that" in reason for reason in advice.reasons)


def test_what_orphans_take_is_said():
    seen = watch(mount(used_bytes=60 * MIB))
    (advice,) = seen.advice()
    assert any(reason.startswith("5 MiB of it are orphans") for reason in advice.reasons)
    advised = advise(MountPeak(mount(), 60 * MIB))
    assert advised is not None and not any("orphan" in reason for reason in advised.reasons)


def test_the_memory_limit_must_hold_it_too():
    tight = limit(LimitKind.MEMORY_CGROUP, 128 * MIB, 40 * MIB, "/docker/web")
    advice = advise(MountPeak(mount(limits=(limit(), tight)), 64 * MIB))
    assert advice is not None
    # 128 MiB less the 10 in use are 118 more, 40 are left: 78 are missing
    assert "raise that by 128 MiB at least" in advice.reasons[-1]
    roomy = replace(tight, left_bytes=118 * MIB)
    advice = advise(MountPeak(mount(limits=(limit(), roomy)), 64 * MIB))
    assert advice is not None and "which has room" in advice.reasons[-1]


@pytest.mark.parametrize(
    ("changes", "change"),
    [
        ({"volume": Volume(VolumeKind.EMPTY_DIR, "dshm")}, "pod: emptyDir: {medium: Memory, sizeLimit: 128Mi}"),
        ({"volume": Volume(VolumeKind.HOST, host_path="/dev/shm")}, "mount -o remount,size=128m /dev/shm"),
        ({"path": "/cache"}, "docker run --tmpfs /cache:size=128m"),
    ],
)
def test_how_to_set_it(changes, change):
    advice = advise(MountPeak(mount(**changes), 64 * MIB))
    assert advice is not None and advice.change[0].startswith(change)


@pytest.mark.parametrize("peak", [MountPeak(mount(), None), MountPeak(mount(read_only=True), MIB)])
def test_nothing_known_nothing_advised(peak):
    assert advise(peak) is None


# Watching -------------------------------------------------------------------------------------------


def event(name, **fields):
    return EventLine(
        0, name, "c", "web", "docker", "/docker/web", 4711, 1, 4711, "python3", {"device_id": 159} | fields
    )  # fmt: skip


def watch(*mounts):
    """A watch that looks at one of `mounts` after the other."""
    looks = iter([*mounts, *[mounts[-1]] * 100])
    return Watch(lambda: report(mounts=(next(looks),)), lambda: (next(looks),))


def test_the_peak_stays():
    seen = watch(mount(used_bytes=10 * MIB), mount(used_bytes=30 * MIB), mount(used_bytes=2 * MIB))
    assert seen.sample() and seen.sample()
    (peak,) = seen.peaks
    assert (peak.peak_bytes, peak.mount.used_bytes, peak.was_full) == (30 * MIB, 2 * MIB, False)


def test_a_failure_tells_what_no_look_saw():
    seen = watch(mount(used_bytes=0))
    seen.add(event("shm_full", used_bytes=60 * MIB, size_bytes=64 * MIB, length_bytes=16 * MIB))
    seen.add(event("shm_full", used_bytes=63 * MIB, size_bytes=64 * MIB, length_bytes=MIB * 2))
    (peak,) = seen.peaks
    assert (peak.times_full, peak.peak_bytes, peak.demand_bytes) == (2, 63 * MIB, 76 * MIB)


def test_a_bus_error_asks_for_the_rest_of_the_file():
    fields = {"file_length_bytes": 100 * MIB, "file_offset_bytes": 60 * MIB, "used_bytes": 63 * MIB}
    seen = watch(mount())
    seen.add(event("sigbus", reason="beyond_end_of_file", **fields))
    assert seen.peaks[0].times_full == 0
    seen.add(event("sigbus", reason="tmpfs_full", **fields))
    assert (seen.peaks[0].times_full, seen.peaks[0].demand_bytes) == (1, 104 * MIB)


def test_another_tmpfs_is_another_matter():
    seen = watch(mount())
    seen.add(event("shm_full", device_id=160, used_bytes=MIB))
    assert seen.peaks[0].times_full == 0


def test_device_ids_of_events_are_the_kernels():
    """major << 20 | minor there, st_dev here."""
    seen = watch(mount(device_id=os.makedev(0, 300)))
    seen.add(event("shm_full", device_id=300, used_bytes=MIB))
    assert seen.peaks[0].times_full == 1


def test_who_made_it():
    seen = watch(mount())
    seen.add(event("shm_open", created=False, inode_id=7))
    assert next(iter(seen.objects)).creator.pid is None
    seen.add(event("shm_open", created=True, inode_id=7))
    (each,) = seen.objects
    assert (each.creator.pid, each.creator.comm, each.creator.uid) == (4711, "python3", found().creator.uid)


def test_the_end_of_the_container_ends_it():
    def gone():
        raise RtdebugError("process 100 shows no mounts")

    first = iter([report()])
    seen = Watch(lambda: next(first, None) or gone(), gone)
    shown = []
    watch_sizes(seen, lambda: shown.append(1), None)
    assert shown == []
    assert seen.advice()[0].path == "/dev/shm"


def test_a_duration_ends_it():
    shown = []
    watch_sizes(watch(mount()), lambda: shown.append(1), duration_s=0.05, interval_s=0.02)
    assert 2 <= len(shown) <= 6


# The public reports ---------------------------------------------------------------------------------


def case(name):
    paths = sorted(CASES.glob(f"{name}-*.yaml"))
    if not paths:
        pytest.skip(f"no case {name} here: set RTDEBUG_CASES")
    described = yaml.safe_load(paths[0].read_text())
    return described, [CASES / file for file in described["files"]]


@pytest.mark.parametrize("name", ["081", "082", "084", "085"])
def test_reports_of_a_request_that_failed(name):
    """The request alone would fit: what else was in use, nobody saw. It failed, so the size is not enough."""
    expected = case(name)[0]["expected"]
    size = expected.get("shm_size_bytes") or expected.get("shm_size_mib", 64) * MIB
    request = expected["request_bytes"]
    assert request < size
    seen = watch(mount(size_bytes=size, used_bytes=0))
    seen.add(event("shm_full", used_bytes=size - request + 4096, size_bytes=size, length_bytes=request))
    (advice,) = seen.advice()
    assert (advice.enough, advice.size_bytes) == (False, round_up(2 * (size + 4096)))


def test_a_report_of_31_per_cent_is_neither_proof_nor_all_clear():
    expected = case("092")[0]["expected"]
    peak = MountPeak(mount(used_bytes=expected["used_mib"] * MIB), expected["used_mib"] * MIB)
    advice = advise(peak)
    assert advice is not None and advice.enough and not peak.was_full
    assert any("not seen while watching" in reason for reason in advice.reasons)


def test_forms_of_mountinfo():
    described, (file,) = case("095")
    entries = [entry for entry in described["expected"]["entries"] if entry.get("fstype")]
    parsed = parse_mountinfo(file.read_text())
    assert [(each.source, each.fstype, tmpfs_size_bytes(each)) for each in parsed] == [
        (entry["source"], entry["fstype"], entry["size_kb"] << 10) for entry in entries if "format" not in entry
    ]


def test_a_memory_limit_does_not_change_the_size():
    """docker --memory 8g: /dev/shm still has 64 MiB, and is the first to end."""
    described, files = case("097")
    expected = described["expected"]
    written = int(re.findall(r"^(\d+) bytes", files[1].read_text() + files[0].read_text(), re.MULTILINE)[0])
    assert written == expected["shm_size_bytes"]
    memory = limit(LimitKind.MEMORY_CGROUP, expected["cgroup_limit_mib"] * MIB, 8000 * MIB, "/docker/x")
    full = mount(used_bytes=written, limits=(limit(left_bytes=64 * MIB - written), memory))
    assert (full.limited_by, full.left_bytes) == (LimitKind.MOUNT_SIZE, 0)
    assert container().is_running
