"""The report of `rtdebug leaks`: a table with reasons, and one JSON document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime

from rtdebug.leaks.clusters import Cluster
from rtdebug.leaks.findings import Finding
from rtdebug.leaks.reason import quantity
from rtdebug.leaks.series import NS_PER_S
from rtdebug.leaks.site_growth import SiteGrowth
from rtdebug.leaks.verdict import LEAK, NO_LEAK, SUSPECT, TOO_SHORT, VERDICTS, Judged, Verdict
from rtdebug.render.columns import align, wrap
from rtdebug.render.escape import escape
from rtdebug.render.jsonl import encode_object, format_time_utc
from rtdebug.render.terminal import Style, paint
from rtdebug.render.units import UNKNOWN, format_duration, short_id
from rtdebug.tracing.line import Value

_HEADER = ("VERDICT", "NAME", "KIND", "GROWTH/H", "AT LEAST", "SINCE", "TO LIMIT", "SHAPE")
_RIGHT = frozenset({3, 4, 6})
_WIDTH = 110
_MOST_REASONS = 30
_MOST_GROWING = 10
_MOST_NOTES = 5
_FAR_S = 10 * 365 * 86400
_STYLES = {VERDICTS[0]: Style.ALARM, VERDICTS[1]: Style.FAILED}


def report_table(
    judged: Sequence[Judged],
    found: Sequence[Finding],
    groups: Sequence[Cluster],
    *,
    every: bool = False,
    width: int | None = None,
    colour: bool = False,
) -> str:
    """Return the report for people: what leaks and why, what groups there are, and how many series are well."""
    lines: list[str] = []
    if found:
        lines += _findings(found, width or _WIDTH, colour)
    if len(groups) > 1 or any(len(group.members) > 1 for group in groups):
        lines += ["", *_clusters(groups, width or _WIDTH)]
    if every:
        rest = [each for each in judged if each.verdict.verdict in (NO_LEAK, TOO_SHORT)]
        if rest:
            lines += ["", *align([(*_HEADER[:3], "WHY"), *(_plain_row(each.verdict) for each in rest)])]
    if lines:
        lines.append("")
    return "\n".join([*lines, *_rest(judged, bool(found), every)]) + "\n"


def report_json(
    judged: Sequence[Judged], found: Sequence[Finding], groups: Sequence[Cluster], notes: Sequence[str]
) -> str:
    """Return the document `{"series": [...], "clusters": [...], "notes": [...]}`."""
    extras = {id(finding.judged): finding for finding in found}
    series: list[Value] = [series_fields(each, extras.get(id(each))) for each in judged]
    clusters: list[Value] = [_cluster_fields(group) for group in groups]
    return encode_object({"series": series, "clusters": clusters, "notes": list(notes)}) + "\n"


def series_fields(judged: Judged, finding: Finding | None = None) -> dict[str, Value]:
    """Return the keys of one series; null for what is not known."""
    verdict = judged.verdict
    labels = verdict.labels
    is_bytes = labels.unit == "bytes"
    growth = verdict.growth_per_hour
    return {
        "name": labels.name,
        "container_id": labels.container_id,
        "image": labels.image,
        "host": labels.host,
        "process": labels.process,
        "pid": labels.pid,
        "executable": finding.executable if finding else labels.executable,
        "kind": labels.kind,
        "unit": labels.unit,
        "verdict": verdict.verdict,
        "shape": verdict.shape,
        "pattern": finding.pattern if finding else None,
        "confidence": verdict.confidence,
        "growth_bytes_per_hour": growth if is_bytes else None,
        "growth_per_hour": growth,
        "interval": list(verdict.interval) if verdict.interval else None,
        "since": _time(verdict.since_ns),
        "time_to_limit_s": verdict.time_to_limit_s,
        "last": verdict.last,
        "limit": verdict.limit,
        "period_s": verdict.cycle_s,
        "change_points": [_time(at) for at in verdict.change_points_ns],
        "reason": verdict.reason,
        "samples": verdict.samples,
        "span_s": verdict.span_s,
        "notes": list(verdict.notes),
        "site": _site_fields(finding.site) if finding and finding.site else None,
    }


def change_object(judged: Judged, time_ns: int) -> dict[str, Value]:
    """Return one verdict as `leaks watch -o json` prints it."""
    return {"time": format_time_utc(time_ns), "event": "leak_verdict"} | series_fields(judged)


def change_line(judged: Judged, time_ns: int) -> str:
    """Return one verdict as a line for people, as `leaks watch` prints it."""
    verdict = judged.verdict
    at = datetime.fromtimestamp(time_ns / NS_PER_S).strftime("%H:%M:%S")
    name, kind = escape(_name(verdict), 40), escape(verdict.labels.kind)
    rate = ""
    if verdict.verdict in (LEAK, SUSPECT) and verdict.growth_per_hour is not None:
        rate = f", {quantity(verdict.growth_per_hour, verdict.labels.unit)}/h"
        if (left := time_left(verdict.time_to_limit_s)) != UNKNOWN:
            rate += f", limit {left}" if left == "reached" else f", limit in {left}"
    return f"{at}  {verdict.verdict:<17}  {name}  {kind}{rate}: {escape(verdict.reason)}"


def watch_line(judged: Sequence[Judged]) -> str:
    """Return what `leaks watch` says first: how many series there are, and how many of each verdict."""
    verdicts = Counter(each.verdict.verdict for each in judged)
    counts = ", ".join(f"{verdicts[name]} {name}" for name in VERDICTS if verdicts[name])
    return f"Watching {len(judged)} series: {counts or 'nothing recorded yet'}. Ctrl-C to stop."


def _findings(found: Sequence[Finding], width: int, colour: bool) -> Iterator[str]:
    rows = [_row(finding) for finding in found]
    header, *lines = align([_HEADER, *rows], right=_RIGHT)
    yield paint(header, Style.TITLE, colour)
    for index, (finding, line) in enumerate(zip(found, lines, strict=True)):
        style = _STYLES.get(finding.judged.verdict.verdict)
        yield paint(line, style, colour) if style else line
        if index < _MOST_REASONS:
            for part in wrap(_why(finding), width - 4):
                yield f"    {part}"


def _row(finding: Finding) -> tuple[str, ...]:
    verdict = finding.judged.verdict
    growth, interval, unit = verdict.growth_per_hour, verdict.interval, verdict.labels.unit
    left = verdict.time_to_limit_s
    return (
        verdict.verdict,
        _name(verdict),
        verdict.labels.kind,
        UNKNOWN if growth is None else quantity(growth, unit),
        UNKNOWN if interval is None or interval[0] <= 0 else quantity(interval[0], unit),
        _short_time(verdict.since_ns),
        time_left(left),
        verdict.shape,
    )


def time_left(left_s: float | None) -> str:
    """Return how long until the limit; `-` without one, or in more than ten years."""
    if left_s is None or left_s > _FAR_S:
        return UNKNOWN
    return format_duration(int(left_s * NS_PER_S)) if left_s > 0 else "reached"


def _plain_row(verdict: Verdict) -> tuple[str, ...]:
    why = verdict.reason if verdict.reason.startswith(verdict.shape) else f"{verdict.shape}: {verdict.reason}"
    return verdict.verdict, _name(verdict), verdict.labels.kind, why


def _name(verdict: Verdict) -> str:
    labels = verdict.labels
    name = short_id(labels.name)
    return f"{name} {labels.executable or labels.process}" if labels.process else name


def _why(finding: Finding) -> str:
    text = finding.judged.verdict.reason
    if finding.process is not None:
        labels, growth = finding.process.verdict.labels, finding.process.verdict.growth_per_hour
        rate = "" if growth is None else f", {quantity(growth, labels.unit)}/h"
        text += f". Process: {labels.executable or labels.process} (pid {labels.pid}{rate})"
    if finding.site is not None and finding.site.stack:
        frames = " < ".join(finding.site.stack.split("\n")[:3])
        text += f". Site ({finding.site.kind}, {quantity(finding.site.growth_per_hour, 'bytes')}/h): {frames}"
    notes = "; ".join(finding.judged.verdict.notes)
    return f"{text}. Pattern: {finding.pattern}" + (f". Note: {notes}" if notes else "")


def _clusters(groups: Sequence[Cluster], width: int) -> Iterator[str]:
    yield "Clusters"
    for group in groups:
        members = len(group.members)
        count = "1 series" if members == 1 else f"{members} series"
        yield from wrap(
            f"  {group.number}. {count}, {quantity(group.growth_per_hour, 'bytes')}/h in all: {group.typical.pattern}",
            width,
        )
        typical = f"typical: {_name(group.typical.judged.verdict)}"
        for part in wrap(f"{typical}; common: {group.apart}", width - 5):
            yield f"     {part}"


def _rest(judged: Sequence[Judged], has_findings: bool, every: bool) -> Iterator[str]:
    if not judged:
        yield "No series: nothing was recorded."
        return
    verdicts = Counter(each.verdict.verdict for each in judged)
    if not has_findings:
        yield _nothing_found(verdicts)
    if verdicts[NO_LEAK]:
        shapes = Counter(each.verdict.shape for each in judged if each.verdict.verdict == NO_LEAK)
        named = ", ".join(f"{count} {name}" for name, count in shapes.most_common())
        yield f"{verdicts[NO_LEAK]} series without a leak: {named}."
    if verdicts[TOO_SHORT]:
        yield from _too_short([each.verdict for each in judged if each.verdict.verdict == TOO_SHORT])
    yield from _input_notes([each.verdict for each in judged if each.verdict.verdict in (NO_LEAK, TOO_SHORT)])
    if not every and (verdicts[NO_LEAK] or verdicts[TOO_SHORT]):
        yield "All of them: --all"


def _input_notes(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """What was wrong with the input of series that have no row; those of findings stand beside them."""
    notes = [f"{_name(verdict)} {verdict.labels.kind}: {note}" for verdict in verdicts for note in verdict.notes]
    yield from (f"note: {escape(note)}" for note in notes[:_MOST_NOTES])
    if len(notes) > _MOST_NOTES:
        yield f"note: and {len(notes) - _MOST_NOTES} more: -o json has them"


def _nothing_found(verdicts: Counter[str]) -> str:
    """No leak found, or nothing that could be."""
    if not verdicts[TOO_SHORT]:
        return "No leak found."
    return "No leak found in what can be judged." if verdicts[NO_LEAK] else "Too short to tell whether anything leaks."


def _too_short(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """How many, and those that grow so far: there may be no time to wait for a verdict."""
    growing = [each for each in verdicts if each.grown is not None and each.labels.process is None]
    growing.sort(key=lambda each: (each.labels.unit != "bytes", -(each.grown or 0.0)))
    example = "" if growing else f", such as: {verdicts[0].reason}"
    yield f"{len(verdicts)} series too short to tell{example}."
    for each in growing[:_MOST_GROWING]:
        yield f"  {escape(_name(each), 40)} {escape(each.labels.kind)}: {escape(each.reason)}"
    if len(growing) > _MOST_GROWING:
        yield f"  and {len(growing) - _MOST_GROWING} more that grow so far"
    yield "Record for longer; --min-span 5m judges sooner, and takes a warm-up for a leak."


def _cluster_fields(group: Cluster) -> dict[str, Value]:
    members: list[Value] = [
        {
            "name": member.judged.verdict.labels.name,
            "container_id": member.judged.verdict.labels.container_id,
            "host": member.judged.verdict.labels.host,
            "process": member.judged.verdict.labels.process,
            "verdict": member.judged.verdict.verdict,
            "growth_bytes_per_hour": member.judged.verdict.growth_per_hour,
        }
        for member in group.members
    ]
    return {
        "number": group.number,
        "pattern": group.typical.pattern,
        "kind": group.typical.judged.verdict.labels.kind,
        "growth_bytes_per_hour": group.growth_per_hour,
        "typical": group.typical.judged.verdict.labels.name,
        "common": dict(group.common),
        "apart": group.apart,
        "members": members,
    }


def _site_fields(site: SiteGrowth) -> dict[str, Value]:
    return {
        "kind": site.kind,
        "stack": [*site.stack.split("\n")] if site.stack is not None else None,
        "live_bytes": site.live_bytes,
        "growth_bytes_per_hour": site.growth_per_hour,
        "interval": list(site.interval) if site.interval else None,
    }


def _time(at_ns: int | None) -> str | None:
    return None if at_ns is None else format_time_utc(at_ns)


def _short_time(at_ns: int | None) -> str:
    return UNKNOWN if at_ns is None else datetime.fromtimestamp(at_ns / NS_PER_S).strftime("%m-%d %H:%M")
