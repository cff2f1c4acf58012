"""Range exports of Prometheus (`/api/v1/query_range`): a matrix of labels and values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from rtdebug.errors import UsageProblem
from rtdebug.leaks.foreign.hints import Hints
from rtdebug.leaks.foreign.names import OWNERS, kind_in_name, names_memory
from rtdebug.leaks.foreign.quantities import PERCENT, factor_of, unit_in_name
from rtdebug.leaks.series import NS_PER_S, Labels, Series, clean

if TYPE_CHECKING:
    from rtdebug.leaks.series import Floats

_NAMES = (*OWNERS, "name", "instance", "job")
_Result = tuple[Mapping[str, Any], list[Any]]
_HINT = 'export it with /api/v1/query_range: {"data": {"resultType": "matrix", ...}}'


def parse(document: object, name: str, hints: Hints) -> list[Series]:
    """Parse a document. Metrics whose name has `limit` give the limits of the others. Raises UsageProblem."""
    results = _results(document, name)
    limits = {_name_of(metric): _last(values) for metric, values in results if _is_limit(metric)}
    found = [
        _series(metric, values, starts, limits.get(_name_of(metric)), hints)
        for metric, values, starts in _lives(results)
        if not _is_limit(metric) and not _is_no_memory(str(metric.get("__name__", "")))
    ]
    if not found:
        raise UsageProblem(f"{name}: there is no series of memory in it", _HINT)
    return found


def _is_no_memory(metric_name: str) -> bool:
    """Whether it is another thing, a counter, or a high-water mark: these grow where nothing leaks."""
    if not metric_name:
        return False
    says = names_memory(metric_name)
    return says is False or metric_name.endswith("_total") or (says is None and unit_in_name(metric_name) is None)


def _lives(results: list[_Result]) -> Iterator[tuple[Mapping[str, Any], list[Any], tuple[float, ...]]]:
    """Join what is of one container, one after the other: it was restarted, and has another id since."""
    by_name: dict[tuple[str, str], list[_Result]] = {}
    for metric, values in results:
        by_name.setdefault((str(metric.get("__name__", "")), _name_of(metric)), []).append((metric, values))
    for lives in by_name.values():
        spans = {id(values): [at for at, _ in _points(values) if at > 0] or [0.0] for _, values in lives}
        lives.sort(key=lambda life: spans[id(life[1])][0])
        ordered = [spans[id(values)] for _, values in lives]
        if all(before[-1] < after[0] for before, after in pairwise(ordered)):
            joined = [point for _, values in lives for point in values]
            yield lives[-1][0], joined, tuple(span[0] for span in ordered[1:])
        else:
            for metric, values in lives:
                yield metric, values, ()


def _results(document: object, name: str) -> list[_Result]:
    if isinstance(document, dict) and document.get("error"):
        raise UsageProblem(f"{name}: Prometheus answered: {document['error']}", _HINT)
    data = document.get("data", document) if isinstance(document, dict) else document
    results = data.get("result") if isinstance(data, dict) else data
    if not isinstance(results, list):
        raise UsageProblem(f"{name}: not a range export of Prometheus", _HINT)
    found: list[_Result] = []
    for result in results:
        values = result.get("values") if isinstance(result, dict) else None
        metric = result.get("metric", {}) if isinstance(result, dict) else {}
        if isinstance(values, list) and isinstance(result.get("timestamps"), list):  # as VictoriaMetrics exports them
            values = list(zip(result["timestamps"], values, strict=False))
        if not isinstance(values, list) or not isinstance(metric, dict):
            raise UsageProblem(f"{name}: not a range export of Prometheus", _HINT)
        found.append((metric, values))
    return found


def _is_limit(metric: Mapping[str, Any]) -> bool:
    return "limit" in str(metric.get("__name__", "")) and metric.get("resource", "memory") == "memory"


def _name_of(metric: Mapping[str, Any]) -> str:
    keys = OWNERS if any(metric.get(key) for key in OWNERS[1:]) else _NAMES
    named = [str(metric[key]) for key in keys if metric.get(key)]
    named = named or [str(value) for key, value in metric.items() if key not in ("__name__", "image")]
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


def _series(
    metric: Mapping[str, Any], values: list[Any], starts: tuple[float, ...], limit: float | None, hints: Hints
) -> Series:
    import numpy as np

    points = np.array(list(_points(values)), dtype=float).reshape(-1, 2)
    metric_name = str(metric.get("__name__", ""))
    unit = hints.unit if not metric_name and hints.unit else "bytes"  # a metric is in bytes, an expression in anything
    if "percent" in metric_name or unit == PERCENT:
        unit, factor = PERCENT, 1.0
    else:
        unit, factor = "bytes", factor_of(unit)
    labels = Labels(
        _name_of(metric),
        kind_in_name(metric_name),
        unit,
        image=metric.get("image"),
        container_id=metric.get("id"),
    )
    return clean(
        labels,
        np.round(_seconds(points[:, 0]) * NS_PER_S).astype(np.int64),
        points[:, 1] * factor,
        limit=limit,
        restarts_ns=tuple(int(at * NS_PER_S) for at in _seconds(np.array(starts)).tolist()),
    )


def _seconds(times: Floats) -> Floats:
    """Times that are in ms, as some exports have them, are made seconds; what is neither is 0."""
    import numpy as np

    seconds = times * np.where(np.abs(times) >= 1e11, 1e-3, 1.0)
    return np.where(np.abs(seconds) < 9e9, seconds, 0.0)
