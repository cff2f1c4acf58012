"""Clusters of OOM kills, as a table and as JSON lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict

from rtdebug.oom.cluster import Cluster
from rtdebug.render.columns import align
from rtdebug.render.jsonl import encode_object, format_time_utc
from rtdebug.render.units import UNKNOWN, counted, format_bytes, format_duration, short_id
from rtdebug.tracing.line import Value

_HEADER = ("KILLS", "WHOSE", "KILLED", "VERDICT", "MOSTLY", "HELD", "LIMIT", "FIRST", "LAST", "PATTERN", "HOSTS")
_NUMBERS = frozenset({0, 5, 6, 10})
_WIDEST = 28
_NS = 1_000_000_000


def clusters_table(clusters: Sequence[Cluster]) -> str:
    """One line for each, the largest first."""
    kills = sum(cluster.kills for cluster in clusters)
    lines = align([_HEADER, *map(_row, clusters)], right=_NUMBERS, limit=_WIDEST)
    return "\n".join([*lines, f"{counted(kills, 'OOM kill')} in {counted(len(clusters), 'cluster')}"]) + "\n"


def clusters_json(clusters: Iterable[Cluster]) -> str:
    """One object for each, on a line of its own."""
    return "".join(encode_object(_fields(cluster)) + "\n" for cluster in clusters)


def _fields(cluster: Cluster) -> dict[str, Value]:
    fields: dict[str, Value] = asdict(cluster)
    fields["hosts"] = list(cluster.hosts)
    fields["first"] = None if cluster.first_ns is None else format_time_utc(cluster.first_ns)
    fields["last"] = None if cluster.last_ns is None else format_time_utc(cluster.last_ns)
    return {"event": "oom_cluster", **fields}


def _row(cluster: Cluster) -> tuple[str, ...]:
    interval = cluster.median_interval_s
    every = f" every {format_duration(int(interval * _NS))}" if interval is not None else ""
    return (
        str(cluster.kills),
        _owner(cluster),
        cluster.comm or UNKNOWN,
        cluster.kind,
        cluster.dominant_kind or UNKNOWN,
        format_bytes(cluster.median_held_bytes),
        format_bytes(cluster.median_limit_bytes),
        _time(cluster.first_ns),
        _time(cluster.last_ns),
        f"{cluster.pattern}{every if cluster.pattern in ('periodic', 'burst', 'repeated') else ''}",
        str(len(cluster.hosts)) if cluster.hosts else UNKNOWN,
    )


def _owner(cluster: Cluster) -> str:
    if cluster.owner is None:
        return UNKNOWN
    if cluster.owner_kind in ("pod", "container", "lxc"):
        return f"{cluster.owner_kind} {short_id(cluster.owner)}"
    return cluster.owner


def _time(time_ns: int | None) -> str:
    return UNKNOWN if time_ns is None else format_time_utc(time_ns)[:16].replace("T", " ")
