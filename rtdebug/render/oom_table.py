"""OOM episodes as a table: one line each."""

from __future__ import annotations

from collections.abc import Iterator

from rtdebug.oom.episode import OomEpisode
from rtdebug.oom.log_usage import counter_of
from rtdebug.oom.schema import killed_of
from rtdebug.render.columns import align, cut_middle
from rtdebug.render.units import UNKNOWN, format_bytes, short_id, short_path

_HEADER = ("TIME", "SCOPE", "WHOSE", "KILLED", "HELD", "LIMIT", "VERDICT")
_NUMBERS = frozenset({4, 5})
_WIDEST = 30
_NS = 1_000_000_000


class OomTable:
    """The table for people; of an episode it keeps only its row, for a log may hold many with long task tables."""

    def __init__(self) -> None:
        self._rows: list[tuple[str, ...]] = []
        self._machines: list[str | None] = []
        self._incomplete = 0
        self._suppressed = 0

    def add(self, episode: OomEpisode) -> None:
        """One more line."""
        record = episode.record
        self._rows.append(_row(episode))
        self._machines.append(record.machine)
        self._incomplete += not record.complete
        self._suppressed += record.suppressed_dumps or 0

    def text(self) -> str:
        """All of it, with a column for the host where there are several."""
        several = len(set(self._machines) - {None}) > 1
        rows = [_HEADER, *self._rows]
        if several:
            hosts = ["HOST", *(machine or UNKNOWN for machine in self._machines)]
            rows = [(host, *row) for host, row in zip(hosts, rows, strict=True)]
        lines = align(rows, right={column + several for column in _NUMBERS}, limit=_WIDEST)
        return "\n".join([*lines, *self._below()]) + "\n"

    def _below(self) -> Iterator[str]:
        yield f"{len(self._rows)} OOM kills; each on a page of its own with -o text, all of it with -o json"
        if self._incomplete:
            yield f"* {self._incomplete} incomplete: the log does not hold the whole dump"
        if self._suppressed:
            yield f"the kernel left out {self._suppressed} more dumps (rate limit): there were more kills than these"


def _row(episode: OomEpisode) -> tuple[str, ...]:
    record = episode.record
    killed = killed_of(record)
    mark = "" if record.complete else " *"
    short = counter_of(record)
    return (
        short_time(episode),
        record.constraint or UNKNOWN,
        whose(episode),
        _killed(episode),
        format_bytes(_held(episode)) if killed else UNKNOWN,
        format_bytes(short.limit_bytes) if short else UNKNOWN,
        f"{episode.verdict.kind}{mark}",
    )


def short_time(episode: OomEpisode) -> str:
    """To the second; what has no date by its uptime."""
    return episode.when.to_the_second or UNKNOWN


def whose(episode: OomEpisode) -> str:
    """The victim's container, pod, unit or cgroup, whichever its owner knows first."""
    path, container = episode.victim_path, episode.container
    if container is not None and container.name:
        return container.name
    if path is not None and path.container_id:
        return f"{path.runtime}:{short_id(path.container_id)}" if path.runtime else short_id(path.container_id)
    if path is not None and (path.lxc_name or path.pod_uid):
        return f"lxc:{path.lxc_name}" if path.lxc_name else f"pod {path.pod_uid}"
    if episode.unit:
        return episode.unit
    return cut_middle(short_path(path.path), _WIDEST) if path is not None else UNKNOWN


def _killed(episode: OomEpisode) -> str:
    record = episode.record
    killed = killed_of(record)
    if not killed:
        return "nobody" if record.nobody_killed else UNKNOWN
    more = f" and {len(killed) - 1} more" if len(killed) > 1 else ""
    return f"{killed[0].comm or UNKNOWN} ({killed[0].pid}){more}"


def _held(episode: OomEpisode) -> int | None:
    """Resident memory of the killed."""
    sizes = [episode.facts.victim_kinds.get(kind) for kind in ("anon", "shmem", "file")]
    known = [size for size in sizes if size is not None]
    return sum(known) if known else None
