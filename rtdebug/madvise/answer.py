"""The answer of an experiment: what was found for each advice, what stood in its way, and what to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rtdebug.madvise.conduct import Outcome
from rtdebug.madvise.hindrance import Settings, hindrance
from rtdebug.madvise.plan import BASELINE, Case
from rtdebug.madvise.run import Run
from rtdebug.madvise.stats import Finding, findings


@dataclass(frozen=True, slots=True)
class Row:
    """One advice of one case."""

    case: int
    advice: str
    moment: str
    measures: Mapping[str, Finding]
    """By name of the measure."""
    refused: str | None
    """The error that madvise(2) gave, mostly EINVAL: not for this kind of memory, or not on this kernel."""
    hindrance: str | None
    """Why it could not act here. Then "no difference" is no finding about the advice."""

    @property
    def acted(self) -> bool:
        """Whether the figures say something about the advice."""
        return self.refused is None and self.hindrance is None

    def median(self, measure: str) -> float | None:
        """The median; None: not measured."""
        finding = self.measures.get(measure)
        return finding.median if finding else None


@dataclass(frozen=True, slots=True)
class CaseAnswer:
    """One case with the baseline first."""

    index: int
    case: Case
    rows: tuple[Row, ...]
    unable: str | None
    """Why it was not measured; then there may be no rows."""

    @property
    def baseline(self) -> Row | None:
        """The row without advice."""
        return next((row for row in self.rows if row.advice == BASELINE), None)


def answers(outcome: Outcome) -> tuple[CaseAnswer, ...]:
    """One for each case of the plan."""
    found = findings(outcome.counted, outcome.plan)
    refusals = _refusals(outcome.counted)
    return tuple(
        CaseAnswer(
            index, case, _rows(index, case, found, refusals, outcome.settings), outcome.unable.get(index)
        )
        for index, case in enumerate(outcome.plan.cases)
    )


def _refusals(runs: Iterable[Run]) -> dict[tuple[int, str], str]:
    """The error that most runs of an advice met, if most met one."""
    errors: dict[tuple[int, str], Counter[str | None]] = {}
    for run in runs:
        errors.setdefault((run.case, run.advice), Counter())[run.errno] += 1
    commonest = {key: counter.most_common(1)[0][0] for key, counter in errors.items()}
    return {key: errno for key, errno in commonest.items() if errno is not None}


def _rows(
    index: int, case: Case, found: Iterable[Finding], refusals: Mapping[tuple[int, str], str], settings: Settings
) -> tuple[Row, ...]:
    rows: dict[str, dict[str, Finding]] = {}
    for finding in found:
        if finding.case == index:
            rows.setdefault(finding.advice, {})[finding.measure] = finding
    base = rows.get(BASELINE, {})
    return tuple(
        Row(
            case=index,
            advice=advice,
            moment="-" if advice == BASELINE else case.moment(advice),
            measures=measures,
            refused=refusals.get((index, advice)),
            hindrance=_hindrance(case.memory, advice, measures, base, settings),
        )
        for advice, measures in rows.items()
    )


def _hindrance(
    memory: str, advice: str, measures: Mapping[str, Finding], base: Mapping[str, Finding], settings: Settings
) -> str | None:
    """What the settings say, unless huge pages came all the same; for those also when none came, whatever they say."""
    huge, before = measures.get("thp_bytes"), base.get("thp_bytes")
    if advice in ("HUGEPAGE", "COLLAPSE") and huge is not None and before is not None:
        if huge.median > before.median:
            return None
        if before.median == 0:
            return hindrance(memory, advice, settings) or "no huge page came of it: see thp_fault_fallback in --raw"
    return hindrance(memory, advice, settings)
