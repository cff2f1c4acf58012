"""The reasons of verdicts, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rtdebug.leaks import shape
from rtdebug.leaks.buckets import Buckets

if TYPE_CHECKING:
    from rtdebug.leaks.growth import Growth
    from rtdebug.leaks.rules import Rules
    from rtdebug.leaks.series import Labels

_HOUR_S = 3600.0
_IEC = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def quantity(value: float, unit: str) -> str:
    """A value in its unit: `12.3 MiB`, `40`, `3.1 %`."""
    if unit == "percent":
        return f"{value:.2g} %"
    if unit != "bytes":
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    size, step = float(value), 0
    while abs(size) >= 1023.5 and step < len(_IEC) - 1:
        size, step = size / 1024, step + 1
    return f"{size:.0f} {_IEC[step]}" if abs(size) >= 100 or not step else f"{size:.3g} {_IEC[step]}"


def span(seconds: float) -> str:
    """A length of time: `45 s`, `12 min`, `3.5 h`, `4.2 days`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 2 * _HOUR_S:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / _HOUR_S:.1f} h" if seconds < 48 * _HOUR_S else f"{seconds / 86400:.1f} days"


def nothing() -> str:
    """No usable sample."""
    return "no usable sample"


def flat() -> str:
    """All values are alike."""
    return "flat"


def gaps(buckets: Buckets, rules: Rules) -> tuple[str, ...]:
    """Say which holes there are."""
    import numpy as np

    steps = np.diff(buckets.time_s)
    if len(steps) < 4:
        return ()
    holes = steps[steps > rules.longest_gap * float(np.median(steps))]
    if not len(holes):
        return ()
    words = "1 gap" if len(holes) == 1 else f"{len(holes)} gaps"
    return (f"{words} without samples, the longest {span(float(holes.max()))}",)


def too_short(buckets: Buckets, span_s: float, rules: Rules, limit: float | None) -> str:
    """Too few samples, or too little time."""
    count = buckets.samples
    samples = "1 sample" if count == 1 else f"{count} samples"
    text = f"{samples} over {span(span_s)}: it takes {rules.fewest_samples} over {span(rules.shortest_span_s)}"
    if count >= rules.fewest_samples and span_s >= rules.shortest_span_s:
        text += " without a gap or a restart that takes most of it"
    if limit:
        text += f"; the last is at {100 * float(buckets.mean[-1]) / limit:.0f} % of the limit"
    return text


def so_far(grown: float, unit: str, room: float | None, span_s: float) -> str:
    """What it grew by, and how long there is if it goes on so; which nobody knows."""
    text = f"; so far it grew by {quantity(grown, unit)}"
    if room is not None and span_s > 0:
        text += f", at that rate its limit is reached in {span(room / grown * span_s)}"
    return text


def too_few_cycles(growth: Growth, fewest: int) -> str:
    """It rose, over fewer cycles than it takes."""
    floors = growth.envelope
    period = span(floors.cycle_s or floors.window_s)
    return (
        f"goes up and down every {period}, and its floor rose over {len(floors)} of these cycles: it takes {fewest} to "
        "tell a leak"
    )


def pinned(first: float, limit: float, growing_s: float, buckets: int) -> str:
    """Grew up to the limit and stayed there."""
    return (
        f"grew from {quantity(first, 'bytes')} to its limit of {quantity(limit, 'bytes')} in {span(growing_s)} and "
        f"stayed there until the end ({buckets} points): an OOM kill is likely"
    )


def leaked_before(runs: int) -> str:
    """The run that goes on says nothing yet."""
    times = "once" if runs == 1 else f"{runs} times"
    return f"it grew {times} before a restart, the run since then shows nothing yet"


def same_height(falls: int) -> str:
    """Falls from one height."""
    return f"it falls back {falls} times from the same height: restarts, or a collector that waits for a threshold"


def may_be_restarts() -> str:
    """Falls in a file that says nothing of restarts."""
    return "; if its falls are restarts, which this input does not tell, it leaks between them"


def rises_after_each(runs: int) -> str:
    """Runs that all grow."""
    return f"falls back, and grows again throughout {runs} runs: restarts of something that leaks, or work in batches"


def fell_from_limit(falls: int) -> str:
    """It was at the limit, and then far below."""
    times = "once" if falls == 1 else f"at least {falls} times"
    return f"; it fell from its limit {times}, as after an OOM kill"


def touched_limit(buckets: int, name: str) -> str:
    """At the limit for a while."""
    back = ", and starts anew since" if name == shape.RESTART else ""
    points = "1 point" if buckets == 1 else f"{buckets} points"
    return f"reached its limit ({points}){back}: no lasting growth is seen, but an OOM kill is near or has been"


def kernel_objects() -> str:
    """Kernel memory that may be reclaimable."""
    return "part of it the kernel can take back (dentries, inodes)"


def growing(name: str, growth: Growth, labels: Labels, doubt: str, part_of_day: bool) -> str:
    """Why it is a leak, or a suspicion."""
    rise, unit = quantity(growth.rise, labels.unit), labels.unit
    length = span(growth.span_s)
    what = {
        shape.STAIRCASE: "the floor rises step by step",
        shape.SAWTOOTH_DRIFT: "it falls back again and again, but each time to a higher floor",
        shape.TMPFS: "files in tmpfs or shared memory grow and nobody removes them",
        shape.RESTART: "the floor rose",
    }.get(name, "the floor rises steadily")
    text = f"{what}: {rise} in {length}"
    if growth.trend is not None and growth.trend.noise > 0:
        text += f", {growth.rise / growth.trend.noise:.0f} times its noise ({quantity(growth.trend.noise, unit)})"
    if growth.envelope.cycle_s:
        text += f"; compared over whole cycles of {span(growth.envelope.cycle_s)}"
    if doubt:
        text += f"; but {doubt}"
    elif labels.kind == "usage":
        text += "; of all kinds together: data that grows, or a leak"
    elif part_of_day:
        text += "; less than two days: a daily cycle cannot be excluded"
    return text


def resting(name: str, growth: Growth, resets: int, unit: str) -> str:
    """Why it is no leak."""
    cycle_s = growth.envelope.cycle_s
    period = f" every {span(cycle_s)}" if cycle_s else ""
    words = {
        shape.FLAT: "flat",
        shape.SAWTOOTH: f"falls back to the same floor again and again ({resets} deep falls)",
        shape.WARM_UP: "grew at first, then stayed: a warm-up",
        shape.CACHE: "page cache grows: the kernel takes it back when memory is needed",
        shape.DAILY: "goes up and down with the day",
        shape.PERIODIC: f"goes up and down{period}",
        shape.RESTART: "starts anew, and does not grow since",
        shape.STATIC: "taken at once in the beginning, and constant since",
        shape.STEP: "one step, and no growth before or after",
        shape.SPIKES: "flat, with short peaks",
        shape.CHURN: "goes up and down without a trend",
    }.get(name, "no growth that lasts")
    if name not in (shape.FLAT, shape.CACHE) and growth.why_not:
        words += f"; {growth.why_not}"
    return words
