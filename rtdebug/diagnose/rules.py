"""The rules of `rtdebug diagnose`, in one list. Each gives findings that rest on figures, or none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from rtdebug.containers.remedy import remedies_for
from rtdebug.diagnose import rules_host, rules_kills, rules_pressure, rules_shm
from rtdebug.diagnose.facts import Facts
from rtdebug.diagnose.finding import Finding, Severity

Rule = Callable[[Facts], Iterator[Finding]]

RULES: tuple[Rule, ...] = (
    rules_kills.oom_killed,
    rules_kills.oom_killed_by_counter,
    rules_kills.hung_at_the_limit,
    rules_shm.shm_refused,
    rules_shm.evicted,
    rules_shm.shm_full,
    rules_shm.shm_out_of_inodes,
    rules_host.host_out_of_memory,
    rules_pressure.throttled_at_high,
    rules_pressure.thrashing,
    rules_pressure.stalled,
    rules_kills.limit_of_a_parent_hit,
    rules_shm.shm_small,
    rules_shm.shm_orphans,
    rules_shm.shm_fills_memory,
    rules_shm.emptydir_without_size,
    rules_shm.charged_elsewhere,
    rules_pressure.swap_full,
    rules_pressure.kernel_memory,
    rules_host.wrong_limits,
    rules_host.huge_pages_bloat,
    rules_host.host_overcommitted,
    rules_host.fragmented,
)

_ORDER = tuple(Severity)


def diagnose(facts: Facts) -> tuple[Finding, ...]:
    """All findings, the worst first; of one severity in the order of RULES."""
    findings = [
        replace(finding, change=remedies_for(facts.container, finding.change))
        for rule in RULES
        for finding in rule(facts)
    ]
    return tuple(sorted(findings, key=lambda finding: _ORDER.index(finding.severity)))
