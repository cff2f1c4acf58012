"""Lines of `rtdebug leaks watch`: verdicts that changed, and figures that left their usual band."""

from __future__ import annotations

from datetime import datetime

from rtdebug.leaks.baseline import Band
from rtdebug.leaks.baseline_watch import Unusual
from rtdebug.leaks.departures import NEW_LEVEL, USUAL_AGAIN, Departure
from rtdebug.leaks.reason import quantity
from rtdebug.leaks.series import NS_PER_S
from rtdebug.leaks.verdict import Judged
from rtdebug.render.escape import escape
from rtdebug.render.jsonl import format_time_utc
from rtdebug.render.leaks_report import change_line, change_object
from rtdebug.render.units import format_duration, short_id
from rtdebug.tracing.line import Value


def news_line(news: Judged | Unusual, time_ns: int) -> str:
    """Return a line for people. `time_ns`: of the look; a figure has a time of its own."""
    return change_line(news, time_ns) if isinstance(news, Judged) else _unusual_line(news)


def news_object(news: Judged | Unusual, time_ns: int) -> dict[str, Value]:
    """Return one object of `-o json`; its `event` is leak_verdict or baseline."""
    return change_object(news, time_ns) if isinstance(news, Judged) else _unusual_object(news)


def filled_line(filled: int, figures: int, window_s: float) -> str:
    """Return what is said first of the bands: how many figures have one."""
    window = format_duration(int(window_s * NS_PER_S))
    if not figures:
        return f"What is usual is not known: nothing was recorded in the last {window}."
    if filled == figures:
        return f"What is usual is known of all {figures} figures, from the last {window}."
    return f"What is usual is known of {filled} of {figures} figures: it takes {window} of samples."


def _unusual_line(unusual: Unusual) -> str:
    labels, departure = unusual.labels, unusual.departure
    at = datetime.fromtimestamp(departure.time_ns / NS_PER_S).strftime("%H:%M:%S")
    name, kind = escape(short_id(labels.name), 40), escape(labels.kind)
    return f"{at}  {departure.state:<17}  {name}  {kind}: {_what(departure, labels.unit)}"


def _what(departure: Departure, unit: str) -> str:
    band, furthest = departure.band, departure.furthest
    value, lasted = _text(band.value, unit), format_duration(departure.until_ns - departure.since_ns)
    if departure.state == NEW_LEVEL:  # the band is wide while the window holds both levels: the old one says more
        return f"{value} is usual now, after {lasted} outside of {_range(furthest, unit)}"
    text = f"{value}, usual is {_range(band, unit)}"
    if departure.state == USUAL_AGAIN:
        return f"{text}; it was outside for {lasted}, {_text(furthest.value, unit)} at the furthest"
    if departure.until_ns > departure.since_ns:
        return f"{text}; outside for {lasted}, {_text(furthest.value, unit)} at the furthest"
    return text


def _unusual_object(unusual: Unusual) -> dict[str, Value]:
    labels, departure = unusual.labels, unusual.departure
    band = departure.band
    return {
        "time": format_time_utc(departure.time_ns),
        "event": "baseline",
        "name": labels.name,
        "container_id": labels.container_id,
        "image": labels.image,
        "host": labels.host,
        "kind": labels.kind,
        "unit": labels.unit,
        "state": departure.state,
        "value": band.value,
        "centre": band.centre,
        "half_width": band.half_width,
        "deviation": band.deviation,
        "since": format_time_utc(departure.since_ns),
        "until": format_time_utc(departure.until_ns),
        "furthest": departure.furthest.value,
        "centre_before": departure.furthest.centre,
        "shifts": band.shifts,
    }


def _range(band: Band, unit: str) -> str:
    low, high = max(0.0, band.centre - band.half_width), band.centre + band.half_width
    return f"{_text(low, unit)} to {_text(high, unit)}"


def _text(value: float, unit: str) -> str:
    return quantity(value, unit) if unit == "bytes" else f"{quantity(value, unit)}/s"
