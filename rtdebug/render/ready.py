"""The line that says that a trace is attached: people and scripts know by it when to start."""

from __future__ import annotations

from pathlib import Path

from rtdebug.render.units import format_bytes, short_id
from rtdebug.tracing.options import AGGREGATED, EVENTS, TraceOptions
from rtdebug.tracing.scope import Scope


def ready_line(scope: Scope, options: TraceOptions, record: Path | None) -> str:
    """Return one line that begins with `Tracing`. Not escaped."""
    parts = [_who(scope, options.pid), _what(options)]
    if record is not None:
        parts.append(f"to {record}")
    return f"Tracing {', '.join(parts)}. Ctrl-C to stop."


def _who(scope: Scope, pid: int | None) -> str:
    container = scope.container
    only = f"pid {pid} of " if pid is not None else ""
    if container is None:
        return f"{only}the whole host"
    name = container.name or short_id(container.id)
    return f"{only}{name} ({container.runtime})" if container.runtime else f"{only}{name}"


def _what(options: TraceOptions) -> str:
    events = "all events" if set(options.events) == set(EVENTS) else ", ".join(options.events)
    if AGGREGATED & set(options.events):
        events += " (each call)" if options.every_call else " (mapping and madvise calls added up)"
    filters = []
    if options.comm is not None:
        filters.append(f"comm {options.comm!r}")
    if options.min_bytes:
        filters.append(f"at least {format_bytes(options.min_bytes)}")
    return f"{events}, only {' and '.join(filters)}" if filters else events
