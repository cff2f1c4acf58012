"""Selection: which of the OOM episodes somebody wants to see."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from rtdebug.containers.cgroup_path import parse_cgroup_path
from rtdebug.oom.episode import OomEpisode
from rtdebug.oom.schema import killed_of
from rtdebug.tracing.line import EventLine

_KEPT_AT_MOST = 100_000
_SHORTEST_ID = 4


@dataclass(slots=True)
class Selection:
    """Filters; None lets everything through. `untimed` counts what a time was asked of and that has none."""

    since_ns: int | None = None
    until_ns: int | None = None
    container: str | None = None
    untimed: int = 0
    _file_of: dict[tuple[object, ...], str | None] = field(default_factory=dict)

    def of(self, episodes: Iterable[OomEpisode]) -> Iterator[OomEpisode]:
        """Those that are wanted; what stands in two files (syslog and kern.log) comes once."""
        return (each for each in episodes if self._in_time(each) and self._is_its(each) and not self._is_twin(each))

    def nothing_in(self, places: object) -> str:
        """What to say when none of them is wanted: not that there are none at all."""
        of = f" of {self.container!r}" if self.container is not None else ""
        when = " in that time" if self.since_ns is not None or self.until_ns is not None else ""
        return f"no OOM kill{of}{when} in {places}"

    def _in_time(self, episode: OomEpisode) -> bool:
        if self.since_ns is None and self.until_ns is None:
            return True
        time_ns = episode.when.epoch_ns
        if time_ns is None:
            self.untimed += 1
            return False
        return (self.since_ns is None or time_ns >= self.since_ns) and (
            self.until_ns is None or time_ns <= self.until_ns
        )

    def _is_its(self, episode: OomEpisode) -> bool:
        return self.container is None or is_of_container(episode, self.container)

    def _is_twin(self, episode: OomEpisode) -> bool:
        """It was in another file already. In the same one it is another kill: in a log that was pasted twice, too."""
        record = episode.record
        pids = tuple(victim.pid for victim in killed_of(record))
        if not pids or (record.time_text is None and record.time_ns is None):
            return False
        key = (record.machine, record.time_text, record.time_ns, pids)
        if len(self._file_of) >= _KEPT_AT_MOST:
            return False
        return self._file_of.setdefault(key, episode.file) != episode.file


def wants_line(container: str | None) -> Callable[[EventLine], bool]:
    """Whether an event line is of a container that is called so; None: of any."""
    if container is None:
        return lambda line: True
    wanted = container.removeprefix("cgroup:").removeprefix("pod/")

    def wants(line: EventLine) -> bool:
        path = parse_cgroup_path(line.cgroup) if line.cgroup else None
        names = (line.container_name, path.pod_uid if path else None, path.unit if path else None)
        return wanted in names or _is_id(wanted, (line.container_id,)) or _is_path(wanted, (line.cgroup,))

    return wants


def is_of_container(episode: OomEpisode, text: str) -> bool:
    """Whether `text` names its container or pod: an id or the beginning of one, a name, a unit, a cgroup's path."""
    container, path = episode.container, episode.victim_path
    names = {
        episode.unit,
        path.lxc_name if path else None,
        path.pod_uid if path else None,
        container.name if container else None,
        container.pod if container else None,
        f"{container.namespace}/{container.pod}" if container else None,
    }
    ids = [path.container_id, path.outer_container_id] if path else []
    paths = [episode.record.task_memcg, episode.record.oom_memcg]
    wanted = text.removeprefix("cgroup:").removeprefix("pod/")
    return wanted in names or _is_id(wanted, ids) or _is_path(wanted, paths)


def _is_id(wanted: str, ids: Iterable[str | None]) -> bool:
    return len(wanted) >= _SHORTEST_ID and any(each is not None and each.startswith(wanted) for each in ids)


def _is_path(wanted: str, paths: Iterable[str | None]) -> bool:
    return any(each is not None and f"{each}/".startswith(f"{wanted.rstrip('/')}/") for each in paths)
