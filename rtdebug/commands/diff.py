"""`rtdebug diff A B`: what changed between two snapshots, or in a container in a while."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rtdebug.commands.options import complete_container, interval_option, output_option, runc_root_option
from rtdebug.errors import UsageProblem

if TYPE_CHECKING:
    from rtdebug.snapshot.model import Snapshot


@click.command("diff")
@click.argument("before", metavar="A|TARGET", shell_complete=complete_container)
@click.argument("after", metavar="[B]", required=False)
@interval_option("Of a container: how long to wait.")
@click.option("--all", "show_all", is_flag=True, help="All changes, not only the largest of each kind.")
@output_option()
@runc_root_option()
def command(
    before: str,
    after: str | None,
    interval_s: float | None,
    show_all: bool,
    output: str,
    runc_roots: tuple[Path, ...],
) -> None:
    """Show what grew, shrank, appeared and vanished, from snapshot A to snapshot B, the largest first.

    With --interval: from now to then, of a running container; no file is written.

    \b
    Examples:
      rtdebug diff morning.tar.gz noon.tar.gz
      rtdebug diff web --interval 60s
      rtdebug diff a.tar.gz b.tar.gz -o json | jq '.changes[] | select(.delta_bytes > 1000000)'
    """
    from rtdebug.render.diff import diff_json, render_diff
    from rtdebug.render.snapshot import MOST_ROWS
    from rtdebug.render.terminal import use_colour
    from rtdebug.snapshot.archive import read_archive
    from rtdebug.snapshot.diff import compare

    if (after is None) == (interval_s is None):
        raise UsageProblem("give two snapshots, or a container and --interval", "see 'rtdebug diff --help'")
    if after is not None:
        diff = compare(read_archive(Path(before)), read_archive(Path(after)))
    else:
        assert interval_s is not None
        diff = compare(*_twice(before, interval_s, runc_roots))
    if output == "json":
        click.echo(diff_json(diff), nl=False)
        return
    lines = render_diff(diff, use_colour(sys.stdout, os.environ), None if show_all else MOST_ROWS)
    click.echo("\n".join(lines), color=True)


def _twice(target: str, interval_s: float, runc_roots: tuple[Path, ...]) -> tuple[Snapshot, Snapshot]:
    from rtdebug.containers.resolve import find_container
    from rtdebug.render.escape import escape
    from rtdebug.render.progress import Progress
    from rtdebug.snapshot.take import take_snapshot

    container, notes = find_container(target, runc_roots)
    for note in notes:
        click.echo(f"note: {escape(note)}", err=True)
    with Progress("processes read") as progress:
        first = take_snapshot(container, progress=progress)
    click.echo(f"waiting {interval_s:g} s; Ctrl-C to give up", err=True)
    time.sleep(max(0.0, interval_s - first.took_ns / 1e9))
    with Progress("processes read") as progress:
        return first, take_snapshot(container, progress=progress)
