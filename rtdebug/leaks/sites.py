"""Allocation sites of live processes: which place in a program holds the memory, from eBPF.

`--stacks`: what is mapped (mmap, brk) by the place that mapped it, and sampled page faults by the place that touched
the pages. `--malloc`: sampled allocations of the process's own allocator, by uprobes. All of it is added up in the
kernel; each pass takes what changed.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rtdebug.containers.model import Container
from rtdebug.host import bpf
from rtdebug.host.maps import PROC
from rtdebug.host.reasons import every_reason
from rtdebug.host.text import valid_utf8
from rtdebug.leaks.allocators import PROGRAMS, AllocatorFinder
from rtdebug.leaks.process_sample import Known
from rtdebug.leaks.sample import Sample
from rtdebug.leaks.site_maps import UNPAIRED, SiteKey, SiteMaps, SiteTotals
from rtdebug.leaks.site_stacks import SiteStacks
from rtdebug.leaks.tables import Row
from rtdebug.leaks.uprobe_cost import UprobeCost, measure_cost
from rtdebug.tracing.compiler import compiled_program
from rtdebug.tracing.loader import Loaded, load
from rtdebug.tracing.program import SITES
from rtdebug.tracing.scope import heap_end

FAULT_PERIOD = 97
"""One page fault in so many is looked at; a prime number, so that no program's own rhythm falls in with it."""
MAX_MALLOC_PROCESSES = 64
"""Each has uprobes of its own in the allocator, and each makes those of its neighbours a little slower."""
COST_SHARE = 0.1
"""Of one CPU: beyond it the user is told what --malloc costs."""
NAMING_NS = 500_000_000
"""So long the stacks of new sites are named in one pass; the rest waits for the next."""
MAX_ROWS = 4096
"""Rows of one pass: those that hold most."""


@dataclass(slots=True)
class _Watched:
    """A process that is watched, and the descriptors of its uprobes."""

    container: Container
    known: Known
    life: int
    probes: list[int] = field(default_factory=list)


class SiteWatcher:
    """Watches processes for their allocation sites. Use it as a context manager: leaving it detaches everything.

    `notice` is told what cannot be seen. Raises HostUnable when this host cannot trace, BpfError when the kernel
    refuses a program.
    """

    def __init__(
        self, host: str, notice: Callable[[str], object], *, stacks: bool, malloc: bool, proc: Path = PROC
    ) -> None:
        self._host = valid_utf8(host)
        self._notice = notice
        self._malloc = malloc
        self._proc = proc
        self._finder = AllocatorFinder(proc)
        self._watched: dict[int, _Watched] = {}
        self._who: dict[tuple[int, int], tuple[Container, str]] = {}
        self._reported: dict[SiteKey, SiteTotals] = {}
        self._stacks = SiteStacks(proc)
        self._told: set[str] = set()
        self._events: list[int] = []
        self._cost: UprobeCost | None = None
        self._hits = 0, 0
        self._looked_ns = 0
        self._loaded: Loaded = load(compiled_program(SITES), {}, [])
        self._maps = SiteMaps(self._loaded.maps)
        try:
            self._start(stacks)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> SiteWatcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Detach and free everything."""
        for watched in self._watched.values():
            _close(watched.probes)
        _close(self._events)
        self._loaded.close()

    # --- who is watched ---

    def watch(self, sample: Sample) -> None:
        """Watch the processes of a sample from now on, and let go of all others."""
        for pid in self._watched.keys() - sample.pids.keys():
            self._let_go(pid)
        for pid, (container, known) in sample.pids.items():
            watched = self._watched.get(pid)
            if watched is None or watched.known is not known:
                self._let_go(pid)
                self._enter(pid, container, known)

    def counts(self) -> Mapping[str, int]:
        """What found no room in the kernel, and how often the uprobes were hit: site_maps.COUNTS."""
        return self._maps.counts()

    def _enter(self, pid: int, container: Container, known: Known) -> None:
        life = self._maps.watch(pid, random.getrandbits(32) | 1, heap_end(pid, self._proc))
        watched = self._watched[pid] = _Watched(container, known, life)
        self._who[pid, life] = container, known.identity
        if self._malloc:
            self._attach(pid, watched)

    def _let_go(self, pid: int) -> None:
        watched = self._watched.pop(pid, None)
        if watched is not None:
            _close(watched.probes)
            if not (self._proc / str(pid)).exists():
                self._maps.unwatch(pid)

    def _attach(self, pid: int, watched: _Watched) -> None:
        """Put uprobes on the allocators of a process."""
        if sum(1 for other in self._watched.values() if other.probes) >= MAX_MALLOC_PROCESSES:
            self._tell(f"more than {MAX_MALLOC_PROCESSES} processes: malloc of the others is not sampled")
            return
        found = self._finder.find(pid)
        if found.unseen is not None:
            who = watched.container.name or watched.container.id
            self._tell(f"{who}: {found.unseen} shows no malloc (static and stripped, or Go): use --stacks for it")
        for fd, allocator in found.files:
            try:
                for name, offset in allocator.places:
                    watched.probes += self._probe(pid, Path(f"/proc/self/fd/{fd}"), PROGRAMS[name], offset)
            except bpf.BpfError as error:
                _close(watched.probes)
                if (self._proc / str(pid)).exists():
                    self._tell(f"malloc in {allocator.path} cannot be sampled: {error.message}")
            finally:
                os.close(fd)

    def _probe(self, pid: int, file: Path, function: str, offset: int) -> list[int]:
        programs = self._loaded.programs
        probes = []
        if function != "on_free":  # the return first: a sampled call must find it there
            probes.append(bpf.open_uprobe(programs["on_alloc_return"], file, offset, pid, at_return=True))
        try:
            probes.append(bpf.open_uprobe(programs[function], file, offset, pid, at_return=False))
        except bpf.BpfError:
            _close(probes)
            raise
        return probes

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._notice(text)

    # --- what they did ---

    def rows(self, time_ns: int) -> list[Row]:
        """What changed since the last time, by the columns of tables.SITES; those that hold most come first."""
        self._watch_cost()
        alive = self._maps.lives()
        changed = [(key, totals) for key, totals in self._maps.sites().items() if totals != self._reported.get(key)]
        changed.sort(key=lambda item: item[1].freed_bytes - item[1].allocated_bytes)
        self._learn(alive)
        until_ns = time.monotonic_ns() + NAMING_NS
        rows = []
        for key, totals in changed[:MAX_ROWS]:
            if self._stacks.knows(key) or time.monotonic_ns() < until_ns:
                row = self._row(time_ns, key, totals)
                rows += [] if row is None else [row]
        self._forget_the_gone({(key.pid, key.life) for key, _ in changed} | self._who.keys(), alive)
        return rows

    def _row(self, time_ns: int, key: SiteKey, totals: SiteTotals) -> Row | None:
        who = self._who.get((key.pid, key.life))
        if who is None:
            return None  # it came and went between two samples
        self._reported[key] = totals
        unpaired = key.stack_id == UNPAIRED
        faults = key.kind == "fault"
        return (
            time_ns,
            self._host,
            valid_utf8(who[0].id),
            who[1],
            key.pid,
            key.kind,
            None if unpaired else self._stacks.text(key, totals, self._maps),
            None if unpaired or faults else totals.allocated_bytes - totals.freed_bytes,
            None if unpaired else totals.allocated_bytes,
            None if faults else totals.freed_bytes,
            None if unpaired else totals.allocations,
            None if faults else totals.frees,
            totals.frees if unpaired else 0,
        )

    def _watch_cost(self) -> None:
        """Say once when the uprobes take more than they should, and once when something found no room."""
        counts = self._maps.counts()
        now_ns = time.monotonic_ns()
        if self._cost is not None:
            hits = counts["entries"] - self._hits[0], counts["returns"] - self._hits[1]
            share = self._cost.of(*hits) / max(1, now_ns - self._looked_ns)
            self._hits = counts["entries"], counts["returns"]
            if share > COST_SHARE and self._looked_ns:
                per_s = hits[0] * 1_000_000_000 // (now_ns - self._looked_ns)
                if "cost" not in self._told:
                    self._told.add("cost")
                    self._notice(
                        f"--malloc takes {share:.0%} of a CPU from the containers: {per_s:,} calls a second, "
                        f"{self._cost.entry_ns / 1000:.1f} us for each, and {self._cost.return_ns / 1000:.1f} us more "
                        "for its return; stop it if that is too much"
                    )
        self._looked_ns = now_ns
        for what in ("sites", "mappings", "allocations", "threads"):
            if counts[what]:
                self._tell(f"the kernel's table of {what} is full: some of them are missing from the sites")

    def _learn(self, alive: set[tuple[int, int]]) -> None:
        """Lives that began in the kernel, by fork or exec, of processes that we know."""
        for pid, life in alive - self._who.keys():
            watched = self._watched.get(pid)
            if watched is not None:
                self._who[pid, life] = watched.container, watched.known.identity

    def _forget_the_gone(self, known: set[tuple[int, int]], alive: set[tuple[int, int]]) -> None:
        gone = known - alive
        if gone:
            self._maps.forget(gone)
            for life in gone:
                self._who.pop(life, None)
            for key in [key for key in self._reported if (key.pid, key.life) in gone]:
                del self._reported[key]
                self._stacks.forget(key)

    # --- start ---

    def _start(self, stacks: bool) -> None:
        life_probes = [probe for probe in SITES.probes if probe.function != "on_growth"]
        probes = SITES.probes if stacks else life_probes
        for probe in probes:
            self._loaded.load_tracepoint(probe)
        if self._malloc:
            self._maps.fill_tables()
            for function in {*PROGRAMS.values(), "on_alloc_return"}:
                self._loaded.load_function(function, bpf.PROG_TYPE_KPROBE)
            programs = self._loaded.programs
            self._cost = measure_cost(programs["on_free"], programs["on_alloc_return"])
            counts = self._maps.counts()
            self._hits = counts["entries"], counts["returns"]
        self._loaded.attach(probes)
        if stacks:
            program = self._loaded.load_function("on_fault", bpf.PROG_TYPE_PERF_EVENT)
            for cpu in range(bpf.possible_cpus()):
                try:
                    self._events.append(bpf.open_software_event(program, bpf.PAGE_FAULTS, FAULT_PERIOD, cpu))
                except bpf.BpfError as error:
                    if not _is_offline(cpu):
                        self._tell(f"page faults are not sampled on CPU {cpu}: {error.message}")


def open_sites(host: str, notice: Callable[[str], object], *, stacks: bool, malloc: bool) -> SiteWatcher | None:
    """A watcher for what was asked for; None if nothing was. Raises HostUnable with all that is missing."""
    if not stacks and not malloc:
        return None
    with every_reason():
        return SiteWatcher(host, notice, stacks=stacks, malloc=malloc)


def _is_offline(cpu: int, sys: Path = Path("/sys")) -> bool:
    try:
        return (sys / f"devices/system/cpu/cpu{cpu}/online").read_text(encoding="ascii").strip() == "0"
    except OSError:
        return not (sys / f"devices/system/cpu/cpu{cpu}").exists()


def _close(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())
