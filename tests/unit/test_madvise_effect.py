from __future__ import annotations

import json
from dataclasses import replace

import pytest

from rtdebug.errors import UsageProblem
from rtdebug.host.maps import parse_smaps
from rtdebug.host.thp import ThpSettings
from rtdebug.madvise.advice import find_advice
from rtdebug.madvise.apply import Applied, TakenBack
from rtdebug.madvise.apply_plan import Plan, _check_data, _undo_of
from rtdebug.madvise.effect import Effect, RangeState, judge, range_state
from rtdebug.madvise.guard import GuardLimits, GuardReading, too_near, too_strained
from rtdebug.madvise.waiting import wait
from rtdebug.render.madvise_apply import applied_json, applied_text, plan_text, taken_back_text
from tests.unit.test_madvise_list import KIB, MIB, THP, entry

BEFORE = RangeState(100, 0, 0, 100, 0, ("rd", "wr"))


@pytest.mark.parametrize(
    ("advice", "changed", "took"),
    [
        ("HUGEPAGE", {"vm_flags": ("rd", "hg")}, True),
        ("HUGEPAGE", {}, False),
        ("NOHUGEPAGE", {"vm_flags": ("nh",)}, True),
        ("DODUMP", {}, True),
        ("DODUMP", {"vm_flags": ("dd",)}, False),
        ("NORMAL", {"vm_flags": ("sr",)}, False),
        ("MERGEABLE", {"vm_flags": None}, None),
        ("COLLAPSE", {"huge_bytes": 50}, True),
        ("COLLAPSE", {}, False),
        ("COLLAPSE", {"huge_bytes": None}, None),
        ("COLD", {"referenced_bytes": 0}, True),
        ("PAGEOUT", {"rss_bytes": 40}, True),
        ("PAGEOUT", {}, False),
        ("FREE", {"lazyfree_bytes": 60}, True),
        ("WILLNEED", {}, None),
    ],
)
def test_whether_it_took_effect(advice: str, changed: dict[str, object], took: bool | None) -> None:
    assert judge(find_advice(advice), BEFORE, replace(BEFORE, **changed)).took is took  # type: ignore[arg-type]


def test_a_range_that_the_kernel_split() -> None:
    entries = parse_smaps(
        entry(0x10000, 64, 40, flags="rd wr hg") + entry(0x20000, 64, 8, flags="rd hg") + entry(0x40000, 64, 4)
    )
    state = range_state(entries, 0x10000, 0x30000)
    assert state and (state.rss_bytes, state.vm_flags) == (48 * KIB, ("rd", "hg"))
    assert range_state(entries, 0x900000, 0x910000) is None


MADVISE, ALWAYS = THP, replace(THP, enabled="always")


@pytest.mark.parametrize(
    ("advice", "flags", "thp", "undo"),
    [
        ("HUGEPAGE", (), MADVISE, "MADV_NOHUGEPAGE"),
        ("HUGEPAGE", ("nh",), ALWAYS, "MADV_NOHUGEPAGE"),
        ("HUGEPAGE", ("hg",), ALWAYS, None),
        ("NOHUGEPAGE", (), ALWAYS, "MADV_HUGEPAGE"),
        ("DONTDUMP", (), MADVISE, "MADV_DODUMP"),
        ("DODUMP", (), MADVISE, None),
        ("DODUMP", ("dd",), MADVISE, "MADV_DONTDUMP"),
        ("MERGEABLE", (), MADVISE, "MADV_UNMERGEABLE"),
        ("PAGEOUT", (), MADVISE, "MADV_WILLNEED"),
    ],
)
def test_what_takes_it_back(advice: str, flags: tuple[str, ...], thp: ThpSettings, undo: str | None) -> None:
    found = _undo_of(find_advice(advice), flags, thp)
    assert (found.name if found else None) == undo


@pytest.mark.parametrize(
    ("advice", "thp"), [("COLD", MADVISE), ("COLLAPSE", MADVISE), ("HUGEPAGE", ALWAYS), ("NOHUGEPAGE", MADVISE)]
)
def test_what_cannot_be_taken_back_is_refused(advice: str, thp: ThpSettings) -> None:
    with pytest.raises(UsageProblem, match="cannot be undone"):
        _undo_of(find_advice(advice), (), thp)


@pytest.mark.parametrize(
    ("advice", "perms", "name", "destroy", "refused"),
    [
        ("DONTNEED", "rw-p", "", False, "--destroy-data"),
        ("DONTNEED", "rw-p", "", True, None),
        ("DONTNEED", "rw-p", "[heap]", True, "crash"),
        ("FREE", "r-xp", "/lib/x", True, "crash"),
        ("DONTNEED", "rw-s", "/dev/shm/x", False, None),
        ("REMOVE", "rw-s", "/dev/shm/x", False, "--destroy-data"),
        ("COLD", "rw-p", "[stack]", False, None),
    ],
)
def test_data_are_destroyed_on_demand_alone(
    advice: str, perms: str, name: str, destroy: bool, refused: str | None
) -> None:
    (found,) = parse_smaps(entry(0x10000, 64, 40, perms=perms, name=name))
    if refused is None:
        _check_data(found.mapping, find_advice(advice), destroy)
        return
    with pytest.raises(UsageProblem) as caught:
        _check_data(found.mapping, find_advice(advice), destroy)
    assert refused in caught.value.message + caught.value.hint


# The guard ----------------------------------------------------------------------------------------

SECOND = 1_000_000_000
CALM = GuardReading(0, True, 50 * MIB, 100 * MIB, 0, 0)
LIMITS = GuardLimits()


@pytest.mark.parametrize(
    ("first_mib", "now_mib", "stops"),
    [(50, 89, False), (50, 91, True), (92, 92, False), (92, 95, True), (95, 60, False)],
)
def test_near_the_limit(first_mib: int, now_mib: int, stops: bool) -> None:
    first, now = (replace(CALM, working_set_bytes=mib * MIB) for mib in (first_mib, now_mib))
    assert (too_near(first, now, LIMITS) is not None) is stops


def test_what_is_not_known_stops_nothing_but_an_end_does() -> None:
    unknown = GuardReading(9 * SECOND, True, None, None, None, None)
    assert too_near(unknown, unknown, LIMITS) is None
    assert too_strained(unknown, unknown, LIMITS) is None
    assert too_near(CALM, replace(CALM, is_running=False), LIMITS) == "the process has ended"


@pytest.mark.parametrize(
    ("seconds", "stalled_s", "hits", "stops"),
    [(2, 0.1, 0, False), (2, 0.5, 0, True), (4, 0.3, 10_000, False), (1, 0.9, 0, False), (1, 0.9, 101, True)],
)
def test_pressure_decides_and_within_two_seconds_the_limits_hits(
    seconds: float, stalled_s: float, hits: int, stops: bool
) -> None:
    now = replace(CALM, time_ns=round(seconds * SECOND), stalled_ns=round(stalled_s * SECOND), limit_hits=hits)
    assert (too_strained(CALM, now, LIMITS) is not None) is stops


def test_without_psi_the_limits_hits_decide() -> None:
    calm = replace(CALM, stalled_ns=None)
    assert too_strained(calm, replace(calm, time_ns=9 * SECOND, limit_hits=100), LIMITS) is None
    assert (
        too_strained(calm, replace(calm, time_ns=9 * SECOND, limit_hits=101), LIMITS)
        == "it hit its memory limit 101 times"
    )


def test_waiting_ends_with_its_time_or_for_a_reason() -> None:
    slept: list[float] = []
    assert wait(0.01, lambda: None, sleep=slept.append) is None
    assert slept and max(slept) <= 0.01
    told: list[tuple[int, int]] = []
    reasons = iter([None, "it hurts"])
    assert wait(60, lambda: next(reasons), lambda *seconds: told.append(seconds), slept.append) == "it hurts"
    assert told == [(0, 60)]


# What people read ---------------------------------------------------------------------------------


def test_a_hostile_name_cannot_reach_the_terminal() -> None:
    (found,) = parse_smaps(entry(0x10000, 64, 40, name="/tmp/\x1b[31mx", device="08:01", inode=9))
    plan = Plan(71, 5, "we\x1bb", found.mapping, find_advice("HUGEPAGE"), find_advice("NOHUGEPAGE"), ("careful",))
    text = plan_text(plan, 90.0, dry_run=False)
    assert "\x1b" not in text
    assert "after 1 min 30 s, by MADV_NOHUGEPAGE" in text and "careful" in text
    done = Applied(
        BEFORE, replace(BEFORE, rss_bytes=None), Effect(False, "VmFlags: rd"), 0, 4096, "EINVAL", None, 72, 350_000
    )
    text = applied_text(plan, done)
    assert "MADV_HUGEPAGE took NO effect" in text
    assert "refused  for 4 KiB of it: EINVAL" in text and "thread   72 stood still for 350.0 us" in text
    gone = TakenBack("the process has ended", None, None)
    assert taken_back_text(plan, gone) == "the process has ended: the mapping is gone, and the advice with it\n"
    document = json.loads(applied_json(plan, done, gone))
    assert document["applied"]["after"]["rss_bytes"] is None
    assert document["taken_back"] == {"reason": "the process has ended", "took_effect": None, "after": None}
