"""`rtdebug limits` and `rtdebug reclaim`: for people, and as one JSON document."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from rtdebug.limits.answer import Answer
from rtdebug.limits.apply import Setting
from rtdebug.limits.demand import Demand
from rtdebug.limits.facts import Place
from rtdebug.limits.probe import ProbeResult, Step
from rtdebug.limits.problems import Facts, Problem
from rtdebug.limits.reclaim import Reclaimed
from rtdebug.limits.settings import Level
from rtdebug.render.block import block, labelled
from rtdebug.render.columns import align
from rtdebug.render.escape import escape
from rtdebug.render.jsonl import encode_object
from rtdebug.render.oom_verdict import fill
from rtdebug.render.terminal import Style, paint
from rtdebug.render.units import UNKNOWN, counted, format_bytes, format_duration, format_value, short_id, short_path
from rtdebug.tracing.line import Value

_NO_LIMIT = "none"
_KNOB_LABELS = {
    1: {"low": "soft limit", "max": "limit", "memsw": "memory+swap"},
    2: {"min": "memory.min", "low": "memory.low", "high": "memory.high", "max": "memory.max", "swap": "swap.max"},
}
_STYLES = {"wrong": Style.ALARM, "risk": Style.FAILED, "note": Style.QUIET}


def limits_json(answer: Answer) -> str:
    """The document, see docs/limits.md."""
    place, facts = answer.place, answer.facts
    document: dict[str, Value] = {
        "container_id": place.container.id,
        "container_name": place.container.name,
        "runtime": place.container.runtime,
        "cgroup": place.cgroup,
        "cgroup_version": facts.own.version,
        "limit_bytes": facts.limit_bytes,
        "cgroups": [_level_fields(level) for level in facts.chain],
        "demand": {**asdict(answer.demand), "margin": answer.demand.margin},
        "problems": [
            asdict(problem) | {"text": fill(problem.text, problem.evidence)} for problem in answer.problems
        ],
        "proposal": {
            "changes": [asdict(change) for change in answer.proposal.changes],
            "remarks": list(answer.proposal.remarks),
        },
        "apply": {tool: list(lines) for tool, lines in answer.lines.items()},
        "probe": None if answer.probe is None else {**asdict(answer.probe), "steps": _steps(answer.probe)},
        "applied": None if answer.applied is None else [asdict(setting) for setting in answer.applied],
    }
    return encode_object(document) + "\n"


def limits_page(answer: Answer, width: int = 80, colour: bool = False) -> Iterator[str]:
    """The page for people."""
    place = answer.place
    container = place.container
    yield paint(f"Limits of {escape(container.name or short_id(container.id))}", Style.TITLE, colour)
    yield from labelled("cgroup", f"{short_path(place.cgroup)} (cgroup v{answer.facts.own.version})", width)
    yield from block("limits", align(list(_level_rows(answer.facts)), right=range(1, 8)))
    yield from labelled("in use", _in_use(answer), width)
    yield from labelled("needs", _needs(answer.demand), width)
    if answer.probe is not None:
        yield from labelled("probe", _probe_text(answer.probe), width)
    yield ""
    yield from _problems(answer.problems, width, colour)
    yield ""
    yield from _proposal(answer, width, colour)


def step_line(step: Step) -> str:
    """Progress of a probe."""
    felt = "" if step.calm else ": felt"
    return f"down to {format_bytes(step.ceiling_bytes)}: holds {format_bytes(step.usage_bytes)}{felt}"


def undone_lines(place: Place, back: Sequence[Setting], left: Sequence[Setting]) -> Iterator[str]:
    """What --undo did."""
    for setting in back:
        yield f"{setting.file}: {_figure(setting.new)} -> {_figure(setting.old)}"
    for setting in left:
        yield f"{setting.file}: left as it is, somebody has changed it since (rtdebug had set {_figure(setting.new)})"
    yield f"{short_path(place.cgroup)} is as it was before --apply." if not left else "The rest is as it was."


def reclaim_json(place: Place, result: Reclaimed) -> str:
    """The document, see docs/limits.md."""
    fields: dict[str, Value] = {
        "container_id": place.container.id,
        "container_name": place.container.name,
        "cgroup": place.cgroup,
        "returned_bytes": result.returned_bytes,
        **asdict(result),
    }
    return encode_object(fields) + "\n"


def reclaim_page(place: Place, result: Reclaimed, width: int = 80) -> Iterator[str]:
    """What came back, and what it cost."""
    name = escape(place.container.name or short_id(place.container.id))
    yield (
        f"{name} gave back {_given(result)} of the {format_bytes(result.asked_bytes)} asked for: "
        f"{format_bytes(result.usage_before_bytes)} -> {format_bytes(result.usage_after_bytes)}"
    )
    kinds = [f"{format_bytes(count)} {_KINDS[kind]}" for kind, count in result.by_kind_bytes.items() if count > 0]
    yield from labelled("came back", ", ".join(kinds) or None, width)
    yield from labelled("stopped", result.stopped, width)
    yield from labelled("afterwards", _afterwards(result), width)
    yield from labelled("by", result.way, width)


def _given(result: Reclaimed) -> str:
    return format_bytes(result.returned_bytes) if result.returned_bytes > 0 else "nothing"


_KINDS = {"anon": "anon", "file": "page cache", "shmem": "shared memory (tmpfs)", "kernel": "kernel"}


def _afterwards(result: Reclaimed) -> str | None:
    if result.watched_s < 1:
        return None
    parts = [f"in {format_duration(round(result.watched_s * 1e9))}"]
    if result.refaulted_bytes is not None:
        parts.append(f"{format_bytes(result.refaulted_bytes)} of it were read back")
    if result.stalled_us is not None:
        whose = "the host's tasks" if result.stall_of_host else "its tasks"
        parts.append(f"{whose} waited {format_duration(result.stalled_us * 1000)} for memory")
    if result.usage_later_bytes is not None:
        parts.append(f"it now holds {format_bytes(result.usage_later_bytes)}")
    return f"{parts[0]} " + ", ".join(parts[1:]) if len(parts) > 1 else None


def _level_fields(level: Level) -> dict[str, Value]:
    return {
        "cgroup": level.cgroup,
        "usage_bytes": level.memory.usage_bytes,
        "peak_bytes": level.memory.peak_bytes,
        **{f"{name}_bytes": knob.value_bytes for name, knob in level.knobs.items()},
        "swap_limit_bytes": level.memory.swap_limit_bytes,
        "oom_kill_disable": level.memory.oom_kill_disable,
        "oom_group": level.memory.oom_group,
        "oom_kills": level.memory.events.get("oom_kill"),
    }


def _level_rows(facts: Facts) -> Iterator[tuple[str, ...]]:
    labels = {name: text for name, text in _KNOB_LABELS[facts.own.version].items() if facts.own.has(name)}
    yield ("CGROUP", "USAGE", *(label.upper() for label in labels.values()))
    for index, level in enumerate(facts.chain):
        name = "itself" if index == 0 else short_path(level.cgroup)
        figures = (_knob(level, knob) for knob in labels)
        yield (name, format_bytes(level.memory.usage_bytes), *figures)


def _knob(level: Level, name: str) -> str:
    if not level.has(name):
        return UNKNOWN
    value = level.value(name)
    return _NO_LIMIT if value is None else format_bytes(value)


def _in_use(answer: Answer) -> str:
    memory = answer.facts.own.memory
    parts = [f"{format_bytes(memory.usage_bytes)} now"]
    if memory.peak_bytes is not None:
        parts.append(f"{format_bytes(memory.peak_bytes)} at most")
    if answer.facts.unreclaimable_bytes is not None:
        parts.append(f"{format_bytes(answer.facts.unreclaimable_bytes)} of it cannot be reclaimed")
    return ", ".join(parts)


def _needs(demand: Demand) -> str:
    how = "found by the probe" if demand.probed else demand.source
    return f"{format_bytes(demand.working_set_bytes)} working set ({how})"


def _probe_text(probe: ProbeResult) -> str:
    steps = counted(len(probe.steps), "step")
    way = f"by {probe.way}, then put back: {probe.reason}"
    if not probe.measured:
        return f"{steps} {way}. That says nothing of what it needs: try again when the host is calm"
    return f"{format_bytes(probe.started_bytes)} -> {format_bytes(probe.working_set_bytes)} in {steps} {way}"


def _problems(problems: Sequence[Problem], width: int, colour: bool) -> Iterator[str]:
    if not problems:
        yield paint("Nothing is wrong with the limits as they are.", Style.GOOD, colour)
        return
    yield paint("What is wrong with them", Style.TITLE, colour)
    for problem in problems:
        first, *rest = labelled(problem.severity, _sentence(problem), width)
        yield paint(first[: 2 + len(problem.severity)], _STYLES[problem.severity], colour) + first[
            2 + len(problem.severity) :
        ]
        yield from rest


def _sentence(problem: Problem) -> str:
    figures = ", ".join(f"{_spoken(name)} {format_value(name, value)}" for name, value in problem.evidence.items())
    return short_path(f"{fill(problem.text, problem.evidence)} ({figures})")


def _spoken(name: str) -> str:
    return name.removesuffix("_bytes").replace("_", " ")


def _proposal(answer: Answer, width: int, colour: bool) -> Iterator[str]:
    labels = _KNOB_LABELS[answer.facts.own.version]
    if answer.proposal.changes:
        yield paint("Proposed", Style.TITLE, colour)
    else:
        yield paint("Nothing to change is proposed.", Style.TITLE, colour)
    for change in answer.proposal.changes:
        old = _NO_LIMIT if change.old_bytes is None else format_bytes(change.old_bytes)
        new = _NO_LIMIT if change.new_bytes is None else format_bytes(change.new_bytes)
        yield from labelled(labels[change.knob], f"{old} -> {new}: {change.reason}", width)
    for remark in answer.proposal.remarks:
        yield from labelled("note", short_path(remark), width)
    if answer.applied is not None:
        yield from labelled("applied", f"{len(answer.applied)} files written; back: {_undo(answer)}", width)
        return
    for tool, lines in answer.lines.items():
        yield from block(tool, map(escape, lines))


def _undo(answer: Answer) -> str:
    container = answer.place.container
    return f"rtdebug limits {escape(shlex.quote(container.name or short_id(container.id)))} --undo"


def _steps(probe: ProbeResult) -> list[Value]:
    return [asdict(step) for step in probe.steps]


def _figure(text: str) -> str:
    return format_bytes(int(text)) if text.isdecimal() and int(text) < 2**62 else _NO_LIMIT
