"""EventLine: one thing that happened, ready to be shown. What every renderer takes and every source gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Value = str | int | float | bool | None | list["Value"] | dict[str, "Value"]
"""What JSON can hold. Unknown is None, never 0."""


@dataclass(frozen=True, slots=True)
class EventLine:
    """One line of `trace` or `report`.

    `fields` are the event's own keys in the order they are shown; a key's ending is its unit
    (`_ns`, `_bytes`, `_pages`, `_id`). Text in it is as the container wrote it: renderers escape it.
    """

    time_ns: int
    """Unix time."""
    event: str
    container_id: str | None
    container_name: str | None
    runtime: str | None
    cgroup: str | None
    """Path below the root of the memory controller's hierarchy."""
    pid: int
    """tgid in the host's pid namespace."""
    ns_pid: int | None
    tid: int | None
    """None: calls of all threads, added up."""
    comm: str | None
    fields: Mapping[str, Value] = field(default_factory=dict)
