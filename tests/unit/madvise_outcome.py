"""Outcomes of madvise experiments made by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rtdebug.containers.model import Container
from rtdebug.host.thp import SizeSettings, ThpSettings
from rtdebug.madvise.conduct import Outcome
from rtdebug.madvise.hindrance import Settings
from rtdebug.madvise.plan import BASELINE, Case, Plan
from rtdebug.madvise.run import Run

MIB = 1 << 20
THP = ThpSettings("madvise", "madvise", "never", True, 2 * MIB, {}, {2 * MIB: SizeSettings("inherit", "inherit")})
SWAP = Settings(THP, thp_disabled=False, shm_huge=None, swap_bytes=1 << 30, ksm_runs=True)
NO_SWAP = replace(SWAP, swap_bytes=0)
_USUAL: dict[str, Any] = {
    "populate_ns": 9e6, "access_ns": 1e6, "total_ns": 1e7, "cpu_ns": 1e7, "rss_bytes": 64 * MIB, "thp_bytes": 0,
    "lazyfree_bytes": 0, "usage_bytes": 70 * MIB,
}  # fmt: skip


def outcome(
    advice: Mapping[str, Mapping[str, Any]], settings: Settings = SWAP, memory: str = "anon", runs: int = 15
) -> Outcome:
    """What would have come of these medians, with a spread of one per mille a run."""
    case = Case(memory, tuple(advice), 64 * MIB, access="random")
    plan = Plan("mine", (case,), "Does it?", runs=runs, warm_up=1)
    made = [
        _run(case, name, number, values)
        for number in range(runs + 1)
        for name, values in ((BASELINE, {}), *advice.items())
    ]
    container = Container("web-1", "web", "runc", 1, "running", "/web")
    return Outcome(plan, container, settings, "6.12.1", ("pid", "mnt"), True, tuple(made))


def _run(case: Case, advice: str, number: int, values: Mapping[str, Any]) -> Run:
    measured = {
        key: int(value * (1 + number / 1000)) if key.endswith("_ns") else value
        for key, value in (_USUAL | dict(values)).items()
    }
    moment = case.moment(advice)
    return Run(
        0, case.memory, case.access, case.mode, 64 * MIB, advice, moment, number, number == 0, number, **measured
    )
