"""Entries: what user space adds to the kernel's records, as JSON.

A trace learns things that no record holds: the processes there at the start, the container of a cgroup, the
frames of a stack, an OOM report joined from several sources. It hands each as an entry to the Decoder and
to the recording, so that a recording is decoded from the same facts as the live view. An entry comes before
the records that need it. Text keeps bytes that are no UTF-8 as lone surrogates, which JSON holds as \\udcXX.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rtdebug.containers.model import Container
from rtdebug.tracing.line import EventLine, Value
from rtdebug.tracing.processes import Place, Process

Entry = dict[str, Any]
"""One key, which names the kind, with its JSON value."""


def process_entry(process: Process, since_ns: int = 0) -> Entry:
    """A process that user space found. `since_ns`: CLOCK_MONOTONIC from when on it was so."""
    return {"process": {"since_ns": since_ns, **asdict(process)}}


def place_entry(memcg_id: int, place: Place) -> Entry:
    """A cgroup of the memory controller, and its container."""
    return {"place": {"memcg_id": memcg_id, **asdict(place)}}


def stack_entry(pid: int, stack_id: int, frames: Sequence[str]) -> Entry:
    """The frames of a user stack of a process, innermost first."""
    return {"stack": {"pid": pid, "stack_id": stack_id, "frames": list(frames)}}


def clock_entry(offset_ns: int) -> Entry:
    """CLOCK_REALTIME minus CLOCK_MONOTONIC, from here on: it moves when the clock is set."""
    return {"clock": {"offset_ns": offset_ns}}


def tmpfs_entry(device_id: int, mount_point: str) -> Entry:
    """Where a process sees the tmpfs with this s_dev."""
    return {"tmpfs": {"device_id": device_id, "mount_point": mount_point}}


def line_entry(line: EventLine) -> Entry:
    """A line that user space made, for example a joined OOM report."""
    fields = {name: getattr(line, name) for name in EventLine.__slots__}
    return {"line": fields | {"fields": dict(line.fields)}}


def container_from(value: Mapping[str, Any] | None) -> Container | None:
    """Return the Container that `asdict` made `value` of; keys of a newer rtdebug are left out."""
    if value is None:
        return None
    return Container(**{name: value[name] for name in Container.__slots__ if name in value})


def process_from(value: Mapping[str, Any]) -> Process:
    """Return the Process of a process entry."""
    known = {name: value[name] for name in Process.__slots__ if name in value}
    return Process(**known | {"container": container_from(value.get("container"))})


def place_from(value: Mapping[str, Any]) -> Place:
    """Return the Place of a place entry."""
    return Place(value["cgroup"], container_from(value.get("container")))


def line_from(value: Mapping[str, Any]) -> EventLine:
    """Return the EventLine of a line entry."""
    fields: dict[str, Value] = dict(value["fields"])
    return EventLine(**{name: value[name] for name in EventLine.__slots__} | {"fields": fields})
