"""Every metric of the exporter: name, type, labels, and where its value comes from. docs/export.md explains them.

Names and units follow https://prometheus.io/docs/practices/naming; a test compares them with the document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from rtdebug.containers.model import Container
from rtdebug.export.model import Snapshot, State
from rtdebug.render.metrics_label import harmless

Values = tuple[str, ...]
Sample = tuple[Values, float]
"""The values of a metric's own labels, and the number."""


@dataclass(frozen=True, slots=True)
class Family:
    """One metric. `labels` are those beside WHO (of the host's: all)."""

    name: str
    kind: str
    """gauge or counter."""
    help: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OfState:
    """A metric of running containers."""

    family: Family
    samples: Callable[[State], Iterable[Sample]]


@dataclass(frozen=True, slots=True)
class OfCounts:
    """A counter of the trace, of containers that run or are gone."""

    family: Family
    counter: str
    """Key of the counter in counters.Counters."""
    zeros: tuple[Values, ...] = ()
    """Shown as 0 of every running container: increase() of Prometheus does not see a series' first value."""


def _gauge(name: str, text: str, *labels: str) -> Family:
    return Family(f"rtdebug_{name}", "gauge", text, labels)


def _counter(name: str, text: str, *labels: str) -> Family:
    return Family(f"rtdebug_{name}_total", "counter", text, labels)


def _figure(name: str, factor: float = 1.0) -> Callable[[State], Iterable[Sample]]:
    def samples(state: State) -> Iterable[Sample]:
        value = state.reading.figures.get(name)
        return () if value is None else (((), value * factor),)

    return samples


def _figures(names: Mapping[str, str], factor: float = 1.0) -> Callable[[State], Iterable[Sample]]:
    def samples(state: State) -> Iterable[Sample]:
        figures = state.reading.figures
        return [((label,), figures[name] * factor) for label, name in names.items() if name in figures]

    return samples


def _one(value: float | None) -> Iterable[Sample]:
    return () if value is None else (((), value),)


def _about(container: Container) -> Values:
    texts = container.runtime, container.image, container.cgroup, container.status
    return tuple(harmless(text or "") for text in texts)


_EVENTS = {name: f"events_{name}" for name in ("low", "high", "max", "oom", "oom_kill")}
OF_STATES: tuple[OfState, ...] = (
    OfState(
        _gauge("container_info", "1, with what is known of a container.", "runtime", "image", "cgroup", "status"),
        lambda state: ((_about(state.container), 1),),
    ),
    OfState(_gauge("container_memory_usage_bytes", "Memory charged to the cgroup."), _figure("usage_bytes")),
    OfState(
        _gauge("container_memory_limit_bytes", "Lowest limit of the cgroup and all above; absent without one."),
        _figure("limit_bytes"),
    ),
    OfState(
        _gauge("container_memory_kind_bytes", "Memory by kind; kinds do not overlap.", "kind"),
        lambda state: (((kind,), value) for kind, value in state.reading.kinds.items()),
    ),
    OfState(_gauge("container_swap_bytes", "Memory of the cgroup that is swapped out."), _figure("swap_bytes")),
    OfState(
        _gauge("container_thp_bytes", "Memory in transparent huge pages, by kind.", "kind"),
        lambda state: (((kind,), value) for kind, value in state.reading.thp.items()),
    ),
    OfState(
        _counter("container_thp_allocations", "Huge pages given at a page fault, or made by khugepaged.", "cause"),
        _figures({"fault": "thp_fault_alloc", "collapse": "thp_collapse_alloc"}),
    ),
    OfState(_counter("container_page_faults", "Page faults, minor and major."), _figure("faults")),
    OfState(_counter("container_major_page_faults", "Page faults that waited for a disk."), _figure("major_faults")),
    OfState(
        _counter("container_refaulted_pages", "Pages that came back soon after they were reclaimed."),
        _figure("refaults"),
    ),
    OfState(
        _counter("container_memory_events", "Events of memory.events; v1 has max (failcnt) and oom_kill.", "event"),
        _figures(_EVENTS),
    ),
    OfState(
        _counter("container_memory_pressure_seconds", "Time in which tasks waited for memory (PSI).", "share"),
        _figures({"some": "psi_some_us", "full": "psi_full_us"}, 1e-6),
    ),
    OfState(
        _gauge("container_shm_used_bytes", "In use in the tmpfs at /dev/shm."),
        lambda state: _one(state.shm.used_bytes if state.shm else None),
    ),
    OfState(
        _gauge("container_shm_size_bytes", "Size of the tmpfs at /dev/shm; absent when it has none."),
        lambda state: _one(state.shm.size_bytes if state.shm else None),
    ),
    OfState(
        _gauge("container_shm_orphans", "Pieces of shared memory of its own that nobody uses any more."),
        lambda state: _one(state.orphans.count if state.orphans else None),
    ),
    OfState(
        _gauge("container_shm_orphan_bytes", "What these take."),
        lambda state: _one(state.orphans.size_bytes if state.orphans else None),
    ),
    OfState(
        _gauge("container_unresponsive", "1: the container's file systems do not answer; /dev/shm is not known."),
        lambda state: (((), float(state.is_stuck)),),
    ),
    OfState(
        _gauge("container_leak_level", "Verdict on this kind of memory: 0 no leak, 1 suspect, 2 leak.", "kind"),
        lambda state: (((kind,), leak.level) for kind, leak in state.leaks.items()),
    ),
    OfState(
        _gauge("container_leak_growth_bytes_per_second", "Growth of the floor of this kind of memory.", "kind"),
        lambda state: (
            ((kind,), leak.growth_bytes_per_s)
            for kind, leak in state.leaks.items()
            if leak.growth_bytes_per_s is not None
        ),
    ),
    OfState(
        _gauge("container_baseline_outside", "1: the figure is outside its usual band.", "figure"),
        lambda state: (((figure,), float(band.is_outside)) for figure, band in state.bands.items()),
    ),
    OfState(
        _gauge("container_baseline_deviation_ratio", "Distance from the usual, in half widths of the band.", "figure"),
        lambda state: (((figure,), band.deviation) for figure, band in state.bands.items()),
    ),
    OfState(
        _counter("container_baseline_shifts", "How often a new level became the usual one.", "figure"),
        lambda state: (((figure,), band.shifts) for figure, band in state.bands.items()),
    ),
    OfState(
        _gauge("container_baseline_shift_timestamp_seconds", "When it last did.", "figure"),
        lambda state: (
            ((figure,), band.shifted_s) for figure, band in state.bands.items() if band.shifted_s is not None
        ),
    ),
)
_SIGBUS = ("tmpfs_full", "beyond_end_of_file", "hwpoison", "other")
OF_COUNTS: tuple[OfCounts, ...] = (
    OfCounts(_counter("oom_kills", "Processes killed by the OOM killer."), "oom_kills", ((),)),
    OfCounts(
        _counter(
            "oom_victims", "The same by the cgroup whose limit was hit, whose that is, and the victim's name.",
            "limit_cgroup", "limit_owner", "victim",
        ),
        "oom_victims",
    ),
    OfCounts(
        _counter("sigbus", "Bus errors, by what was wrong with the mapped file.", "reason"),
        "sigbus",
        tuple((reason,) for reason in _SIGBUS),
    ),
    OfCounts(_counter("shm_full", "Writes and page faults that found a tmpfs full (ENOSPC)."), "shm_full", ((),)),
    OfCounts(
        _counter("madvise_calls", "Calls of madvise and process_madvise.", "call", "advice", "result"), "madvise_calls"
    ),
    OfCounts(_counter("madvise_bytes", "Length of those that succeeded.", "call", "advice"), "madvise_bytes"),
)  # fmt: skip
LAST_KILL = _gauge("oom_last_kill_timestamp_seconds", "When the OOM killer last killed a process.")
LAST_RSS = _gauge("oom_last_kill_victim_rss_bytes", "What that process held: anon, file and shmem RSS.")
HOST: tuple[tuple[Family, Callable[[Snapshot], float]], ...] = (
    (_gauge("trace_up", "1: the trace runs. 0: counters of OOM kills, SIGBUS, ENOSPC and madvise stand still."),
     lambda snapshot: float(snapshot.trace_up)),
    (_counter("trace_lost_events", "Events that the trace lost."), lambda snapshot: snapshot.trace_lost),
    (_gauge("containers", "Running containers."), lambda snapshot: len(snapshot.states)),
    (_gauge("containers_left_out", "Containers beyond the most that are read."), lambda snapshot: snapshot.left_out),
    (_gauge("containers_unresponsive", "Containers whose file systems do not answer."),
     lambda snapshot: sum(state.is_stuck for state in snapshot.states)),
    (_gauge("last_pass_timestamp_seconds", "When the containers were last looked at."),
     lambda snapshot: snapshot.time_s),
    (_gauge("last_pass_duration_seconds", "How long that took."), lambda snapshot: snapshot.pass_s),
    (_gauge("pass_interval_seconds", "How often they are looked at."), lambda snapshot: snapshot.interval_s),
    (_counter("trace_series_dropped", "Series of containers that are gone, dropped for want of room (--max-series)."),
     lambda snapshot: snapshot.counts.dropped),
    (_counter("trace_events_not_counted", "Events that were not counted for want of room (--max-series)."),
     lambda snapshot: snapshot.counts.refused),
)  # fmt: skip
BUILD = _gauge("build_info", "1, with the version of rtdebug.", "version")

FAMILIES: tuple[Family, ...] = (
    *(each.family for each in OF_STATES),
    *(each.family for each in OF_COUNTS),
    LAST_KILL,
    LAST_RSS,
    *(family for family, _ in HOST),
    BUILD,
)
