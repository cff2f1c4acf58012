"""`rtdebug reclaim`: give a container's idle memory back now."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from rtdebug.commands.options import duration, output_option, runc_root_option, size, target_argument


@click.command("reclaim")
@target_argument()
@click.argument("size_bytes", type=size, metavar="SIZE")
@click.option(
    "--watch",
    "watch_s",
    type=duration,
    default="60s",
    show_default=True,
    metavar="TIME",
    help="How long to see afterwards what is read back.",
)
@output_option()
@runc_root_option()
def command(target: str, size_bytes: int, watch_s: float, output: str, runc_roots: tuple[Path, ...]) -> None:
    """Take SIZE of idle memory from a container, in steps, and see what that costs it.

    Stops as soon as the container feels it: when tasks wait for memory (PSI), when it reads back what was taken, or
    when the kernel finds no more. Page cache goes first; anonymous memory and /dev/shm only if there is swap. No
    process is killed for it. Afterwards it is watched for a minute (--watch); Ctrl-C ends that.

    \b
    Examples:
      rtdebug reclaim web 512M
      rtdebug reclaim pod/prod/cache 2G --watch 5m
      rtdebug reclaim web 64M -o json | jq .by_kind_bytes
    """
    from rtdebug.containers.resolve import find_container
    from rtdebug.errors import NotRunning, UsageProblem
    from rtdebug.host.cgroup import find_memory_hierarchy
    from rtdebug.host.stopping import waiting
    from rtdebug.limits.apply import only_one
    from rtdebug.limits.facts import place_of
    from rtdebug.limits.reclaim import reclaim
    from rtdebug.limits.settings import read_level
    from rtdebug.render.escape import escape
    from rtdebug.render.limits import reclaim_json, reclaim_page
    from rtdebug.render.terminal import terminal_width
    from rtdebug.render.units import format_bytes

    if not size_bytes:
        raise UsageProblem("SIZE is 0: there is nothing to take", "give 64M, or 2G")
    container, notes = find_container(target, runc_roots)
    for note in notes:
        click.echo(f"rtdebug: {escape(note)}", err=True)
    place = place_of(container, find_memory_hierarchy())
    level = read_level(place.hierarchy, place.cgroup)
    if level is None:
        raise NotRunning(f"the cgroup {place.cgroup} has just vanished", "the container has ended")
    on_terminal = sys.stderr.isatty()

    def progress(taken_bytes: int) -> None:
        if on_terminal:
            click.echo(f"\r{format_bytes(taken_bytes)} taken ", err=True, nl=False)

    with waiting() as wait, only_one(place):
        result = reclaim(level, size_bytes, watch_s, wait, progress)
    if on_terminal:
        click.echo("\r", err=True, nl=False)
    if output == "json":
        click.echo(reclaim_json(place, result), nl=False)
        return
    for line in reclaim_page(place, result, terminal_width(sys.stdout) or 100):
        click.echo(line)
