"""Two recordings compared, as a table and as one JSON document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rtdebug.leaks.compare import ONLY_BASE, ONLY_NEW, SAME, Change, Rate
from rtdebug.leaks.compare import UNKNOWN as CANNOT_TELL
from rtdebug.leaks.reason import quantity
from rtdebug.render.columns import align
from rtdebug.render.jsonl import encode_object
from rtdebug.render.units import UNKNOWN
from rtdebug.tracing.line import Value

_HEADER = ("CHANGE", "WHAT", "KIND", "BASE/H", "NEW/H", "DIFFERENCE/H", "INTERVAL")
_RIGHT = frozenset({3, 4, 5})


def compare_table(changes: Sequence[Change], sites: Sequence[Change], notes: Sequence[str]) -> str:
    """Return the table; what is the same is counted only."""
    shown = [change for change in changes if _is_shown(change)]
    lines = align([_HEADER, *map(_row, shown)], right=_RIGHT) if shown else [_nothing(changes)]
    lines += _folded([change for change in changes if not _is_shown(change)])
    moved = [change for change in sites if _is_shown(change)]
    if moved:
        lines += ["", "Allocation sites", *align([_HEADER, *map(_row, moved)], right=_RIGHT)]
    for side, rates in (("BASE", [change.base for change in sites]), ("NEW", [change.new for change in sites])):
        if sites and not any(rates):
            lines.append(f"{side} was recorded without allocation sites (--stacks, --malloc): nothing to compare with.")
    return "\n".join([*lines, *(f"note: {note}" for note in align([(note,) for note in notes]))]) + "\n"


def compare_json(changes: Sequence[Change], sites: Sequence[Change], notes: Sequence[str]) -> str:
    """Return the document `{"kinds": [...], "sites": [...], "notes": [...]}`."""
    kinds: list[Value] = [_fields(change) for change in changes]
    places: list[Value] = [_fields(change) for change in sites]
    return encode_object({"kinds": kinds, "sites": places, "notes": list(notes)}) + "\n"


def _is_shown(change: Change) -> bool:
    """What differs, and what is in one recording alone and grows there."""
    if change.change in (ONLY_BASE, ONLY_NEW):
        rate = change.base or change.new
        return rate is not None and rate.growth > rate.reach
    return change.change != SAME and (change.change != CANNOT_TELL or change.interval is not None)


def _nothing(changes: Sequence[Change]) -> str:
    known = any(change.base or change.new for change in changes)
    return "Nothing grows faster or slower." if known else "Too short to tell whether anything grows faster."


def _folded(changes: Sequence[Change]) -> Iterator[str]:
    """Count what has no row."""
    count = Counter(change.change for change in changes)
    if count[SAME]:
        yield f"{count[SAME]} kinds of memory without a difference."
    if count[CANNOT_TELL]:
        yield f"{count[CANNOT_TELL]} kinds of memory too short to tell: record for longer, or see --min-span."
    if alone := count[ONLY_BASE] + count[ONLY_NEW]:
        yield f"{alone} kinds of memory in one of the recordings only, without growth there."


def _row(change: Change) -> tuple[str, ...]:
    what = " < ".join(change.stack.split("\n")[:2]) if change.stack else change.name or "all"
    interval = UNKNOWN
    if change.interval:
        interval = " to ".join(quantity(end, change.unit) for end in change.interval)
    difference = change.difference_per_hour
    return (
        change.change,
        what,
        change.kind,
        _rate(change.base, change.unit),
        _rate(change.new, change.unit),
        UNKNOWN if difference is None else quantity(difference, change.unit),
        interval,
    )


def _rate(rate: Rate | None, unit: str) -> str:
    return UNKNOWN if rate is None else quantity(rate.growth, unit)


def _fields(change: Change) -> dict[str, Value]:
    return {
        "name": change.name or None,
        "kind": change.kind,
        "unit": change.unit,
        "stack": [*change.stack.split("\n")] if change.stack is not None else None,
        "change": change.change,
        "base_per_hour": change.base.growth if change.base else None,
        "new_per_hour": change.new.growth if change.new else None,
        "difference_per_hour": change.difference_per_hour,
        "interval": list(change.interval) if change.interval else None,
    }
