"""What changed between two snapshots, for people and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

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
_OF_PROCESSES = frozenset((Subject.PROCESS, Subject.MAPPING, Subject.FD))
_ALL = "cgroup"
"""The kind that is the sum of the others."""


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
            yield from _kinds(changes) if subject is Subject.KIND else _table(subject, changes, most_rows)


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


def _kinds(changes: Sequence[Change]) -> Iterator[str]:
    """As the overview has them: what stands indented below a line is part of it. All rows: they are few."""
    families: dict[str, list[Change]] = {}
    for change in changes:  # the largest change first, within a family too
        families.setdefault(change.name.partition(".")[0], []).append(change)
    rows: list[tuple[str, ...]] = [("CHANGE", "BEFORE", "AFTER", "WHAT")]
    for kind in sorted(families, key=lambda kind: kind != _ALL):
        by_name = {change.name: change for change in families[kind]}
        rows += [_kind_row(name, by_name.get(name)) for name in _in_tree_order(by_name)]
    yield from (f"  {line}" for line in align(rows, right={0, 1, 2}))


def _in_tree_order(names: Iterable[str]) -> list[str]:
    """Each name behind the one that it is part of, whether that has changed or not; else in the order given."""
    below: dict[str, dict[str, None]] = {}
    for name in names:
        words = name.split(".")
        for depth in range(len(words)):
            below.setdefault(".".join(words[:depth]), {})[".".join(words[: depth + 1])] = None
    queue, found = list(reversed(below.get("", {}))), []
    while queue:
        name = queue.pop()
        found.append(name)
        queue += reversed(below.get(name, {}))
    return found


def _kind_row(name: str, change: Change | None) -> tuple[str, ...]:
    *above, kind = name.split(".")
    label = "  " * len(above) + ("all that the cgroup counts" if name == _ALL else LABELS.get(kind, kind))
    return (*(_figures(change) if change else ("0 B", "", "")), label)


def _table(subject: Subject, changes: tuple[Change, ...], most_rows: int | None) -> Iterator[str]:
    shown = changes if most_rows is None else changes[:most_rows]
    header = ("CHANGE", "BEFORE", "AFTER", "COUNT", "", *(("PID",) if subject in _OF_PROCESSES else ()), "WHAT")
    yield from (f"  {line}" for line in align([header, *map(_row, shown)], right={0, 1, 2, 3}, limit=60))
    if len(changes) > len(shown):
        rest = sum(change.delta_bytes for change in changes[len(shown) :])
        yield f"  ... and {len(changes) - len(shown):,} more, together {_signed(rest)}: --all"


def _row(change: Change) -> tuple[str, ...]:
    pid = (UNKNOWN if change.pid is None else str(change.pid),) if change.subject in _OF_PROCESSES else ()
    fate = change.fate.value if change.fate not in (Fate.GREW, Fate.SHRANK) else ""
    return (*_figures(change), _counts(change), fate, *pid, escape(_name(change), 100))


def _figures(change: Change) -> tuple[str, str, str]:
    known = change.before_bytes is not None or change.after_bytes is not None
    delta = _signed(change.delta_bytes) if known else UNKNOWN
    return delta, format_bytes(change.before_bytes), format_bytes(change.after_bytes)


def _name(change: Change) -> str:
    name = short_path(change.name)
    return f"{change.comm}: {name}" if change.subject in (Subject.MAPPING, Subject.FD) else name


def _counts(change: Change) -> str:
    if change.before_count == change.after_count:
        return format_count(change.after_count)
    return f"{format_count(change.before_count)} > {format_count(change.after_count)}"


def _signed(count: int) -> str:
    return f"+{format_bytes(count)}" if count > 0 else format_bytes(count)
