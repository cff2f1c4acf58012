"""What changed between two snapshots, for people and as JSON."""

from __future__ import annotations

from collections.abc import Iterator

from rtdebug.render.columns import align
from rtdebug.render.escape import escape
from rtdebug.render.jsonl import encode_object
from rtdebug.render.snapshot import LABELS, describe
from rtdebug.render.terminal import Style, paint
from rtdebug.render.units import UNKNOWN, format_bytes, format_count, format_duration, short_path
from rtdebug.snapshot.codec import to_plain
from rtdebug.snapshot.diff import Change, Diff, Fate, Subject
from rtdebug.snapshot.model import Snapshot
from rtdebug.tracing.line import Value

_TITLES = {
    Subject.KIND: "By kind of memory",
    Subject.PROCESS: "By process (PSS; count: threads)",
    Subject.MAPPING: "By mapping (PSS and swap; count: mappings)",
    Subject.FD: "By open file (memory it holds; count: descriptors)",
    Subject.SHM: "By piece of shared memory (count: processes that use it)",
    Subject.CGROUP: "By figure of the cgroups, the container's and those above",
}
_HAS_COUNT = frozenset(Subject) - {Subject.KIND}


def render_diff(diff: Diff, colour: bool, most_rows: int | None) -> Iterator[str]:
    """The changes, the largest first; at most `most_rows` of each kind, None: all."""
    apart_ns = diff.after.time_ns - diff.before.time_ns
    yield f"from  {describe(diff.before)}"
    yield f"to    {describe(diff.after)}: {format_duration(abs(apart_ns))} {'later' if apart_ns >= 0 else 'EARLIER'}"
    if diff.before.container.id != diff.after.container.id:
        yield "note: these are two containers; processes are matched by their command lines"
    if not diff.changes:
        yield "nothing changed"
    for subject in Subject:
        changes = diff.of(subject)
        if changes:
            yield ""
            yield paint(_TITLES[subject], Style.TITLE, colour)
            yield from _table(subject, changes, most_rows)


def diff_json(diff: Diff) -> str:
    """One document: both sides, and all changes with their differences."""
    changes: list[Value] = [
        {**to_plain(change), "delta_bytes": change.delta_bytes, "delta_count": change.delta_count}
        for change in diff.changes
    ]
    return encode_object({"before": _side(diff.before), "after": _side(diff.after), "changes": changes}) + "\n"


def _side(snapshot: Snapshot) -> dict[str, Value]:
    memory = snapshot.cgroups[0].memory if snapshot.cgroups else None
    return {
        "time_ns": snapshot.time_ns,
        "container": to_plain(snapshot.container),
        "cgroup_bytes": memory.usage_bytes if memory else None,
    }


def _table(subject: Subject, changes: tuple[Change, ...], most_rows: int | None) -> Iterator[str]:
    shown = changes if most_rows is None else changes[:most_rows]
    has_count = subject in _HAS_COUNT
    header = ("CHANGE", "BEFORE", "AFTER", *(("COUNT",) if has_count else ()), "", "PID", "WHAT")
    rows = [_row(change, has_count) for change in shown]
    right = {0, 1, 2, *((3, 5) if has_count else (4,))}
    yield from (f"  {line}" for line in align([header, *rows], right=right, limit=60))
    if len(changes) > len(shown):
        rest = sum(change.delta_bytes for change in changes[len(shown) :])
        yield f"  ... and {len(changes) - len(shown):,} more, together {_signed(rest)}: --all"


def _row(change: Change, has_count: bool) -> tuple[str, ...]:
    known = change.before_bytes is not None or change.after_bytes is not None
    return (
        _signed(change.delta_bytes) if known else UNKNOWN,
        format_bytes(change.before_bytes),
        format_bytes(change.after_bytes),
        *((_counts(change),) if has_count else ()),
        change.fate.value if change.fate not in (Fate.GREW, Fate.SHRANK) else "",
        UNKNOWN if change.pid is None else str(change.pid),
        escape(_name(change), 100),
    )


def _name(change: Change) -> str:
    if change.subject is Subject.KIND:
        labels = [LABELS.get(kind, kind) for kind in change.name.split(".")]
        return "all that the cgroup counts" if change.name == "cgroup" else ": ".join(labels)
    name = short_path(change.name)
    return f"{change.comm}: {name}" if change.subject in (Subject.MAPPING, Subject.FD) else name


def _counts(change: Change) -> str:
    if change.before_count == change.after_count:
        return format_count(change.after_count)
    return f"{format_count(change.before_count)} > {format_count(change.after_count)}"


def _signed(count: int) -> str:
    return f"+{format_bytes(count)}" if count > 0 else format_bytes(count)
