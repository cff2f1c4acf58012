"""The loop of `rtdebug leaks record`: sample, store, wait; end properly at a signal or after a time."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

from rtdebug.host.signals import on_stop_signals
from rtdebug.leaks.sample import Sample, Sampler
from rtdebug.leaks.selection import Selection
from rtdebug.leaks.tables import Row
from rtdebug.leaks.writer import StoreWriter

_NS_PER_S = 1_000_000_000


class SiteSource(Protocol):
    """Where rows of the table `sites` come from."""

    def watch(self, sample: Sample) -> None:
        """Watch these processes from now on, and let go of all others."""

    def rows(self, time_ns: int) -> list[Row]:
        """What changed since the last time."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What a recording has done so far."""

    containers: int
    """In the last sample; so are the processes."""
    processes: int
    samples: int
    missed: int
    """Samples that were due while the one before was still being taken, or the machine slept."""
    lost_rows: int
    """Rows that could not be written."""
    elapsed_ns: int
    cpu_ns: int
    """Of the recorder, since it began to sample."""
    size_bytes: int
    """Of all that this host has in the store."""


class Recorder:
    """One run. `tell` gets the progress after each sample."""

    def __init__(
        self,
        selection: Selection,
        sampler: Sampler,
        writer: StoreWriter,
        *,
        interval_s: float,
        duration_s: float | None = None,
        sites: SiteSource | None = None,
        tell: Callable[[Progress], object] = lambda _progress: None,
    ) -> None:
        self._selection = selection
        self._sampler = sampler
        self._writer = writer
        self._interval_ns = int(interval_s * _NS_PER_S)
        self._duration_ns = None if duration_s is None else int(duration_s * _NS_PER_S)
        self._sites = sites
        self._tell = tell
        self._stop = False
        self._began_ns = self._began_cpu_ns = 0
        self._samples = self._missed = 0
        self._last = Sample(0, [], [], {})

    def run(self, ready: Callable[[], object]) -> Progress:
        """Record until SIGINT, SIGTERM, SIGHUP or the end of the duration; `ready` is called after the first sample."""
        with ExitStack() as stack:
            wakeup_fd = stack.enter_context(on_stop_signals(self._on_signal))
            stack.callback(self._selection.close)
            self._began_ns, self._began_cpu_ns = time.monotonic_ns(), time.process_time_ns()
            due_ns = self._began_ns
            while True:
                self._take()
                if self._samples == 1:
                    ready()
                due_ns = self._next(due_ns)
                if self._stop or self._is_over(due_ns) or not self._wait(due_ns, wakeup_fd):
                    break
            if self._duration_ns is not None and not self._stop:
                self._wait(self._began_ns + self._duration_ns, wakeup_fd)
                self._take()
        return self.progress()

    def progress(self) -> Progress:
        """What was done up to now."""
        return Progress(
            containers=len(self._last.cgroups),
            processes=len(self._last.processes),
            samples=self._samples,
            missed=self._missed,
            lost_rows=self._writer.lost_rows,
            elapsed_ns=time.monotonic_ns() - self._began_ns,
            cpu_ns=time.process_time_ns() - self._began_cpu_ns,
            size_bytes=self._writer.size_bytes(),
        )

    def _take(self) -> None:
        sample = self._last = self._sampler.sample(self._selection.containers())
        self._samples += 1
        self._writer.add("cgroups", sample.cgroups)
        self._writer.add("processes", sample.processes)
        if self._sites is not None:
            self._writer.add("sites", self._sites.rows(sample.time_ns))
            self._sites.watch(sample)
        if self._samples == 1:
            self._writer.flush()  # who reads the store sees at once that something is recorded
        self._tell(self.progress())

    def _next(self, due_ns: int) -> int:
        """The next time of the grid that is not over yet."""
        late = max(0, time.monotonic_ns() - due_ns) // self._interval_ns
        self._missed += late
        return due_ns + (late + 1) * self._interval_ns

    def _is_over(self, due_ns: int) -> bool:
        return self._duration_ns is not None and due_ns >= self._began_ns + self._duration_ns

    def _wait(self, until_ns: int, wakeup_fd: int) -> bool:
        """False: a signal came."""
        while not self._stop and (left_ns := until_ns - time.monotonic_ns()) > 0:
            select.select([wakeup_fd], [], [], left_ns / _NS_PER_S)
        return not self._stop

    def _on_signal(self) -> None:
        if self._stop:
            raise KeyboardInterrupt
        self._stop = True
