"""Options that the commands of `rtdebug leaks` share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rtdebug.commands.options import Decorator, duration, interval_option, size

if TYPE_CHECKING:
    from rtdebug.leaks.batch import Progress

UNITS = ("bytes", "KiB", "MiB", "GiB", "kB", "MB", "GB", "percent")


def paths_argument() -> Decorator:
    """PATHS: stores and files; none: the store that `leaks record` writes to."""
    return click.argument("paths", nargs=-1, metavar="[PATH]...", type=click.Path(path_type=Path))


def rule_options() -> Decorator:
    """`--min-span` and `--min-growth`, the floors of a verdict."""

    def decorate(function: Any) -> Any:  # noqa: ANN401 - as click decorates
        function = click.option(
            "--min-growth",
            "min_growth_bytes",
            type=size,
            metavar="SIZE",
            help="Growth that counts, over the time looked at.  [default: 4M, or 1 % of what is held]",
        )(function)
        return click.option(
            "--min-span",
            "min_span_s",
            type=duration,
            metavar="TIME",
            help="Time below which no leak is called; less is for experiments only.  [default: 30m]",
        )(function)

    return decorate


def foreign_options() -> Decorator:
    """`--unit` and `--interval`: what a file of somebody else's does not say."""

    def decorate(function: Any) -> Any:  # noqa: ANN401 - as click decorates
        function = interval_option("Time between samples, for files that have no times.")(function)
        return click.option(
            "--unit", type=click.Choice(UNITS), help="Unit of the numbers, for files that do not say it."
        )(function)

    return decorate


def stores_of(paths: tuple[Path, ...]) -> tuple[Path, ...]:
    """The paths given, or the usual store."""
    from rtdebug.leaks.store import DEFAULT_STORE

    return paths or (DEFAULT_STORE,)


@contextmanager
def progress_line() -> Iterator[Progress]:
    """What is being done, on standard error if that is a terminal."""
    import sys

    from rtdebug.render.escape import escape
    from rtdebug.render.terminal import StatusLine

    line = StatusLine(sys.stderr)
    try:
        yield lambda text: line.show(escape(text))
    finally:
        line.clear()
