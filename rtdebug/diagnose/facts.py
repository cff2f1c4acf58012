"""All that the rules look at, read once."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from rtdebug.containers.inventory import Inventory
from rtdebug.containers.model import Container
from rtdebug.containers.owners import owners
from rtdebug.diagnose.app_log import AppMessage
from rtdebug.errors import HostUnable, RtdebugError
from rtdebug.host.cgroup import MemoryHierarchy
from rtdebug.host.fds import FileUses
from rtdebug.host.memcg import MemoryState, effective_limit, read_memory
from rtdebug.host.meminfo import BuddyZone, read_buddyinfo, read_meminfo, read_vmstat
from rtdebug.host.thp import ThpSettings, read_thp
from rtdebug.limits.facts import place_of, read_facts
from rtdebug.limits.problems import Facts as LimitFacts
from rtdebug.oom.episode import OomEpisode
from rtdebug.oom.gather import Places, gather
from rtdebug.oom.select import Selection, is_of_container
from rtdebug.shm.report import ShmReport, read_shm

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Moment:
    """The counters of a container and its host at one moment."""

    time_ns: int
    """Monotonic."""
    memory: MemoryState
    vmstat: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Neighbours:
    """All running containers of the host, as far as memory is concerned."""

    containers: int
    limits_bytes: int
    """The sum of their limits."""
    unlimited: int
    """How many have none."""


@dataclass(frozen=True, slots=True)
class HostFacts:
    """The host."""

    meminfo: Mapping[str, int]
    buddy: Sequence[BuddyZone]
    thp: ThpSettings | None
    page_bytes: int = 4096


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known. None, or empty: not known, or it does not run."""

    container: Container | None
    """Stopped, or None: only logs know what became of it."""
    host: HostFacts
    shm: ShmReport | None = None
    limits: LimitFacts | None = None
    before: Moment | None = None
    now: Moment | None = None
    episodes: tuple[OomEpisode, ...] = ()
    """Its OOM kills that the kernel log still has, the latest last."""
    neighbours: Neighbours | None = None
    messages: tuple[AppMessage, ...] = ()
    """From the program's own log, if it was given."""
    notes: tuple[str, ...] = ()
    """What could not be looked at, and why."""

    @property
    def memory(self) -> MemoryState | None:
        """Of the container's cgroup."""
        if self.now is not None:
            return self.now.memory
        return self.limits.own.memory if self.limits else None

    @property
    def target(self) -> str:
        """What a proposed command calls the container, quoted for a shell; empty if it is not known."""
        return shlex.quote(self.container.name or self.container.id) if self.container else ""

    @property
    def sample_s(self) -> float:
        """How long the two looks are apart; 0 without them."""
        return (self.now.time_ns - self.before.time_ns) / 1e9 if self.before and self.now else 0.0

    def grew(self, *names: str) -> int | None:
        """By how much counters of memory.stat grew between the looks, summed; None if none of them is known."""
        if not self.before or not self.now:
            return None
        prefix = "total_" if self.now.memory.version == 1 else ""
        return _growth(self.before.memory.stat, self.now.memory.stat, [f"{prefix}{name}" for name in names])

    def host_grew(self, *names: str) -> int | None:
        """The same of /proc/vmstat."""
        return _growth(self.before.vmstat, self.now.vmstat, names) if self.before and self.now else None


class Around:
    """What is the same for all containers of a host: read once, when it is first asked for."""

    def __init__(self, inventory: Callable[[], Inventory], log: Places) -> None:
        self._inventory = inventory
        self.log = log

    @cached_property
    def inventory(self) -> Inventory:
        """All containers. Raises as list_containers() does."""
        return self._inventory()

    @cached_property
    def neighbours(self) -> Neighbours:
        """What they may take together."""
        return read_neighbours(self.inventory)

    @cached_property
    def episodes(self) -> tuple[OomEpisode, ...]:
        """All OOM kills of the log. Raises as gather() does."""
        return tuple(gather(self.log, Selection(), owners(self.inventory.containers)))


@dataclass(frozen=True, slots=True)
class Asked:
    """What a diagnosis is about."""

    target: str
    container: Container | None
    """None: no runtime knows it."""
    hierarchy: MemoryHierarchy | None
    """None: it does not run."""
    messages: tuple[AppMessage, ...] = ()
    ids: frozenset[str] = frozenset()
    """Further ids that the target stands for."""
    before: Moment | None = None
    """A first look that is over already; None: it is taken now."""
    uses: FileUses | None = None
    """Who uses shared memory, if that was read for several containers."""


def read_diagnosis(asked: Asked, around: Around, sample_s: float, proc: Path = Path("/proc")) -> Facts:
    """Look at everything, `sample_s` long if there was no look before. What cannot be read is told in `notes`."""
    notes: list[str] = []
    container = asked.container
    limits = shm = before = now = None
    if container is not None and (hierarchy := asked.hierarchy) is not None:
        place = _try(notes, lambda: place_of(container, hierarchy))
        if place is not None:
            limits = _try(notes, lambda: read_facts(place, proc))
            before = asked.before or read_moment(place.path, proc)
            time.sleep(0 if asked.before else sample_s)
            now = read_moment(place.path, proc)
        shm = _try(notes, lambda: read_shm(container, hierarchy, proc, asked.uses))
    episodes = _try(notes, lambda: tuple(_episodes(asked, around.episodes))) or ()
    neighbours = _try(notes, lambda: around.neighbours)
    return Facts(
        container=container,
        host=HostFacts(read_meminfo(proc), read_buddyinfo(proc), read_thp(), os.sysconf("SC_PAGE_SIZE")),
        shm=shm,
        limits=limits,
        before=before,
        now=now,
        episodes=episodes,
        neighbours=neighbours,
        messages=asked.messages,
        notes=tuple(notes),
    )


def read_neighbours(inventory: Inventory) -> Neighbours:
    """What all running containers may take together."""
    limits = [
        effective_limit(inventory.hierarchy, container.cgroup)
        for container in inventory.containers
        if container.is_running and container.cgroup and not container.sandbox
    ]
    known = [limit.limit_bytes for limit in limits if limit is not None]
    return Neighbours(len(limits), sum(known), len(limits) - len(known))


def _episodes(asked: Asked, all_episodes: Sequence[OomEpisode]) -> Iterator[OomEpisode]:
    """By every name it has: the log knows ids and paths."""
    container = asked.container
    names = {asked.target, *asked.ids}
    if container is not None:
        names |= {name for name in (container.cgroup, container.id) if name}
    for episode in all_episodes:
        if any(is_of_container(episode, name) for name in names - {"", "/"}):
            yield episode


def read_moment(path: Path, proc: Path = Path("/proc")) -> Moment | None:
    """One look at the counters; None if the cgroup has vanished."""
    memory = read_memory(path)
    return None if memory is None else Moment(time.monotonic_ns(), memory, read_vmstat(proc))


def _growth(before: Mapping[str, int], now: Mapping[str, int], names: Sequence[str]) -> int | None:
    known = [now[name] - before[name] for name in names if name in before and name in now]
    return sum(known) if known else None


def _try(notes: list[str], look: Callable[[], T]) -> T | None:
    try:
        return look()
    except (RtdebugError, HostUnable, OSError) as error:
        notes.append(error.message if isinstance(error, RtdebugError) else str(error))
        return None
