"""The exporter's loop: look at all containers, make a snapshot, publish it, wait. A scrape only gets what is there."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from rtdebug.containers.model import Container
from rtdebug.export.apart import Apart
from rtdebug.export.background import Background
from rtdebug.export.counters import Counters
from rtdebug.export.leak_watch import LeakWatch
from rtdebug.export.model import Orphans, Reading, Snapshot, State
from rtdebug.export.reading import MemoryReader, read_orphans, read_shm_usage
from rtdebug.export.traced import TraceProcess
from rtdebug.host.cgroup import MemoryHierarchy
from rtdebug.host.inside import TmpfsUsage
from rtdebug.host.signals import on_stop_signals
from rtdebug.leaks.baseline import BASELINE_BYTES, BASELINE_RATES, Band, Baselines

MOST_CONTAINERS = 20_000
"""Read in one pass: whoever may make cgroups inside of a container can make any number of them."""
_ORPHANS_PAUSE_S = 5.0
_ORPHANS_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Publish:
    """Where snapshots go."""

    content: Callable[[Snapshot], object]
    check: Callable[[], object] = lambda: None
    """Raises an RtdebugError when nobody can get them any more."""


class Exporter:
    """One run. `containers` gives those that run now."""

    def __init__(
        self,
        hierarchy: MemoryHierarchy,
        containers: Callable[[], Iterable[Container]],
        counters: Counters,
        trace: TraceProcess | None,
        *,
        interval_s: float = 10.0,
        baselines: Baselines | None = None,
        leaks: LeakWatch | None = None,
        most_containers: int = MOST_CONTAINERS,
    ) -> None:
        self._hierarchy = hierarchy
        self._containers = containers
        self._counters = counters
        self._trace = trace
        self._interval_s = interval_s
        self._baselines = baselines
        self._leaks = leaks or LeakWatch()
        self._most_containers = most_containers
        self._reader = MemoryReader(hierarchy)
        self._memory: Apart[str, Reading | None] = Apart(lambda cgroup: self._reader.read(cgroup))
        self._shm: Apart[Container, TmpfsUsage | None] = Apart(read_shm_usage)
        self._orphans_of = Background[tuple[str, Orphans | None]](_ORPHANS_PATIENCE_S, _ORPHANS_PAUSE_S)
        self._orphans: dict[str, Orphans] = {}
        self._asked_orphans: dict[str, float] = {}
        self._before: dict[str, tuple[float, Reading]] = {}
        self._stop = False

    def run(self, publish: Publish, ready: Callable[[], object]) -> None:
        """Publish snapshots until SIGINT, SIGTERM or SIGHUP; `ready` is called after the first."""
        with on_stop_signals(self._on_signal) as wake_fd:
            try:
                is_first = True
                while not self._stop:
                    due_s = time.monotonic() + self._interval_s
                    publish.content(self.look())
                    if is_first:
                        ready()
                    is_first = False
                    self._wait(due_s, wake_fd, publish.check)
            finally:
                self.close()

    def look(self) -> Snapshot:
        """One pass over all containers."""
        began_s, now_s = time.monotonic(), time.time()
        if self._trace is not None:
            self._trace.advance()
        # a pause container runs nothing of its owner's
        found = {each.cgroup: each for each in self._containers() if each.cgroup and not each.sandbox}
        found.pop("/", None)
        running = dict(list(found.items())[: self._most_containers])
        self._reader = MemoryReader(self._hierarchy)
        readings = {key: found for key, found in self._memory.read({key: key for key in running}).items() if found}
        shm = self._shm.read({key: running[key] for key in readings})
        self._leaks.add(now_s, {key: (running[key], reading) for key, reading in readings.items()})
        bands = self._bands(readings, shm, now_s)
        self._ask_for_orphans({key: running[key] for key in readings})
        self._counters.see(running[key] for key in readings)
        stuck = self._shm.stuck
        states = tuple(
            State(
                running[key],
                reading,
                shm.get(key),
                self._orphans.get(key),
                key in stuck,
                self._leaks.verdicts(key),
                bands.get(key, {}),
            )
            for key, reading in readings.items()
        )
        return Snapshot(
            time_s=now_s,
            pass_s=time.monotonic() - began_s,
            interval_s=self._interval_s,
            states=states,
            left_out=len(found) - len(running),
            counts=self._counters.counts(),
            trace_up=self._trace is not None and self._trace.is_up,
            trace_lost=0 if self._trace is None else self._trace.lost,
        )

    def close(self) -> None:
        """End the helper processes."""
        if self._trace is not None:
            self._trace.close()
        self._leaks.close()
        self._orphans_of.close()

    def _bands(
        self, readings: Mapping[str, Reading], shm: Mapping[str, TmpfsUsage | None], now_s: float
    ) -> dict[str, dict[str, Band]]:
        before, self._before = self._before, {key: (now_s, reading) for key, reading in readings.items()}
        bands: dict[str, dict[str, Band]] = {}
        if self._baselines is None:
            return bands
        values = {
            (key, figure): value
            for key, reading in readings.items()
            for figure, value in figures_of(reading, shm.get(key), before.get(key), now_s).items()
        }
        for (key, figure), band in self._baselines.add(values, now_s).items():
            bands.setdefault(key, {})[figure] = band
        return bands

    def _ask_for_orphans(self, running: Mapping[str, Container]) -> None:
        """One container at a time, whose turn it is: every process of the host is looked at for it."""
        answer = self._orphans_of.poll()
        if answer is not None and answer[1] is not None:
            self._orphans[answer[0]] = answer[1]
        for known in (self._orphans, self._asked_orphans):
            for gone in known.keys() - running.keys():
                del known[gone]
        able = [key for key, each in running.items() if each.pid is not None and key not in self._shm.stuck]
        if able and self._orphans_of.may_ask():
            key = min(able, key=lambda each: self._asked_orphans.get(each, 0.0))
            self._asked_orphans[key] = time.monotonic()
            self._orphans_of.ask(partial(_orphans_or_none, key, running[key], self._hierarchy))

    def _wait(self, due_s: float, wake_fd: int, check: Callable[[], object]) -> None:
        """Until it is time; less when the trace came up or went down, which is news."""
        was_up = self._trace is not None and self._trace.is_up
        while not self._stop and (left_s := due_s - time.monotonic()) > 0:
            fds = [wake_fd, *(self._trace.wake_fds if self._trace is not None else ())]
            select.select(fds, [], [], min(left_s, 1.0))
            check()
            if self._trace is not None:
                self._trace.advance()
                if self._trace.is_up != was_up:
                    return

    def _on_signal(self) -> None:
        if self._stop:
            raise KeyboardInterrupt
        self._stop = True


def figures_of(
    reading: Reading, shm: TmpfsUsage | None, before: tuple[float, Reading] | None, now_s: float
) -> dict[str, float]:
    """The figures that have a baseline; a rate needs the reading before."""
    values = {f"{kind}_bytes": float(reading.kinds[kind]) for kind in BASELINE_BYTES if kind in reading.kinds}
    if "usage_bytes" in reading.figures:
        values["usage_bytes"] = float(reading.figures["usage_bytes"])
    if shm is not None and shm.used_bytes is not None:
        values["shm_used_bytes"] = float(shm.used_bytes)
    if before is not None and now_s > before[0]:
        for figure in BASELINE_RATES:
            if figure in reading.figures and figure in before[1].figures:
                grown = max(0, reading.figures[figure] - before[1].figures[figure])
                values[f"{figure}_per_second"] = grown / (now_s - before[0])
    return values


def _orphans_or_none(
    key: str, container: Container, hierarchy: MemoryHierarchy
) -> tuple[str, Orphans | None]:
    import os

    from rtdebug.errors import RtdebugError

    os.nice(19)
    try:
        return key, read_orphans(container, hierarchy)
    except (RtdebugError, OSError):
        return key, None
