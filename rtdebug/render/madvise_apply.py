"""What `rtdebug madvise apply` will do, has done and has taken back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from rtdebug.host.maps import Mapping
from rtdebug.madvise.advice import Way
from rtdebug.madvise.apply import Applied, TakenBack
from rtdebug.madvise.apply_plan import Plan
from rtdebug.madvise.effect import RangeState
from rtdebug.madvise.target import label
from rtdebug.render.columns import align
from rtdebug.render.escape import escape
from rtdebug.render.jsonl import encode_object
from rtdebug.render.units import format_bytes, format_duration
from rtdebug.tracing.line import Value

_WAYS = {
    Way.PROCESS_MADVISE: "from outside, by process_madvise(2)",
    Way.INJECT: "by the process itself: one of its threads is borrowed for one system call",
}
_FIGURES = (
    ("resident", "rss_bytes"),
    ("huge pages", "huge_bytes"),
    ("referenced", "referenced_bytes"),
    ("swap", "swap_bytes"),
    ("lazyfree", "lazyfree_bytes"),
)
_VERDICTS = {True: "took effect", False: "took NO effect", None: "done; its effect is not known"}
_NOT_COLLAPSED = " (never touched, at an end that is not aligned, or shared with a child)"


def plan_text(plan: Plan, for_s: float | None, dry_run: bool) -> str:
    """What is going to be done, and the notes."""
    mapping = plan.mapping
    begin = "would give" if dry_run else "giving"
    length = format_bytes(mapping.length_bytes)
    lines = [
        f"{begin} {plan.advice.name} to {escape(plan.comm)} ({plan.pid}): {plan.advice.does}",
        f"  mapping  {_range(mapping)}  {length}  {mapping.perms}  {escape(label(mapping))}",
        f"  way      {_WAYS[plan.advice.way]}",
    ]
    if for_s is not None:
        undo = f"by {plan.undo.name}" if plan.undo else "nothing to do, for it was so before"
        lines.append(f"  undone   after {format_duration(round(for_s * 1e9))}, {undo}")
    lines += [f"  note     {note}" for note in plan.notes]
    return "\n".join(lines) + "\n"


def applied_text(plan: Plan, applied: Applied) -> str:
    """What came of it: the verdict, and smaps before and after."""
    lines = [f"{plan.advice.name} {_VERDICTS[applied.effect.took]} ({escape(applied.effect.text)})"]
    lines += [f"  {line}" for line in _figures(applied.before, applied.after)]
    if applied.refused_bytes:
        why = _NOT_COLLAPSED if (plan.advice.short_name, applied.error) == ("COLLAPSE", "EINVAL") else ""
        lines.append(f"  refused  for {format_bytes(applied.refused_bytes)} of it: {applied.error}{why}")
    if applied.stopped:
        lines.append(f"  stopped  {applied.stopped}; {format_bytes(applied.advised_bytes)} were done")
    if applied.thread_id is not None:
        lines.append(f"  thread   {applied.thread_id} stood still for {format_duration(applied.thread_stopped_ns)}")
    return "\n".join(lines) + "\n"


def taken_back_text(plan: Plan, taken_back: TakenBack) -> str:
    """That it was undone, and why then."""
    name = plan.undo.name if plan.undo else "nothing to take back"
    if taken_back.state is None:
        return f"{taken_back.reason}: the mapping is gone, and the advice with it\n"
    verdict = f" {_VERDICTS[taken_back.effect.took]} ({escape(taken_back.effect.text)})" if taken_back.effect else ""
    return f"{taken_back.reason}: {name}{verdict}\n"


def applied_json(plan: Plan, applied: Applied | None, taken_back: TakenBack | None) -> str:
    """One document; `applied` is null in a dry run, `taken_back` without --for."""
    mapping = plan.mapping
    document: dict[str, Value] = {
        "pid": plan.pid,
        "comm": plan.comm,
        "mapping": {
            "start_address": mapping.start,
            "end_address": mapping.end,
            "perms": mapping.perms,
            "path": mapping.path or None,
        },
        "advice": plan.advice.name,
        "way": str(plan.advice.way),
        "undo": plan.undo.name if plan.undo else None,
        "notes": list(plan.notes),
        "applied": None if applied is None else _applied_record(applied),
        "taken_back": None
        if taken_back is None
        else {
            "reason": taken_back.reason,
            "took_effect": taken_back.effect.took if taken_back.effect else None,
            "after": _state_record(taken_back.state),
        },
    }
    return encode_object(document) + "\n"


def _applied_record(applied: Applied) -> dict[str, Value]:
    return {
        "took_effect": applied.effect.took,
        "effect": applied.effect.text,
        "before": _state_record(applied.before),
        "after": _state_record(applied.after),
        "advised_bytes": applied.advised_bytes,
        "refused_bytes": applied.refused_bytes,
        "errno": applied.error,
        "stopped": applied.stopped,
        "thread_id": applied.thread_id,
        "thread_stopped_ns": applied.thread_stopped_ns,
    }


def _state_record(state: RangeState | None) -> dict[str, Value] | None:
    if state is None:
        return None
    return asdict(state) | {"vm_flags": None if state.vm_flags is None else list(state.vm_flags)}


def _figures(before: RangeState, after: RangeState | None) -> Iterator[str]:
    rows = [("", "BEFORE", "AFTER")]
    for name, key in _FIGURES:
        values = [getattr(state, key) if state else None for state in (before, after)]
        if any(values) or key in ("rss_bytes", "huge_bytes"):
            rows.append((name, format_bytes(values[0]), format_bytes(values[1])))
    yield from align(rows, right={1, 2})


def _range(mapping: Mapping) -> str:
    return f"{mapping.start:#x}-{mapping.end:#x}"
