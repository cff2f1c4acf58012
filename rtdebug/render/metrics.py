"""A snapshot as a page of metrics in Prometheus' text format, by prometheus-client."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from rtdebug import __version__
from rtdebug.containers.model import Container
from rtdebug.errors import HostUnable
from rtdebug.export.counters import Key, Owned
from rtdebug.export.model import Snapshot
from rtdebug.render.escape import escape
from rtdebug.render.metrics_list import (
    BUILD,
    HOST,
    LAST_KILL,
    LAST_RSS,
    OF_COUNTS,
    OF_STATES,
    WHO,
    Family,
    OfCounts,
    Values,
)

if TYPE_CHECKING:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    Metric: TypeAlias = CounterMetricFamily | GaugeMetricFamily

_LONGEST_LABEL = 128
_SHORT_ID = 12


def require_prometheus_client() -> None:
    """Raise HostUnable when prometheus-client is not installed."""
    try:
        import prometheus_client  # noqa: F401
    except ImportError:
        raise HostUnable("`rtdebug export` needs prometheus-client", "pip install 'rtdebug[export]'") from None


class MetricsPage:
    """Makes pages of metrics; those of the exporter's own process (CPU, memory) are on them too."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, ProcessCollector

        self._registry = CollectorRegistry(auto_describe=False)
        self._snapshot: Snapshot | None = None
        ProcessCollector(registry=self._registry)
        self._registry.register(self)

    def page(self, snapshot: Snapshot) -> bytes:
        """The page of a snapshot."""
        from prometheus_client import generate_latest

        self._snapshot = snapshot
        content: bytes = generate_latest(self._registry)
        return content

    def describe(self) -> Iterable[Metric]:
        """Nothing: so that nobody collects before there is a snapshot."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """The metrics of the last snapshot, for prometheus-client."""
        return iter(()) if self._snapshot is None else families_of(self._snapshot)


def families_of(snapshot: Snapshot) -> Iterator[Metric]:
    """All metrics of a snapshot; those without samples are left out."""
    labels = _Labels()
    of_states = [(labels.of(state.container), state) for state in snapshot.states]
    for each in OF_STATES:
        family = _family(each.family, WHO)
        for who, state in of_states:
            for values, number in each.samples(state):
                family.add_metric((*who, *_texts(*values)), number)
        if family.samples:
            yield family
    owned = _owned(snapshot, labels)
    for counter in OF_COUNTS:
        family = _family(counter.family, WHO)
        for who, values_of in owned:
            for values, number in _counted(counter, values_of, snapshot.trace_up).items():
                family.add_metric((*who, *_texts(*values)), number)
        if family.samples:
            yield family
    yield from _last_kills(snapshot.counts.owned, labels)
    for host_family, value in HOST:
        family = _family(host_family)
        family.add_metric((), value(snapshot))
        yield family
    build = _family(BUILD)
    build.add_metric((__version__,), 1)
    yield build


class _Labels:
    """Labels of containers: the same for the same container, different for different ones, whatever they are called."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str | None], Values] = {}
        self._taken: set[Values] = set()

    def of(self, container: Container | None) -> Values:
        """Values of WHO; empty, which is absent, for processes in no container."""
        if container is None:
            return ("", "", "", "")
        key = container.id, container.cgroup
        if key not in self._known:
            self._known[key] = self._make(container)
        return self._known[key]

    def _make(self, container: Container) -> Values:
        short = _short(container.id)
        in_pod = container.pod is not None
        who = _texts(
            container.name or short, short, (container.namespace or "") if in_pod else "", container.pod or ""
        )
        if who in self._taken:  # ids of containerd are unique in a namespace only; nested names are anybody's
            who = (who[0], *_texts(container.cgroup or container.id), *who[2:])
        number = 2
        while who in self._taken:
            who, number = (who[0], f"{short}#{number}", *who[2:]), number + 1
        self._taken.add(who)
        return who


def _owned(snapshot: Snapshot, labels: _Labels) -> list[tuple[Values, Mapping[Key, int]]]:
    """Counters of all that have some, and of every running container: none yet."""
    by_id = {owned.container.id if owned.container else "": owned for owned in snapshot.counts.owned}
    found: list[tuple[Values, Mapping[Key, int]]] = []
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
            counted[key[1:]] = number
    return counted


def _last_kills(owned: Sequence[Owned], labels: _Labels) -> Iterator[Metric]:
    when, rss = _family(LAST_KILL, WHO), _family(LAST_RSS, WHO)
    for each in owned:
        if each.last_kill is not None:
            who = labels.of(each.container)
            when.add_metric(who, each.last_kill.time_s)
            if each.last_kill.victim_rss_bytes is not None:
                rss.add_metric(who, each.last_kill.victim_rss_bytes)
    yield from (family for family in (when, rss) if family.samples)


def _family(family: Family, who: tuple[str, ...] = ()) -> Metric:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    make = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    return make(family.name, family.help, labels=(*who, *family.labels))


def _short(container_id: str) -> str:
    """As docker and crictl show it; ids that are no hashes stay whole."""
    is_hash = len(container_id) >= 32 and all(character in "0123456789abcdef" for character in container_id)
    return container_id[:_SHORT_ID] if is_hash else container_id


def _texts(*texts: str) -> Values:
    """What a container chose, harmless on a terminal too, and not without end."""
    return tuple(escape(text, _LONGEST_LABEL) for text in texts)
