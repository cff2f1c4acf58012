"""`rtdebug limits`: what a container's limits are, what they should be, and setting them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from rtdebug.commands.options import duration, output_option, runc_root_option, target_argument


@click.command("limits")
@target_argument()
@click.option("--probe", "probing", is_flag=True, help="Find the real working set by taking memory in small steps.")
@click.option(
    "--step-time",
    "step_s",
    type=duration,
    default="5s",
    show_default=True,
    metavar="TIME",
    help="With --probe: how long each step is watched.",
)
@click.option(
    "--from",
    "store",
    type=click.Path(exists=True, path_type=Path),
    metavar="STORE",
    help="Take what it needs from a recording of `rtdebug leaks record`.",
)
@click.option("--apply", "applying", is_flag=True, help="Write the proposal into the cgroup's files; remember the old.")
@click.option("--undo", "undoing", is_flag=True, help="Put back what --apply found.")
@click.option("--yes", is_flag=True, help="With --apply: do not ask.")
@output_option()
@runc_root_option()
def command(
    target: str,
    probing: bool,
    step_s: float,
    store: Path | None,
    applying: bool,
    undoing: bool,
    yes: bool,
    output: str,
    runc_roots: tuple[Path, ...],
) -> None:
    """Show a container's memory limits, what is wrong with them, and what they should be.

    The proposal rests on what was measured: the cgroup's own figures, a recording (--from), or a probe (--probe) that
    takes memory in steps of 5 % until pressure (PSI) or re-reading shows that the container feels it, and then puts
    everything back, also after kill -9. Nothing is changed without --apply; --undo puts the old values back. A restart
    of the container, or its runtime, sets its own values again: write the proposal where it is configured too.

    \b
    Examples:
      rtdebug limits web
      rtdebug limits web --probe --step-time 10s
      rtdebug limits pod/prod/api --from /var/lib/rtdebug/leaks -o json | jq .proposal
      rtdebug limits web --apply --yes; rtdebug limits web --undo
    """
    from rtdebug.containers.resolve import find_container
    from rtdebug.errors import UsageProblem
    from rtdebug.host.cgroup import find_memory_hierarchy
    from rtdebug.host.stopping import waiting
    from rtdebug.limits.answer import answer, applied, measured
    from rtdebug.limits.apply import only_one, undo
    from rtdebug.limits.facts import place_of
    from rtdebug.limits.recorded import recorded_demand
    from rtdebug.render.escape import escape
    from rtdebug.render.limits import limits_json, limits_page, step_line, undone_lines
    from rtdebug.render.terminal import terminal_width, use_colour

    if undoing and (applying or probing or store):
        raise UsageProblem("--undo goes with no other option", "it puts back what the last --apply found")
    if probing and store:
        raise UsageProblem("--probe measures, --from reads a recording: one of the two")
    container, notes = find_container(target, runc_roots)
    for note in notes:
        click.echo(f"rtdebug: {escape(note)}", err=True)
    place = place_of(container, find_memory_hierarchy())
    width = terminal_width(sys.stdout) or 100
    if undoing:
        with only_one(place):
            for line in undone_lines(place, *undo(place)):
                click.echo(line)
        return
    recorded = recorded_demand(store, container) if store else None
    with waiting() as wait:
        if probing:
            click.echo("Probing; Ctrl-C ends it. Its limits are put back, whatever happens.", err=True)
        measure = measured(place, step_s, wait, lambda step: click.echo(step_line(step), err=True))
        found = answer(place, recorded, measure if probing else None)
    if applying and found.proposal.changes:
        if not yes:
            for line in limits_page(found, width):
                click.echo(line, err=True)
            click.confirm("Write these?", abort=True, err=True)
        found = applied(found)
    if output == "json":
        click.echo(limits_json(found), nl=False)
        return
    for line in limits_page(found, width, use_colour(sys.stdout, os.environ)):
        click.echo(line)
