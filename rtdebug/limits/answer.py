"""All that `rtdebug limits` has to say of one container, step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rtdebug.errors import NotRunning
from rtdebug.host.meminfo import read_meminfo
from rtdebug.host.stopping import Wait
from rtdebug.limits.apply import Setting, apply, only_one
from rtdebug.limits.demand import Demand, demand_now, probed, swap_free
from rtdebug.limits.facts import Place, read_facts
from rtdebug.limits.lines import lines_to_apply
from rtdebug.limits.probe import ProbeResult, Step, probe
from rtdebug.limits.problems import Facts, Problem, find_problems
from rtdebug.limits.proposal import Proposal, propose

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Answer:
    """What is, what is wrong, and what should be."""

    place: Place
    facts: Facts
    demand: Demand
    problems: Sequence[Problem]
    proposal: Proposal
    lines: Mapping[str, Sequence[str]]
    """The proposal as lines to copy, by tool."""
    probe: ProbeResult | None = None
    applied: Sequence[Setting] | None = None
    """None: nothing was written."""


def answer(
    place: Place, recorded: Demand | None = None, measure: Callable[[Facts], ProbeResult] | None = None
) -> Answer:
    """Look at a container; `recorded` or `measure` say better than its present figures what it needs.

    Raises NotRunning if its cgroup has vanished, and what `measure` raises.
    """
    facts = read_facts(place)
    demand = recorded or demand_now(facts.own.memory, swap_free(read_meminfo()))
    result = measure(facts) if measure else None
    if result is not None and result.measured:
        demand = probed(demand, result.working_set_bytes, f"a probe by {result.way}")
    proposal = propose(facts, demand)
    lines = lines_to_apply(place, facts.own.version, proposal.changes)
    return Answer(place, facts, demand, find_problems(facts), proposal, lines, result)


def measured(
    place: Place, step_s: float, wait: Wait, progress: Callable[[Step], None]
) -> Callable[[Facts], ProbeResult]:
    """The `measure` of answer() that probes. It raises NotRunning for a paused container, which could feel nothing."""

    def measure(facts: Facts) -> ProbeResult:
        if place.container.status == "paused":
            name = place.container.name or place.container.id
            raise NotRunning(f"container {name!r} is paused: a probe would find no need at all", "resume it first")
        with only_one(place):
            return probe(facts.own, step_s, wait, progress)

    return measure


def applied(found: Answer, folder: Path | None = None) -> Answer:
    """Write the proposal into the cgroup's files. Raises RtdebugError: then nothing is changed."""
    if not found.proposal.changes:
        return found
    options = {} if folder is None else {"folder": folder}
    with only_one(found.place, **options):
        done = apply(found.place, found.facts.own.version, found.proposal.changes, **options)
    return replace(found, applied=done.settings)
