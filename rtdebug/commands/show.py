"""`rtdebug show FILE`: what a snapshot holds. No root, any machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from rtdebug.commands.options import output_option
from rtdebug.errors import UsageProblem
from rtdebug.render.guess import did_you_mean


def sections(text: str) -> tuple[str, ...]:
    """Type of an option: names of sections with commas between. Raises UsageProblem."""
    from rtdebug.render.snapshot_pages import SECTIONS

    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in SECTIONS:
            raise UsageProblem(
                f"--section: no section '{name}'{did_you_mean(name, SECTIONS)}", f"they are {', '.join(SECTIONS)}"
            )
    return names


@click.command("show")
@click.argument("file", type=click.Path(readable=False, path_type=Path))
@click.option(
    "--section",
    "lists",
    type=sections,
    multiple=True,
    metavar="NAME[,NAME...]",
    help="Only these pages: overview, processes, mappings, fds, shm, cgroups, namespaces, network, runtime, inside, "
    "host.",
)
@click.option("--all", "show_all", is_flag=True, help="All rows of each table, not only the largest.")
@output_option()
def command(file: Path, lists: tuple[tuple[str, ...], ...], show_all: bool, output: str) -> None:
    """Show FILE, made by `rtdebug snapshot`: the overview first, then page by page.

    \b
    Examples:
      rtdebug show rtdebug-web-20260102T030405Z.tar.gz
      rtdebug show before.tar.gz --section mappings,fds --all
      rtdebug show before.tar.gz -o json | jq '.processes[] | {pid, comm, memory}'
    """
    from rtdebug.render.snapshot import MOST_ROWS
    from rtdebug.render.snapshot_pages import SECTIONS, render_pages, snapshot_json
    from rtdebug.render.terminal import terminal_width, use_colour
    from rtdebug.snapshot.archive import read_archive

    snapshot = read_archive(file)
    if output == "json":
        click.echo(snapshot_json(snapshot), nl=False)
        return
    wanted = tuple(dict.fromkeys(name for names in lists for name in names)) or SECTIONS
    width = terminal_width(sys.stdout) or 100
    colour = use_colour(sys.stdout, os.environ)
    pages = render_pages(snapshot, wanted, width, colour, None if show_all else MOST_ROWS)
    click.echo("\n".join(pages), color=True)
