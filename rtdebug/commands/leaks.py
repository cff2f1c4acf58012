"""`rtdebug leaks`: which containers leak memory, and where. Its commands are the modules leaks_<name>.py."""

from __future__ import annotations

import click

from rtdebug.commands.lazy import LazyGroup

COMMANDS = (
    ("record", "Sample the memory of all containers into a store."),
    ("report", "Say which containers leak, in which kind of memory, and why."),
    ("watch", "Follow a store, and say when a verdict changes."),
    ("compare", "Say what grows faster in one recording than in another."),
)
"""Name of each command of the group, and what it is for in one line."""


@click.command("leaks", cls=LazyGroup, entries=COMMANDS, prefix="leaks_", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Find out which containers leak memory, in which kind of memory, and where it comes from.

    Record first, for hours rather than minutes: `rtdebug leaks record`. Then `rtdebug leaks report`.

    \b
    Examples:
      rtdebug leaks record
      rtdebug leaks record web --interval 5s --duration 2h --stacks
      rtdebug leaks report --html leaks.html
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        ctx.exit(click.UsageError.exit_code)
