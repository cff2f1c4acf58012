"""`rtdebug madvise`: would advice to the kernel help this memory, and what does it cost?"""

from __future__ import annotations

import click

from rtdebug.commands.lazy import LazyGroup

COMMANDS = (
    ("list", "List the mappings of a container that advice would help, largest gain first."),
    ("run", "Measure advice in the container, on memory of an experiment's own."),
    ("apply", "Give advice on a mapping of a live process."),
)
"""Name of each command, which is also the end of its module's name (madvise_list.py), and one line of help."""


@click.command(
    "madvise",
    cls=LazyGroup,
    entries=COMMANDS,
    prefix="madvise_",
    invoke_without_command=True,
    epilog="Every command explains itself: rtdebug madvise COMMAND --help",
)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Huge pages, collapsing, giving memory back: what would help a container, measured, and done.

    \b
    Examples:
      rtdebug madvise list my-redis
      rtdebug madvise run my-redis thp-anon
      rtdebug madvise apply my-redis --pid 4711 --mapping heap --advice HUGEPAGE --for 10m
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        ctx.exit(click.UsageError.exit_code)
