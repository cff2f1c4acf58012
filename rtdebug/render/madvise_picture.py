"""The distributions of a madvise experiment, drawn: each run is a point, so that what a median hides is seen."""

from __future__ import annotations

import html
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rtdebug.errors import RtdebugError
from rtdebug.madvise.conduct import Outcome
from rtdebug.madvise.plan import BASELINE, Case
from rtdebug.madvise.run import Run
from rtdebug.madvise.stats import values_of
from rtdebug.render.escape import escape
from rtdebug.render.madvise_raw import check_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FORMS = (".png", ".svg", ".html")
_PANELS = (("populate_ns", "first touch (ms)"), ("access_ns", "access (ms)"), ("returned_bytes", "given back (MiB)"))
_SCALE = {"_ns": 1e6, "_bytes": 2**20}
_ROW_INCHES = 0.32


def check_picture(path: Path | None) -> None:
    """Raise UsageProblem for a form that there is not, or a place where nothing can be: before the experiment."""
    check_file("--picture", path, _FORMS)


def write_picture(path: Path, outcome: Outcome) -> None:
    """Draw a row for each case: first touch, access, memory given back. Raises RtdebugError."""
    figure = draw(outcome)
    form = "svg" if path.suffix == ".html" else path.suffix[1:]
    drawn = io.BytesIO()
    figure.savefig(drawn, format=form)
    content = drawn.getvalue() if path.suffix != ".html" else _page(outcome, drawn.getvalue().decode())
    try:
        path.write_bytes(content)
    except OSError as error:
        raise RtdebugError(f"cannot write {path}: {error.strerror}", "give a place where you may write") from error


def draw(outcome: Outcome) -> Figure:
    """The figure, without a window."""
    from matplotlib.figure import Figure

    cases = outcome.plan.cases
    heights = [1.1 + _ROW_INCHES * (len(case.advice) + 1) for case in cases]
    figure = Figure(figsize=(11, sum(heights) + 0.5), layout="constrained")
    grid = figure.subplots(len(cases), len(_PANELS), squeeze=False, height_ratios=heights)
    for index, case in enumerate(cases):
        runs = [run for run in outcome.counted if run.case == index]
        for axes, (measure, title) in zip(grid[index], _PANELS, strict=True):
            _panel(axes, case, runs, measure, title)
        grid[index][0].set_title(f"{case.memory}, {case.access} {case.mode}", loc="left", fontsize=10)
    figure.suptitle(_title(outcome), fontsize=11)
    return figure


def _panel(axes: Axes, case: Case, runs: Sequence[Run], measure: str, title: str) -> None:
    names = [BASELINE, *case.advice]
    scale = next(scale for ending, scale in _SCALE.items() if measure.endswith(ending))
    for row, name in enumerate(names):
        values = [value / scale for value in values_of((run for run in runs if run.advice == name), measure)]
        if values:
            axes.boxplot([values], positions=[row], orientation="horizontal", widths=0.6, showfliers=False)
            axes.plot(values, [row] * len(values), "o", markersize=3, alpha=0.5, color="tab:blue")
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlim(left=min(0, axes.get_xlim()[0]))
    axes.set_xlabel(title, fontsize=8)
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(axis="x", alpha=0.3)


def _title(outcome: Outcome) -> str:
    name = outcome.container.name or outcome.container.id
    # "$" would begin a formula
    return escape(f"{outcome.plan.name} in {name}, Linux {outcome.kernel}", 100).replace("$", r"\$")


def _page(outcome: Outcome, svg: str) -> bytes:
    """One file without anything from elsewhere."""
    title = html.escape(escape(f"rtdebug madvise run: {outcome.plan.name}"))
    picture = svg[svg.index("<svg") :]
    page = f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{title}</title>\n{picture}\n</html>\n'
    return page.encode("utf-8", "backslashreplace")
