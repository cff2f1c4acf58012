"""A snapshot as a page of metrics in Prometheus' text format, by prometheus-client."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from rtdebug import __version__
from rtdebug.errors import HostUnable
from rtdebug.export.counters import Key
from rtdebug.export.model import Snapshot
from rtdebug.render.metrics_label import Labels, harmless, label_text
from rtdebug.render.metrics_list import (
    BUILD,
    HOST,
    LAST_KILL,
    LAST_RSS,
    OF_COUNTS,
    OF_STATES,
    Family,
    OfCounts,
    Sample,
    Values,
)


def require_prometheus_client() -> None:
    """Raise HostUnable when prometheus-client is not installed."""
    try:
        import prometheus_client  # noqa: F401
    except ImportError:
        raise HostUnable("`rtdebug export` needs prometheus-client", "pip install 'rtdebug[export]'") from None


class MetricsPage:
    """Makes pages of metrics; those of the exporter's own process (CPU, memory) are on them too, by prometheus-client.

    The containers' are written here: 10,000 containers have 440,000 samples, for which prometheus-client takes 12 s on
    the machine where this takes one.
    """

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, ProcessCollector

        self._own = CollectorRegistry()
        ProcessCollector(registry=self._own)

    def page(self, snapshot: Snapshot) -> bytes:
        """The page of a snapshot."""
        from prometheus_client import generate_latest

        own: bytes = generate_latest(self._own)
        return "".join(f"{line}\n" for line in lines_of(snapshot)).encode() + own


def lines_of(snapshot: Snapshot) -> Iterator[str]:
    """All metrics of a snapshot; those without samples are left out."""
    labels = Labels()
    of_states = [(labels.of(state.container), state) for state in snapshot.states]
    for each in OF_STATES:
        yield from _family(each.family, ((who, each.samples(state)) for who, state in of_states))
    owned = _owned(snapshot, labels)
    for counter in OF_COUNTS:
        samples = ((who, _counted(counter, values, snapshot.trace_up).items()) for who, values in owned)
        yield from _family(counter.family, samples)
    kills = [(labels.of(each.container), each.last_kill) for each in snapshot.counts.owned if each.last_kill]
    yield from _family(LAST_KILL, ((who, [((), kill.time_s)]) for who, kill in kills))
    yield from _family(
        LAST_RSS,
        ((who, [((), kill.victim_rss_bytes)]) for who, kill in kills if kill.victim_rss_bytes is not None),
    )
    for host_family, value in HOST:
        yield from _family(host_family, [("", [((), value(snapshot))])])
    yield from _family(BUILD, [("", [((__version__,), 1)])])


def _family(family: Family, samples: Iterable[tuple[str, Iterable[Sample]]]) -> Iterator[str]:
    """Lines of one metric. Samples come by container, whose labels are text already."""
    name = family.name
    head = [f"# HELP {name} {family.help}", f"# TYPE {name} {family.kind}"]
    for who, own in samples:
        for values, number in own:
            yield from head
            head = []
            labels = ",".join(filter(None, (who, label_text(family.labels, values))))
            yield f"{name}{{{labels}}} {number}" if labels else f"{name} {number}"


def _owned(snapshot: Snapshot, labels: Labels) -> list[tuple[str, Mapping[Key, int]]]:
    """Counters of all that have some, and of every running container: none yet."""
    by_id = {owned.container.id if owned.container else "": owned for owned in snapshot.counts.owned}
    found: list[tuple[str, Mapping[Key, int]]] = []
    running = set()
    for state in snapshot.states:
        if state.container.id in running:
            continue
        running.add(state.container.id)
        owned = by_id.get(state.container.id)
        found.append((labels.of(state.container), owned.values if owned else {}))
    found += [(labels.of(owned.container), owned.values) for key, owned in by_id.items() if key not in running]
    return found


def _counted(counter: OfCounts, values: Mapping[Key, int], trace_up: bool) -> dict[Values, int]:
    counted = dict.fromkeys(counter.zeros, 0) if trace_up else {}
    for key, number in values.items():
        if key[0] == counter.counter:
            shown = tuple(map(harmless, key[1:]))
            counted[shown] = counted.get(shown, 0) + number
    return counted
