"""Range exports of Prometheus (`/api/v1/query_range`): a matrix of labels and values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rtdebug.errors import UsageProblem
from rtdebug.leaks.foreign import kind_in_name
from rtdebug.leaks.series import NS_PER_S, Labels, Series, clean

_NAMES = ("namespace", "pod", "container", "container_name", "name", "instance", "job")
_HINT = 'export it with /api/v1/query_range: {"data": {"resultType": "matrix", ...}}'


def parse(document: object, name: str) -> list[Series]:
    """Parse a document. Metrics whose name has `limit` give the limits of the others. Raises UsageProblem."""
    results = _results(document, name)
    limits = {_name_of(metric): _last(values) for metric, values in results if _is_limit(metric)}
    found = [
        _series(metric, values, limits.get(_name_of(metric)), name)
        for metric, values in results
        if not _is_limit(metric)
    ]
    if not found:
        raise UsageProblem(f"{name}: there is no series in it", _HINT)
    return found


def _results(document: object, name: str) -> list[tuple[Mapping[str, Any], list[Any]]]:
    data = document.get("data", document) if isinstance(document, dict) else document
    results = data.get("result") if isinstance(data, dict) else data
    if not isinstance(results, list):
        raise UsageProblem(f"{name}: not a range export of Prometheus", _HINT)
    found: list[tuple[Mapping[str, Any], list[Any]]] = []
    for result in results:
        values = result.get("values") if isinstance(result, dict) else None
        metric = result.get("metric", {}) if isinstance(result, dict) else {}
        if not isinstance(values, list) or not isinstance(metric, dict):
            raise UsageProblem(f"{name}: not a range export of Prometheus", _HINT)
        found.append((metric, values))
    return found


def _is_limit(metric: Mapping[str, Any]) -> bool:
    return "limit" in str(metric.get("__name__", ""))


def _name_of(metric: Mapping[str, Any]) -> str:
    named = [str(metric[key]) for key in _NAMES if metric.get(key)]
    return "/".join(dict.fromkeys(named)) or str(metric.get("__name__", "series"))


def _points(values: list[Any]) -> Iterator[tuple[float, float]]:
    for pair in values:
        try:
            at, value = pair
            yield float(at), float(value)
        except (TypeError, ValueError):
            yield 0.0, float("nan")


def _last(values: list[Any]) -> float | None:
    known = [value for _, value in _points(values) if 0 < value < 2**62]
    return known[-1] if known else None


def _series(metric: Mapping[str, Any], values: list[Any], limit: float | None, name: str) -> Series:
    import numpy as np

    points = np.array(list(_points(values)), dtype=float).reshape(-1, 2)
    metric_name = str(metric.get("__name__", ""))
    labels = Labels(
        _name_of(metric),
        kind_in_name(metric_name),
        "percent" if "percent" in metric_name else "bytes",
        image=metric.get("image"),
        container_id=metric.get("id"),
    )
    seconds = np.where(np.abs(points[:, 0]) < 9e9, points[:, 0], 0)
    return clean(labels, np.round(seconds * NS_PER_S).astype(np.int64), points[:, 1], limit=limit)
