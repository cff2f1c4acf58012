"""`rtdebug leaks report`: which containers leak, in which kind of memory, since when, and what they share."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from rtdebug.commands.leaks_options import foreign_options, paths_argument, progress_line, rule_options, stores_of
from rtdebug.commands.options import output_option


@click.command("report")
@paths_argument()
@output_option()
@click.option(
    "--html", "page_path", type=click.Path(path_type=Path), metavar="FILE", help="Also write a page of curves."
)
@click.option("--all", "every", is_flag=True, help="Show the series without a leak too.")
@rule_options()
@foreign_options()
@click.option("--workers", type=click.IntRange(1, 1024), metavar="N", help="Processes.  [default: one for each CPU]")
@click.option("--scheduler", metavar="ADDRESS", help="Let a Dask cluster do the work: tcp://HOST:8786.")
def command(
    paths: tuple[Path, ...],
    output: str,
    page_path: Path | None,
    every: bool,
    min_span_s: float | None,
    min_growth_bytes: int | None,
    unit: str | None,
    interval_s: float | None,
    workers: int | None,
    scheduler: str | None,
) -> None:
    """Say which containers leak, in which kind of memory, since when, how long until the limit, and why.

    PATHs are stores of `rtdebug leaks record` (also copied from many hosts), or files: CSV with a time and columns of
    bytes, logs of `docker stats`, `kubectl top`, ps or top, range exports of Prometheus. Needs no root if the files can
    be read.

    \b
    Examples:
      rtdebug leaks report
      rtdebug leaks report host-a/leaks host-b/leaks --html leaks.html
      rtdebug leaks report docker-stats.log --interval 30s
      rtdebug leaks report -o json | jq '.series[] | select(.verdict == "leak") | .name, .growth_bytes_per_hour'
    """
    from rtdebug.leaks.batch import analyse, sites_of
    from rtdebug.leaks.clusters import clusters
    from rtdebug.leaks.extras import require_extras
    from rtdebug.leaks.findings import findings
    from rtdebug.leaks.foreign.hints import Hints
    from rtdebug.leaks.rules import DEFAULT
    from rtdebug.leaks.workers import workers as start_workers
    from rtdebug.render.escape import escape
    from rtdebug.render.leaks_report import report_json, report_table
    from rtdebug.render.terminal import terminal_width, use_colour

    paths = stores_of(paths)
    require_extras(*(("matplotlib",) if page_path else ()))
    rules = DEFAULT.with_floors(min_span_s, min_growth_bytes)
    with progress_line() as progress, start_workers(workers, scheduler) as executor:
        analysis = analyse(paths, rules, Hints(unit, interval_s), executor, progress)
        found = findings(analysis.judged, sites_of(paths))
        progress("grouping")
        groups = clusters(found)
        if page_path is not None:
            from rtdebug.render.leaks_page import page
            from rtdebug.render.write import write_text

            progress("drawing")
            write_text(page_path, page(analysis.judged, groups, analysis.notes))
    if output == "json":
        click.echo(report_json(analysis.judged, found, groups, analysis.notes), nl=False)
        return
    for note in analysis.notes:
        click.echo(f"note: {escape(note)}", err=True)
    width, colour = terminal_width(sys.stdout), use_colour(sys.stdout, os.environ)
    click.echo(report_table(analysis.judged, found, groups, every=every, width=width, colour=colour), nl=False)
