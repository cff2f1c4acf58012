"""The answer of a madvise experiment, as a table and as one JSON document."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rtdebug.madvise.answer import CaseAnswer, Row
from rtdebug.madvise.conduct import Outcome
from rtdebug.madvise.plan import BASELINE
from rtdebug.madvise.recommendation import Recommendation
from rtdebug.madvise.stats import LESS, MORE, SAME, TOO_FEW, UNCLEAR, Finding
from rtdebug.render.columns import align, wrap
from rtdebug.render.escape import escape
from rtdebug.render.jsonl import encode_object
from rtdebug.render.units import UNKNOWN, format_bytes, format_duration, short_id
from rtdebug.tracing.line import Value

_WIDTH = 100
_MARKS = {LESS: "<", MORE: ">", SAME: "~", UNCLEAR: "?", TOO_FEW: "?"}
_LEGEND = (
    "< less, > more, ~ the same as without advice (none); ? cannot be told",
    "IN ALL: first touch, advice and access; (interval of the change in %)",
)
_GIVING = frozenset({"DONTNEED", "FREE", "REMOVE", "PAGEOUT", "COLD"})
_NOISY = 0.25
_FEWEST_FOR_NOISE = 5
_AT_ONCE_NS = 2e6
"""It was seen at a look that soon after the call: with it."""


def run_table(outcome: Outcome, answers: Sequence[CaseAnswer], recommendations: Sequence[Recommendation]) -> str:
    """For people: a table for each case, what could not act, and what to do."""
    lines = list(_head(outcome))
    for answer in answers:
        lines += ["", *_case(answer)]
    if any(answer.rows for answer in answers):
        lines += ["", *_LEGEND]
    lines += ["", *_advice(recommendations)]
    return "\n".join(lines) + "\n"


def run_json(outcome: Outcome, answers: Sequence[CaseAnswer], recommendations: Sequence[Recommendation]) -> str:
    """One document; docs/madvise-run.md has its keys."""
    thp = outcome.settings.thp
    rows = [(answer, row) for answer in answers for row in answer.rows]
    document: dict[str, Value] = {
        "plan": outcome.plan.name,
        "question": outcome.plan.question,
        "container_id": outcome.container.id,
        "container_name": outcome.container.name,
        "runtime": outcome.container.runtime,
        "cgroup": outcome.container.cgroup,
        "kernel": outcome.kernel,
        "seed": outcome.plan.seed,
        "stopped": outcome.stopped,
        "namespaces": list(outcome.namespaces),
        "thp_enabled": thp.enabled if thp else None,
        "thp_defrag": thp.defrag if thp else None,
        "thp_shmem_enabled": thp.shmem_enabled if thp else None,
        "baseline": [
            each for answer, row in rows if row.advice == BASELINE for each in _records(answer, row)
        ],
        "results": [
            each for answer, row in rows if row.advice != BASELINE for each in _records(answer, row)
        ],
        "not_measured": [
            {"memory": answer.case.memory, "reason": answer.unable} for answer in answers if answer.unable
        ],
        "recommendation": [
            {
                "memory": each.memory,
                "access": each.access,
                "mode": each.mode,
                "advice": each.advice,
                "purpose": each.purpose,
                "text": each.text,
                "conditions": list(each.conditions),
            }
            for each in recommendations
        ],
    }
    return encode_object(document) + "\n"


def _records(answer: CaseAnswer, row: Row) -> Iterator[dict[str, Value]]:
    for finding in row.measures.values():
        effect = finding.effect
        yield {
            "memory": finding.memory,
            "access": answer.case.access,
            "mode": answer.case.mode,
            "size_bytes": answer.case.size_bytes,
            "advice": None if row.advice == BASELINE else f"MADV_{row.advice}",
            "when": None if row.advice == BASELINE else row.moment,
            "measure": finding.measure,
            "median": finding.median,
            "interval": list(finding.interval),
            "effect": effect.change if effect else None,
            "effect_interval": list(effect.interval) if effect and effect.interval else None,
            "verdict": finding.verdict,
            "runs": finding.runs,
            "errno": row.refused,
            "hindrance": row.hindrance,
        }


def _head(outcome: Outcome) -> Iterator[str]:
    container, plan = outcome.container, outcome.plan
    name = container.name or short_id(container.id)
    runtime = f" ({container.runtime})" if container.runtime else ""
    yield f"Experiment {escape(plan.name)} in {escape(name)}{runtime}; runs of each: {plan.runs}, seed {plan.seed}"
    if plan.question:
        yield from wrap(plan.question, _WIDTH)
    thp = outcome.settings.thp
    if thp is None:
        yield f"Linux {escape(outcome.kernel)}, without transparent huge pages"
    else:
        chosen = f"enabled={thp.enabled} defrag={thp.defrag} shmem_enabled={thp.shmem_enabled}"
        yield f"Linux {escape(outcome.kernel)}; huge pages: {chosen}"
    if outcome.stopped:
        done = len(outcome.counted)
        yield from wrap(f"STOPPED: {outcome.stopped}. Only {done} runs are counted below.", _WIDTH)
    if not outcome.own_cgroup:
        yield "GIVEN BACK is seen in the container's own cgroup: what the container itself did is in it"


def _case(answer: CaseAnswer) -> Iterator[str]:
    case = answer.case
    file = f" of {escape(case.file)}" if case.file else ""
    when = f", advice {case.when} touching" if case.when else ""
    yield f"{case.memory}{file}, {format_bytes(case.size_bytes)}, {case.access} {case.mode}{when}"
    if answer.unable:
        yield from (f"  {line}" for line in wrap(f"not measured: {answer.unable}", _WIDTH - 2))
    if answer.rows:
        columns = [column for column in _COLUMNS if column.is_shown(answer)]
        rows = [[column.name for column in columns]]
        rows += [[column.cell(row) for column in columns] for row in answer.rows if not row.refused]
        right = {index for index, column in enumerate(columns) if column.is_number}
        yield from (f"  {line}" for line in align(rows, right=right))
    yield from _noise(answer)
    for row in answer.rows:
        if row.refused:
            yield f"  {row.advice}: madvise(2) refused it, {row.refused}"
        elif row.hindrance:
            yield from (f"  {line}" for line in wrap(f"{row.advice} is not compared: {row.hindrance}", _WIDTH - 2))


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    cell: Callable[[Row], str]
    is_number: bool = False
    is_shown: Callable[[CaseAnswer], bool] = lambda _answer: True


def _is_before_touching(answer: CaseAnswer) -> bool:
    """Else the first touch is the same for all."""
    return any(row.moment == "before" for row in answer.rows)


def _uses_other_memory(answer: CaseAnswer) -> bool:
    return any(row.median("rss_bytes") != answer.case.size_bytes for row in answer.rows)


def _has_huge(answer: CaseAnswer) -> bool:
    return any(row.median("thp_bytes") for row in answer.rows)


def _is_about_giving(answer: CaseAnswer) -> bool:
    return any(row.advice in _GIVING for row in answer.rows)


def _noise(answer: CaseAnswer) -> Iterator[str]:
    """Said where other work on the host disturbs so much that small effects drown."""
    total = answer.baseline.measures.get("total_ns") if answer.baseline else None
    if total is None or not total.median or total.runs < _FEWEST_FOR_NOISE:
        return
    low, high = (bound / total.median - 1 for bound in total.interval)
    if high - low > _NOISY:
        text = f"the host is busy: the time of none is known to {low:+.0%} and {high:+.0%} only; CPU is steadier"
        yield from (f"  {line}" for line in wrap(text, _WIDTH - 2))


def _total(row: Row) -> str:
    """`5.8 ms -78 % (-80..-76)`; the baseline with its own spread."""
    finding = row.measures.get("total_ns")
    if finding is None:
        return UNKNOWN
    median = _duration(finding.median)
    effect = finding.effect
    if effect is None:
        low, high = finding.interval
        middle = finding.median or 1
        return f"{median} ({_bare_percent(low / middle - 1)}..{_bare_percent(high / middle - 1)})"
    if not row.acted or effect.change is None or effect.interval is None:
        return median
    low, high = effect.interval
    change = _percent(effect.change) if finding.is_difference else _MARKS.get(finding.verdict or "", "")
    return f"{median} {change} ({_bare_percent(low)}..{_bare_percent(high)})"


def _cpu(row: Row) -> str:
    """`-78 %`, or how it compares; of the baseline the time."""
    finding = row.measures.get("cpu_ns")
    if finding is None or not row.acted:
        return UNKNOWN
    if finding.effect is None:
        return _duration(finding.median)
    change = finding.effect.change
    return _percent(change) if finding.is_difference and change is not None else _mark(finding)


def _time(measure: str) -> Callable[[Row], str]:
    """`5.8 ms <`: a time and how it compares."""

    def cell(row: Row) -> str:
        finding = row.measures.get(measure)
        if finding is None:
            return UNKNOWN
        mark = _mark(finding) if row.acted else ""
        return f"{_duration(finding.median)} {mark}".rstrip()

    return cell


def _mark(finding: Finding) -> str:
    return _MARKS.get(finding.verdict or "", "")


def _percent(share: float) -> str:
    return f"{share * 100:+.0f} %" if abs(share) < 10 else f"x {share + 1:.0f}"


def _bare_percent(share: float) -> str:
    return f"{share * 100:+.0f}" if abs(share) < 10 else f"x {share + 1:.0f}"


def _given_back(row: Row) -> str:
    returned, took = row.measures.get("returned_bytes"), row.measures.get("return_ns")
    if returned is None or row.advice not in _GIVING:
        return UNKNOWN
    if took is not None and took.runs > returned.runs / 2:
        late = took.median > (row.median("advice_ns") or 0) + _AT_ONCE_NS
        return format_bytes(returned.median) + (f" in {_duration(took.median)}" if late else "")
    return "at need" if row.median("lazyfree_bytes") else "nothing"


def _duration(ns: float | None) -> str:
    return format_duration(None if ns is None else round(ns))


def _advice(recommendations: Sequence[Recommendation]) -> Iterator[str]:
    if not recommendations:
        yield "No recommendation: nothing was compared."
        return
    yield "What to do"
    for each in recommendations:
        first, *rest = wrap(each.text, _WIDTH - 4)
        yield f"  * {first}"
        yield from (f"    {line}" for line in rest)
        for condition in each.conditions:
            for number, line in enumerate(wrap(condition, _WIDTH - 8)):
                yield f"      {'- ' if number == 0 else '  '}{line}"


_COLUMNS = (
    _Column("ADVICE", lambda row: row.advice),
    _Column("IN ALL", _total),
    _Column("CPU", _cpu),
    _Column("TOUCH", _time("populate_ns"), False, _is_before_touching),
    _Column("CALL", lambda row: _duration(row.median("advice_ns"))),
    _Column("ACCESS", _time("access_ns")),
    _Column("RSS", lambda row: format_bytes(row.median("rss_bytes")), True, _uses_other_memory),
    _Column("HUGE", lambda row: format_bytes(row.median("thp_bytes")), True, _has_huge),
    _Column("GIVEN BACK", _given_back, False, _is_about_giving),
)
