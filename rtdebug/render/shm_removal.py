"""Removal of orphans, as text for people and as one JSON document: what would go, what went, what is kept and why."""

from __future__ import annotations

from collections.abc import Sequence

from rtdebug.render.jsonl import encode_object
from rtdebug.render.shm import (
    MOST_ROWS,
    WIDTH,
    freed_bytes,
    hanging,
    made_by,
    object_fields,
    objects_of,
    rows_of,
)
from rtdebug.render.units import format_bytes
from rtdebug.shm.model import ShmObject
from rtdebug.shm.orphans import Verdict
from rtdebug.shm.removal import Removal
from rtdebug.tracing.line import Value


def verdict_table(verdicts: Sequence[Verdict], now_ns: int, width: int | None = None) -> str:
    """What would be removed, and what is kept and why."""
    removable = [verdict.object for verdict in verdicts if verdict.refusal is None]
    rows = [(each, made_by(each)) for each in removable]
    lines = rows_of(rows, now_ns, "MADE BY") if removable else ["Nothing to remove."]
    kept = [verdict for verdict in verdicts if verdict.refusal is not None]
    if kept:
        lines += ["", "Kept:"]
        for verdict in kept[:MOST_ROWS]:
            reason = f"{format_bytes(verdict.object.allocated_bytes)} in {verdict.object.name}: {verdict.refusal}"
            lines += hanging("  ", reason, width or WIDTH)
        lines += [f"  and {len(kept) - MOST_ROWS} more"] if len(kept) > MOST_ROWS else []
    if removable:
        lines += ["", f"{objects_of(len(removable))}, {format_bytes(freed_bytes(removable))} to be freed"]
    return "\n".join(lines) + "\n"


def removal_table(removals: Sequence[Removal], width: int | None = None) -> str:
    """What was removed, and what was not after all."""
    removed = [each.object for each in removals if each.problem is None]
    lines = [f"Removed {objects_of(len(removed))}: {format_bytes(freed_bytes(removed))} freed"]
    for removal in removals:
        if removal.problem is not None:
            lines += hanging("not removed: ", f"{removal.object.name}: {removal.problem}", width or WIDTH)
    return "\n".join(lines) + "\n"


def removal_json(verdicts: Sequence[Verdict], removals: Sequence[Removal] | None, now_ns: int) -> str:
    """The document `{"would_remove" or "removed": [...], "kept": [...], "freed_bytes": ...}`."""
    kept = [_kept_fields(each.object, each.refusal, now_ns) for each in verdicts if each.refusal is not None]
    if removals is None:
        gone = [each.object for each in verdicts if each.refusal is None]
        key = "would_remove"
    else:
        gone = [each.object for each in removals if each.problem is None]
        kept += [_kept_fields(each.object, each.problem, now_ns) for each in removals if each.problem is not None]
        key = "removed"
    removed: list[Value] = [object_fields(each, now_ns) for each in gone]
    return encode_object({key: removed, "kept": [*kept], "freed_bytes": freed_bytes(gone)}) + "\n"


def _kept_fields(found: ShmObject, reason: str | None, now_ns: int) -> dict[str, Value]:
    return {**object_fields(found, now_ns), "reason": reason}
