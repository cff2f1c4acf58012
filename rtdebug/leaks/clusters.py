"""Leaks that share one cause: findings grouped by kind, pattern, shape, executable, image and stack.

Alike are findings whose labels agree (a Gower distance, over what both of them know) and whose floors have the same
course. Different kinds of memory are never one cause. scikit-learn joins the nearest until none is near enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from rtdebug.leaks.findings import Finding

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

    from rtdebug.leaks.series import Floats, Ints

    Flags: TypeAlias = NDArray[np.bool_]

WEIGHTS = {"executable": 0.3, "stack": 0.25, "image": 0.2, "pattern": 0.4, "shape": 0.1}
"""How much it says that two findings differ in a label."""
COURSE_WEIGHT = 0.1
"""And in the course of their floors: 1 - correlation."""
NEAR = 0.4
"""Average distance up to which clusters are joined, 0 to 1."""
_FAR = 10.0
_EVERYBODYS = 0.9
"""A label that so many of the others have too sets nothing apart."""
_POINTS = 16
_MOST_PROFILES = 3000


@dataclass(frozen=True, slots=True)
class Cluster:
    """Findings that are alike."""

    number: int
    members: tuple[Finding, ...]
    """The fastest first."""
    typical: Finding
    """The member nearest to all others."""
    common: dict[str, str]
    """Labels that all members share."""
    apart: str
    """What sets it apart from the other clusters, in words."""

    @property
    def growth_per_hour(self) -> float:
        """Of all members."""
        return sum(member.judged.verdict.growth_per_hour or 0.0 for member in self.members)


def clusters(found: Sequence[Finding]) -> list[Cluster]:
    """Group findings that are measured in bytes; those that grow the most first."""
    import numpy as np

    found = [finding for finding in found if finding.judged.verdict.labels.unit == "bytes"]
    if not found:
        return []
    frame = _frame(found)
    courses = np.array([_course(finding) for finding in found])
    profiles = frame.groupby(list(frame.columns), sort=False, dropna=False).ngroup().to_numpy()
    count = int(profiles.max()) + 1
    first = [int(np.flatnonzero(profiles == number)[0]) for number in range(count)]
    mean_course = np.array([courses[profiles == number].mean(axis=0) for number in range(count)])
    of_profile = _group(_distances(frame.iloc[first], mean_course)) if count <= _MOST_PROFILES else np.arange(count)
    group = of_profile[profiles]
    made = []
    for number in dict.fromkeys(group.tolist()):
        inside = np.flatnonzero(group == number)
        made.append(_cluster(inside, group == number, found, frame, courses))
    made.sort(key=lambda cluster: -cluster.growth_per_hour)
    return [
        Cluster(number, cluster.members, cluster.typical, cluster.common, cluster.apart)
        for number, cluster in enumerate(made, 1)
    ]


def _frame(found: Sequence[Finding]) -> pd.DataFrame:
    import pandas as pd

    rows = [
        {
            "kind": finding.judged.verdict.labels.kind,
            "pattern": finding.pattern,
            "shape": finding.judged.verdict.shape,
            "executable": finding.executable,
            "image": repository(finding.judged.verdict.labels.image),
            "stack": finding.site.stack if finding.site else None,
        }
        for finding in found
    ]
    return pd.DataFrame(rows, dtype=object)


def repository(image: str | None) -> str | None:
    """An image without tag and digest: releases of one service stay together."""
    if not image:
        return None
    name = image.split("@", 1)[0]
    head, slash, last = name.rpartition("/")
    return head + slash + last.split(":", 1)[0]


def _course(finding: Finding) -> Floats:
    """The floor over time, both from 0 to 1."""
    import numpy as np

    growth = finding.judged.growth
    if growth is None or len(growth.envelope) < 2:
        return np.linspace(0.0, 1.0, _POINTS)
    time_s, floor = growth.envelope.time_s, growth.envelope.floor
    range_ = float(floor.max() - floor.min()) or 1.0
    course: Floats = np.interp(np.linspace(time_s[0], time_s[-1], _POINTS), time_s, (floor - floor.min()) / range_)
    return course


def _distances(frame: pd.DataFrame, courses: Floats) -> Floats:
    import numpy as np

    count = len(frame)
    differ, weights = np.zeros((count, count)), np.zeros((count, count))
    for name, weight in WEIGHTS.items():
        codes, _ = frame[name].factorize()
        known = codes >= 0
        both = known[:, None] & known[None, :]
        weights += weight * both
        differ += weight * (both & (codes[:, None] != codes[None, :]))
    centred = courses - courses.mean(axis=1, keepdims=True)
    norm = np.maximum(np.linalg.norm(centred, axis=1), 1e-9)
    correlation = np.clip(centred @ centred.T / norm[:, None] / norm[None, :], -1, 1)
    distance = (differ + COURSE_WEIGHT * (1 - correlation) / 2) / (weights + COURSE_WEIGHT)
    kinds, _ = frame["kind"].factorize()
    distance[kinds[:, None] != kinds[None, :]] = _FAR
    np.fill_diagonal(distance, 0.0)
    both_ways: Floats = (distance + distance.T) / 2
    return both_ways


def _group(distances: Floats) -> Ints:
    import numpy as np
    from sklearn.cluster import AgglomerativeClustering

    if len(distances) < 2:
        return np.zeros(len(distances), np.int64)
    model = AgglomerativeClustering(n_clusters=None, metric="precomputed", linkage="average", distance_threshold=NEAR)
    return np.asarray(model.fit_predict(distances))


def _cluster(inside: Ints, mask: Flags, found: Sequence[Finding], frame: pd.DataFrame, courses: Floats) -> Cluster:
    import numpy as np

    own = frame[mask]
    common = {
        str(name): str(values.iloc[0]) for name, values in own.items() if values.notna().all() and values.nunique() == 1
    }
    members = sorted((found[int(i)] for i in inside), key=lambda each: -(each.judged.verdict.growth_per_hour or 0.0))
    rates = np.array([found[int(i)].judged.verdict.growth_per_hour or 0.0 for i in inside])
    scale = float(np.abs(rates).max()) or 1.0
    points = np.column_stack([courses[inside], rates / scale])
    typical = found[int(inside[int(np.argmin(((points - np.median(points, axis=0)) ** 2).sum(axis=1)))])]
    return Cluster(0, tuple(members), typical, common, _apart(common, frame[~mask]))


def _apart(common: dict[str, str], others: pd.DataFrame) -> str:
    """The labels that all members share, the rarest among the others first."""
    if not common:
        return "its members share no label"
    shares = {name: float((others[name] == value).mean()) if len(others) else 0.0 for name, value in common.items()}
    words: list[str] = []
    for name in sorted(shares, key=lambda each: shares[each]):
        if words and shares[name] > _EVERYBODYS:
            break
        value = common[name].split("\n", 1)[0]
        where = "" if not len(others) else f" ({100 * shares[name]:.0f} % of the others)"
        words.append(f"{name} {value}{where}")
    return ", ".join(words[:3])
