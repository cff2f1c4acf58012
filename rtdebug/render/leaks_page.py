"""One HTML page with the curves: opens without network, and nothing from a container can run in it."""

from __future__ import annotations

import html
import io
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rtdebug.leaks.clusters import Cluster, repository
from rtdebug.leaks.findings import Finding
from rtdebug.leaks.reason import quantity
from rtdebug.leaks.series import NS_PER_S
from rtdebug.leaks.verdict import LEAK, NO_LEAK, SUSPECT, TOO_SHORT, Judged
from rtdebug.render.escape import escape
from rtdebug.render.leaks_report import time_left

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_CURVES = 6
_MOST_CLUSTERS = 30
_MOST_ROWS = 200
_COLUMNS = ("Verdict", "Name", "Kind", "Growth/h", "To limit", "Shape", "Reason")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; color: #1b1f24; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .3rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #d8dee4; vertical-align: top; }
td.n { text-align: right; white-space: nowrap; } th { background: #f6f8fa; }
.leak { color: #b30000; font-weight: 600; } .suspect { color: #9a6700; font-weight: 600; }
.quiet { color: #59636e; } svg { max-width: 100%; height: auto; }
pre { background: #f6f8fa; padding: .6rem; overflow-x: auto; }
"""
_CURVE, _FLOOR, _TREND, _CHANGE, _PAIR = "#8ab4d8", "#0b5cad", "#c4161c", "#8250df", "#57606a"


def page(judged: Sequence[Judged], groups: Sequence[Cluster], notes: Sequence[str]) -> str:
    """Return the whole page."""
    body = "\n".join(_body(judged, groups, notes))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>rtdebug leaks</title>\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>\n'
        f"<body>\n{body}\n</body></html>\n"
    )


def _body(judged: Sequence[Judged], groups: Sequence[Cluster], notes: Sequence[str]) -> Iterator[str]:
    found = Counter(member.judged.verdict.verdict for group in groups for member in group.members)
    verdicts = Counter(each.verdict.verdict for each in judged)
    clusters = "1 cluster" if len(groups) == 1 else f"{len(groups)} clusters"
    yield "<h1>Memory leaks</h1>"
    yield (
        f"<p><span class='leak'>{found[LEAK]} leak</span>, <span class='suspect'>{found[SUSPECT]} suspect</span>, "
        f"in {clusters}; {len(judged)} series of containers and processes were looked at"
        f"{f', {verdicts[TOO_SHORT]} of them too short to tell' if verdicts[TOO_SHORT] else ''}.</p>"
    )
    if verdicts[NO_LEAK] and not groups:
        yield "<p>No series of memory leaks or is suspect.</p>"
    for group in groups[:_MOST_CLUSTERS]:
        yield from _section(group, judged)
    if len(groups) > _MOST_CLUSTERS:
        yield f"<p class='quiet'>{len(groups) - _MOST_CLUSTERS} smaller clusters are not shown: -o json has them.</p>"
    if notes:
        yield "<h2>Notes</h2><ul>" + "".join(f"<li>{_text(note)}</li>" for note in notes) + "</ul>"
    yield (
        "<p class='quiet'>Light: usage, from least to most. Dark: the floor, what it falls back to. Red: the trend of "
        "the floor, and its interval. Dashed: change points. Grey: a series of the same image or program that does "
        "not grow, to compare.</p>"
    )


def _section(group: Cluster, judged: Sequence[Judged]) -> Iterator[str]:
    count = len(group.members)
    yield f"<h2>{group.number}. {_text(group.typical.pattern)}</h2>"
    yield (
        f"<p>{count} {'member' if count == 1 else 'members'}, {_quantity(group.growth_per_hour, 'bytes')}/h in all. "
        f"Common: {_text(group.apart)}.</p>"
    )
    pair = _healthy_sibling(group, judged)
    yield _figure(group, pair)
    if pair is not None:
        here, there = _name(group.typical), _text(pair.verdict.labels.name)
        yield f"<p>To compare: {here} grows, {there} does not ({_text(pair.verdict.shape)}).</p>"
    yield f"<table><tr>{''.join(f'<th>{title}</th>' for title in _COLUMNS)}</tr>"
    for member in group.members[:_MOST_ROWS]:
        yield _row(member)
    yield "</table>"
    if count > _MOST_ROWS:
        yield f"<p class='quiet'>and {count - _MOST_ROWS} more.</p>"
    if group.typical.site is not None and group.typical.site.stack:
        lines = "\n".join(_text(line) for line in group.typical.site.stack.split("\n")[:40])
        yield f"<pre>{lines}</pre>"


def _row(member: Finding) -> str:
    verdict = member.judged.verdict
    css = "leak" if verdict.verdict == LEAK else "suspect"
    growth = "-" if verdict.growth_per_hour is None else _quantity(verdict.growth_per_hour, verdict.labels.unit)
    if verdict.interval is not None:
        low, high = (_quantity(end, verdict.labels.unit) for end in verdict.interval)
        growth += f"<br><span class='quiet'>{low} to {high}</span>"
    left = _text(time_left(verdict.time_to_limit_s))
    return (
        f"<tr><td class='{css}'>{verdict.verdict}</td><td>{_name(member)}</td><td>{_text(verdict.labels.kind)}</td>"
        f"<td class='n'>{growth}</td><td class='n'>{left}</td>"
        f"<td>{_text(verdict.shape)}</td><td>{_text(verdict.reason)}</td></tr>"
    )


def _healthy_sibling(group: Cluster, judged: Sequence[Judged]) -> Judged | None:
    """A series that does not grow, of the same kind and image, or program: what the leak is to be compared with."""
    labels = group.typical.judged.verdict.labels
    image = repository(labels.image)
    for each in judged:
        other = each.verdict.labels
        if each.verdict.verdict != NO_LEAK or other.kind != labels.kind or each.buckets is None:
            continue
        if image is not None and repository(other.image) == image and other.process is None:
            return each
        if labels.executable is not None and other.executable == labels.executable:
            return each
    return None


def _figure(group: Cluster, pair: Judged | None) -> str:
    """Draw the typical member and a few others, as SVG without the prolog of a file."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    members = [group.typical, *(each for each in group.members if each is not group.typical)][:_MOST_CURVES]
    columns = min(3, len(members))
    rows = -(-len(members) // columns)
    with rc_context({"svg.fonttype": "path", "svg.hashsalt": "rtdebug", "font.size": 8, "text.parse_math": False}):
        figure = Figure(figsize=(3.9 * columns if columns > 1 else 7.5, 2.5 * rows + 0.2), layout="constrained")
        for number, member in enumerate(members, 1):
            _draw(figure.add_subplot(rows, columns, number), member.judged, pair if number == 1 else None)
        return _svg(figure)


def _svg(figure: Figure) -> str:
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    return text[text.index("<svg") :]


def _draw(axes: Axes, judged: Judged, pair: Judged | None) -> None:
    buckets, growth, verdict = judged.buckets, judged.growth, judged.verdict
    assert buckets is not None
    factor, unit = _scale(float(buckets.high.max()), verdict.labels.unit)
    if pair is not None and pair.buckets is not None:
        axes.plot(_moments(pair.buckets.time_s), pair.buckets.mean / factor, color=_PAIR, lw=0.8, zorder=1)
    times = _moments(buckets.time_s)
    axes.fill_between(times, buckets.low / factor, buckets.high / factor, color=_CURVE, alpha=0.5, lw=0)
    axes.plot(times, buckets.mean / factor, color=_CURVE, lw=0.8)
    for at_ns in verdict.change_points_ns:
        axes.axvline(_moments([at_ns / NS_PER_S])[0], color=_CHANGE, ls="--", lw=0.8)
    if growth is not None:
        floors = growth.envelope
        axes.plot(_moments(floors.time_s), floors.floor / factor, color=_FLOOR, lw=1.2)
        _draw_trend(axes, judged, factor)
    if verdict.limit is not None and verdict.limit < 1.5 * float(buckets.high.max()):
        axes.axhline(verdict.limit / factor, color="black", lw=0.8, ls=":")
    labels = verdict.labels
    name = f"{labels.name} {labels.executable or ''}".strip()
    axes.set_title(escape(f"{name}, {labels.kind}", 60), fontsize=8)
    axes.set_ylabel(unit)
    axes.tick_params(axis="x", rotation=20)
    axes.grid(alpha=0.2)


def _draw_trend(axes: Axes, judged: Judged, factor: float) -> None:
    growth = judged.growth
    if growth is None or growth.trend is None or judged.verdict.verdict not in (LEAK, SUSPECT):
        return
    import numpy as np

    x = growth.envelope.time_s[growth.begin :]
    since = x - x[0]
    trend = growth.trend
    axes.plot(_moments(x), (trend.level + trend.slope * since) / factor, color=_TREND, lw=1.2)
    low, high = trend.interval(0.99)
    if np.isfinite(low):
        ends = [(trend.level + slope * since) / factor for slope in (low, high)]
        axes.fill_between(_moments(x), *ends, color=_TREND, alpha=0.12, lw=0)


def _moments(time_s: Any) -> list[Any]:  # noqa: ANN401 - an array, or a list of numbers
    return [datetime.fromtimestamp(float(at), UTC) for at in time_s]


def _scale(largest: float, unit: str) -> tuple[float, str]:
    if unit != "bytes":
        return 1.0, "%" if unit == "percent" else unit
    for power, name in ((2**30, "GiB"), (2**20, "MiB")):
        if largest >= power:
            return float(power), name
    return 1024.0, "KiB"


def _name(finding: Finding) -> str:
    labels = finding.judged.verdict.labels
    return _text(f"{labels.name} {finding.executable or ''}".strip())


def _quantity(value: float, unit: str) -> str:
    return _text(quantity(value, unit))


def _text(text: str) -> str:
    """Text of anybody, for the page: no markup, no control characters."""
    return html.escape(escape(text))
