"""Clusters: OOM kills that share whose they are, which program died and what filled the memory."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rtdebug.oom.episode import OomEpisode
from rtdebug.oom.log_usage import counter_of
from rtdebug.oom.schema import killed_of

if TYPE_CHECKING:
    import pandas as pd

Pattern = Literal["once", "burst", "periodic", "repeated", "untimed"]
"""burst: most within minutes of each other. periodic: at even distances. repeated: neither."""

_NS = 1_000_000_000
_BURST_S = 600.0
"""A container that is killed, restarted and killed again does so within the back-off of 5 min (CrashLoopBackOff) and
the time that it takes to fill up."""
_EVEN = 0.2
"""Half of the distances lie so near to their median: a job that runs by the clock, or a leak of even speed."""
_EVEN_FROM = 4
"""Kills: three distances are the fewest of which "even" can be said."""
_KEYS = ["owner", "comm", "kind"]


@dataclass(frozen=True, slots=True)
class Cluster:
    """Kills of one kind."""

    owner: str | None
    """Image, pod, unit or cgroup whose limit was hit; None: no cgroup's was, or it is not known."""
    owner_kind: str | None
    comm: str | None
    """Program that was killed, with digits left out of its name: workers differ in their numbers only."""
    kind: str
    """Verdict of most."""
    dominant_kind: str | None
    kills: int
    hosts: tuple[str, ...]
    containers: int
    first_ns: int | None
    last_ns: int | None
    median_interval_s: float | None
    pattern: Pattern
    median_held_bytes: int | None
    """Resident memory of the killed."""
    median_limit_bytes: int | None


def find_clusters(episodes: Iterable[OomEpisode]) -> list[Cluster]:
    """Group them; the largest cluster first."""
    import pandas as pd

    # not groupby(): names out of a log need not be text that Arrow can hold
    groups: dict[tuple[object, ...], list[dict[str, object]]] = {}
    for row in map(_row, episodes):
        groups.setdefault(tuple(row[key] for key in _KEYS), []).append(row)
    clusters = [_cluster(pd.DataFrame(rows, dtype=object)) for rows in groups.values()]
    return sorted(clusters, key=lambda each: (-each.kills, each.first_ns or 0))


def _row(episode: OomEpisode) -> dict[str, object]:
    killed = killed_of(episode.record)
    owner_kind, owner = _owner(episode)
    held = [episode.facts.victim_kinds.get(kind) for kind in ("anon", "shmem", "file")]
    counter = counter_of(episode.record)
    path = episode.victim_path
    return {
        "owner": owner,
        "owner_kind": owner_kind,
        "comm": _program(killed[0].comm) if killed else None,
        "kind": episode.verdict.kind,
        "dominant_kind": episode.facts.dominant[0] if episode.facts.dominant else None,
        "host": episode.record.machine or episode.file,
        "container": (path.container_id or path.lxc_name) if path else None,
        "time_ns": episode.when.epoch_ns,
        "held_bytes": sum(size for size in held if size is not None) if any(s is not None for s in held) else None,
        "limit_bytes": counter.limit_bytes if counter else None,
    }


def _owner(episode: OomEpisode) -> tuple[str | None, str | None]:
    """What kills of replicas and restarts have in common: rather the image than the pod than the container."""
    container, path = episode.container, episode.victim_path
    if container is not None and container.image:
        return "image", container.image
    if episode.record.constraint not in ("memcg", None):
        return None, None
    if path is None:
        return ("unit", episode.unit) if episode.unit else (None, None)
    if path.pod_uid:
        return "pod", path.pod_uid
    if path.container_id:
        return "container", path.container_id
    if path.lxc_name or episode.unit:
        return ("lxc", path.lxc_name) if path.lxc_name else ("unit", episode.unit)
    return "cgroup", episode.record.oom_memcg or path.path


def _program(comm: str | None) -> str | None:
    """`worker-12`, `worker-7` -> `worker-#`."""
    if comm is None:
        return None
    return re.sub(r"\d+", "#", comm)


def _cluster(group: pd.DataFrame) -> Cluster:
    first = group.iloc[0]
    times = group["time_ns"].dropna().astype("int64").sort_values()
    intervals = times.diff().dropna() / _NS
    return Cluster(
        owner=_text(first["owner"]),
        owner_kind=_text(first["owner_kind"]),
        comm=_text(first["comm"]),
        kind=str(first["kind"]),
        dominant_kind=_most(group["dominant_kind"]),
        kills=len(group),
        hosts=tuple(sorted(str(host) for host in group["host"].dropna().unique())),
        containers=int(group["container"].nunique()),
        first_ns=int(times.iloc[0]) if len(times) else None,
        last_ns=int(times.iloc[-1]) if len(times) else None,
        median_interval_s=float(intervals.median()) if len(intervals) else None,
        pattern=_pattern(len(group), intervals),
        median_held_bytes=_median(group["held_bytes"]),
        median_limit_bytes=_median(group["limit_bytes"]),
    )


def _pattern(kills: int, intervals: pd.Series[float]) -> Pattern:
    if kills == 1:
        return "once"
    if not len(intervals):
        return "untimed"
    median = float(intervals.median())
    if median <= _BURST_S:
        return "burst"
    spread = float((intervals - median).abs().median())
    return "periodic" if len(intervals) >= _EVEN_FROM - 1 and spread <= _EVEN * median else "repeated"


def _median(values: pd.Series[float]) -> int | None:
    known = values.dropna().astype("float64")
    return int(known.median()) if len(known) else None


def _most(values: pd.Series[str]) -> str | None:
    known = values.dropna()
    return str(known.mode().iloc[0]) if len(known) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
