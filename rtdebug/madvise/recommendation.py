"""What to do, from what was found: short, and with the conditions under which it holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rtdebug.madvise.answer import CaseAnswer, Row
from rtdebug.madvise.hindrance import Settings
from rtdebug.madvise.plan import BASELINE, Case
from rtdebug.madvise.stats import LESS, MORE, TOO_FEW, UNCLEAR

_GIVES_BACK = 0.5
"""From this share of the memory on, advice counts as giving it back."""
_WORTH_SAYING = 0.1
"""A cost in memory above this share is said."""
_HOW = {
    ("anon", "HUGEPAGE"): "madvise(2) before the first touch; glibc does it with GLIBC_TUNABLES=glibc.malloc.hugetlb=1",
    ("anon", "COLLAPSE"): "once the memory is filled; on a live process: rtdebug madvise apply",
    ("shm", "HUGEPAGE"): "needs a /dev/shm mounted with huge=advise",
}


@dataclass(frozen=True, slots=True)
class Recommendation:
    """For one case."""

    memory: str
    access: str
    mode: str
    advice: str | None
    """What is recommended; None: nothing, leave it as it is."""
    purpose: str
    """`speed` or `give back`."""
    text: str
    conditions: tuple[str, ...]


def recommend(answers: Sequence[CaseAnswer], settings: Settings) -> tuple[Recommendation, ...]:
    """At most two for each case: what is fastest, and what gives memory back."""
    return tuple(each for answer in answers for each in _recommend(answer, settings))


def _recommend(answer: CaseAnswer, settings: Settings) -> Iterator[Recommendation]:
    rows = [row for row in answer.rows if row.acted and row.advice != BASELINE]
    if answer.baseline is None or not answer.rows[1:]:
        return
    faster = [row for row in rows if _saves(row) and not _gives_back(row, answer.case)]
    if faster:
        best = min(faster, key=lambda row: row.median("total_ns") or 0)
        yield _speed(answer, best, settings)
    giving = [row for row in rows if _gives_back(row, answer.case)]
    if giving:
        yield _give_back(answer, min(giving, key=lambda row: row.median("return_ns") or 0))
    if not faster and not giving:
        yield _nothing(answer, rows)


def _speed(answer: CaseAnswer, row: Row, settings: Settings) -> Recommendation:
    what, measure = ("time", "total_ns") if _verdict(row, "total_ns") == LESS else ("CPU time", "cpu_ns")
    effect = row.measures[measure].effect
    assert effect is not None and effect.change is not None and effect.interval is not None
    low, high = effect.interval
    saved = f"{-effect.change:.0%} off the {what} of first touch and access together"
    text = f"{_subject(answer.case)}: MADV_{row.advice} takes {saved} ({-high:.0%} to {-low:.0%})"
    conditions = [*_conditions(answer.case, settings), *_costs(answer, row)]
    if how := _HOW.get((answer.case.memory, row.advice)):
        conditions.append(how)
    return _recommendation(answer.case, row.advice, "speed", text, conditions)


def _give_back(answer: CaseAnswer, row: Row) -> Recommendation:
    returned = row.median("returned_bytes") or 0
    took = row.median("return_ns")
    time = f" in {took / 1e6:.1f} ms" if took else ""
    text = f"{_subject(answer.case)}: MADV_{row.advice} gives {returned / 2**20:.0f} MiB back to the container{time}"
    conditions = [_size(answer.case)]
    again = row.measures.get("access_ns")
    base = answer.baseline.median("access_ns") if answer.baseline else None
    if again and again.verdict == MORE and base is not None:
        conditions.append(f"touching it again takes {(again.median - base) / 1e6:.1f} ms more, and finds zeros")
    else:
        conditions.append("what was in the memory is lost")
    return _recommendation(answer.case, row.advice, "give back", text, conditions)


def _nothing(answer: CaseAnswer, rows: Sequence[Row]) -> Recommendation:
    subject = _subject(answer.case)
    if not rows:
        text = f"{subject}: none of the advice could act here, so nothing is known of it"
    elif any(_verdict(row, "total_ns") == TOO_FEW for row in rows):
        text = f"{subject}: too few runs to tell; give --runs 15"
    else:
        text = f"{subject}: leave it as it is; {'; '.join(_unhelpful(answer, rows))}"
    return _recommendation(answer.case, None, "speed", text, (_size(answer.case),))


def _unhelpful(answer: CaseAnswer, rows: Sequence[Row]) -> Iterator[str]:
    """`COLLAPSE costs more CPU time (+40%)`, `FREE, COLD: no difference in all`."""
    unclear = [row.advice for row in rows if not _costs_more(row) and _verdict(row, "total_ns") == UNCLEAR]
    same = [row.advice for row in rows if not _costs_more(row) and row.advice not in unclear]
    for row in rows:
        if cost := _costs_more(row):
            yield f"{row.advice} costs more {cost}{_pays_off(answer, row)}"
    if same:
        yield f"{', '.join(same)}: no difference in all"
    if unclear:
        yield f"{', '.join(unclear)}: unclear, which a quieter host or more runs (--runs 50) would change"


def _pays_off(answer: CaseAnswer, row: Row) -> str:
    """Whether faster accesses make up for it: `, which 9 times as many accesses would make up for`."""
    base = answer.baseline
    if base is None or _verdict(row, "access_ns") != LESS:
        return ""
    saved = (base.median("access_ns") or 0) - (row.median("access_ns") or 0)
    spent = (row.median("total_ns") or 0) - (base.median("total_ns") or 0) + saved
    return f", which {spent / saved:,.0f} times as many accesses make up for" if spent > saved > 0 else ""


def _costs_more(row: Row) -> str | None:
    for measure, name in (("total_ns", "time"), ("cpu_ns", "CPU time")):
        finding = row.measures.get(measure)
        if finding and finding.verdict == MORE and finding.effect and finding.effect.change is not None:
            return f"{name} ({finding.effect.change:+.0%})"
    return None


def _recommendation(
    case: Case, advice: str | None, purpose: str, text: str, conditions: Sequence[str]
) -> Recommendation:
    name = advice and f"MADV_{advice}"
    return Recommendation(case.memory, case.access, case.mode, name, purpose, text, tuple(conditions))


def _subject(case: Case) -> str:
    return f"{case.memory}, {case.access} {case.mode}"


def _conditions(case: Case, settings: Settings) -> tuple[str, ...]:
    """Where it holds."""
    thp = settings.thp
    if thp is None:
        return (_size(case),)
    chosen = f"enabled={thp.enabled}, defrag={thp.defrag}, shmem_enabled={thp.shmem_enabled}"
    return (_size(case), f"transparent_hugepage: {chosen}")


def _size(case: Case) -> str:
    return f"{(case.size_bytes or 0) >> 20} MiB touched once and then accessed {case.access_count:,} times"


def _costs(answer: CaseAnswer, row: Row) -> Iterator[str]:
    used = row.measures.get("rss_bytes")
    if used and used.effect and used.verdict == MORE and (used.effect.change or 0) > _WORTH_SAYING:
        yield f"it takes {used.effect.change:.0%} more memory"
    if row.advice == "HUGEPAGE":
        yield "memory that is touched only in parts is filled up to whole huge pages"


def _saves(row: Row) -> bool:
    """Whether it is less in time or in CPU time, and more in neither."""
    verdicts = {_verdict(row, "total_ns"), _verdict(row, "cpu_ns")}
    return LESS in verdicts and MORE not in verdicts


def _verdict(row: Row, measure: str) -> str | None:
    finding = row.measures.get(measure)
    return finding.verdict if finding else None


def _gives_back(row: Row, case: Case) -> bool:
    return (row.median("returned_bytes") or 0) >= _GIVES_BACK * (case.size_bytes or 0) > 0
