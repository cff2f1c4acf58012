"""Counters of what the trace saw. They go on when the container is gone, and their number is bounded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from rtdebug.containers.model import Container
from rtdebug.containers.owners import OwnerOf, owner_by_path, owners

Key = tuple[str, ...]
"""Name of a counter, then the values of its labels: ("sigbus", "tmpfs_full")."""

OTHER = "(other)"
_MOST_VICTIMS = 20
"""Pairs of limiting cgroup and victim of one container that are told apart: a container chooses its comms."""
_MOST_KEYS = 200
"""Of one container in all; advice, reasons and results are a few dozen."""


@dataclass(frozen=True, slots=True)
class LastKill:
    """The latest OOM kill in a container."""

    time_s: float
    """Unix time."""
    victim_rss_bytes: int | None


@dataclass(frozen=True, slots=True)
class Delta:
    """What happened in one container since the message before. No id: in none that the trace knew."""

    container_id: str | None
    container_name: str | None
    runtime: str | None
    cgroup: str | None
    counts: Mapping[Key, int]
    last_kill: LastKill | None = None


@dataclass(frozen=True, slots=True)
class Owned:
    """The counters of one container."""

    container: Container | None
    """None: of processes in no container."""
    values: Mapping[Key, int]
    last_kill: LastKill | None


@dataclass(frozen=True, slots=True)
class Counts:
    """All counters at one moment."""

    owned: tuple[Owned, ...] = ()
    dropped: int = 0
    """Series of containers that are gone which were dropped for want of room."""
    refused: int = 0
    """Events that were not counted for want of room."""


@dataclass(slots=True)
class _Entry:
    container: Container | None
    values: dict[Key, int] = field(default_factory=dict)
    last_kill: LastKill | None = None
    alive: bool = True


class Counters:
    """Adds up deltas. At most `max_series` values are kept; who is dead the longest goes first."""

    def __init__(self, max_series: int) -> None:
        self._max_series = max_series
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        """By container id, "" for no container; the longest dead first."""
        self._series = self._dropped = self._refused = 0
        self._owner: OwnerOf = owner_by_path

    def add(self, delta: Delta) -> None:
        """Count what happened. Whose a cgroup is that the trace did not know, the running containers tell."""
        if delta.container_id is None and delta.cgroup is not None and (owner := self._owner(delta.cgroup)):
            delta = replace(delta, container_id=owner.id, container_name=owner.name, runtime=owner.runtime)
        entry = self._entry(delta)
        for key, count in delta.counts.items():
            key = self._bounded(entry, key)
            if key not in entry.values:
                if len(entry.values) >= _MOST_KEYS or not self._make_room():
                    self._refused += count
                    continue
                self._series += 1
            entry.values[key] = entry.values.get(key, 0) + count
        entry.last_kill = delta.last_kill or entry.last_kill

    def see(self, containers: Iterable[Container]) -> None:
        """Learn which containers run now."""
        running = {container.id: container for container in containers}
        self._owner = owners(running.values())
        for container_id, entry in self._entries.items():
            if container_id in running:
                entry.container = running[container_id]
            elif container_id and entry.alive and entry.container is not None:
                entry.container = replace(entry.container, pid=None, status="stopped")
        for container_id in list(self._entries):
            if self._entries[container_id].alive and container_id not in running and container_id:
                self._entries[container_id].alive = False
                self._entries.move_to_end(container_id)
            elif container_id in running:
                self._entries[container_id].alive = True

    def counts(self) -> Counts:
        """All of them now."""
        owned = tuple(Owned(each.container, dict(each.values), each.last_kill) for each in self._entries.values())
        return Counts(owned, self._dropped, self._refused)

    def _entry(self, delta: Delta) -> _Entry:
        key = delta.container_id or ""
        if key not in self._entries:
            container = Container(
                key, delta.container_name, delta.runtime, None, "running", delta.cgroup
            ) if key else None  # fmt: skip
            self._entries[key] = _Entry(container)
        entry = self._entries[key]
        if entry.container is not None and entry.container.name is None and delta.container_name is not None:
            entry.container = replace(entry.container, name=delta.container_name)
        return entry

    def _bounded(self, entry: _Entry, key: Key) -> Key:
        if key[0] != "oom_victims" or key in entry.values:
            return key
        victims: Collection[Key] = [known for known in entry.values if known[0] == "oom_victims"]
        return key if len(victims) < _MOST_VICTIMS else ("oom_victims", OTHER, OTHER, OTHER)

    def _make_room(self) -> bool:
        while self._series >= self._max_series:
            dead = next((key for key, entry in self._entries.items() if key and not entry.alive), None)
            if dead is None:
                return False
            gone = len(self._entries.pop(dead).values)
            self._series -= gone
            self._dropped += gone
        return True
