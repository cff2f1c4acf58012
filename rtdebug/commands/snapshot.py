"""`rtdebug snapshot TARGET`: the memory of a container at one moment, in one file."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from rtdebug.commands.options import output_option, runc_root_option, target_argument
from rtdebug.errors import RtdebugError


@click.command("snapshot")
@target_argument()
@click.option(
    "--file",
    "file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Where to write it. Default: rtdebug-CONTAINER-TIME.tar.gz in this folder.",
)
@click.option("--force", is_flag=True, help="Replace FILE if it is there.")
@click.option("--freeze", is_flag=True, help="Hold the container still meanwhile, by its cgroup's freezer.")
@click.option("--with-environ", is_flag=True, help="Environment values too: mind that they hold passwords.")
@click.option(
    "--exec", "inside", is_flag=True, help="Start a helper in it, for what only a process inside can find out."
)
@output_option()
@runc_root_option()
def command(
    target: str,
    file: Path | None,
    force: bool,
    freeze: bool,
    with_environ: bool,
    inside: bool,
    output: str,
    runc_roots: tuple[Path, ...],
) -> None:
    """Write all about the memory of a container into one file, and show where it is.

    Processes, mappings, open files, shared memory, cgroups, namespaces, network and the host's figures are read
    from outside; the container is not touched and goes on meanwhile, unless --freeze. `rtdebug show FILE` shows the
    file on any machine, `rtdebug diff` compares two.

    \b
    Examples:
      rtdebug snapshot web
      rtdebug snapshot web --freeze --file before.tar.gz
      rtdebug snapshot pod/shop/cart -o json | jq .accounting
    """
    from rtdebug.containers.resolve import find_container
    from rtdebug.host.placing import refuse_taken
    from rtdebug.render.escape import escape
    from rtdebug.render.progress import Progress
    from rtdebug.render.snapshot import render_overview
    from rtdebug.render.snapshot_pages import snapshot_json
    from rtdebug.render.terminal import terminal_width, use_colour
    from rtdebug.render.units import format_bytes
    from rtdebug.snapshot.archive import write_archive, write_archive_here
    from rtdebug.snapshot.take import SnapshotOptions, take_snapshot

    if file is not None:
        refuse_taken(file, force)  # before the work is done
    container, notes = find_container(target, runc_roots)
    for note in notes:
        click.echo(f"note: {escape(note)}", err=True)
    options = SnapshotOptions(with_environ=with_environ, freeze=freeze, inside=inside)
    with Progress("processes read") as progress:
        snapshot = take_snapshot(container, options=options, progress=progress)
    try:
        problem = None
        path, size_bytes = (file, write_archive(snapshot, file, force)) if file else write_archive_here(snapshot)
    except RtdebugError as error:  # a full disk, perhaps: what was seen is shown all the same
        problem = error
    if output == "json":
        click.echo(snapshot_json(snapshot), nl=False)
    else:
        width = terminal_width(sys.stdout) or 100
        click.echo("\n".join(render_overview(snapshot, width, use_colour(sys.stdout, os.environ))), color=True)
    if problem is not None:
        raise problem
    shown = escape(str(path))
    click.echo(f"{shown}: {format_bytes(size_bytes)}; all of it: rtdebug show {shown}", err=True)
