"""Groups of commands whose modules are imported when they are called, so that `--help` answers at once."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import click

from rtdebug.render.guess import did_you_mean


class LazyGroup(click.Group):
    """A group whose commands are modules of rtdebug/commands: `prefix` and the command's name."""

    def __init__(self, *args: Any, table: Sequence[tuple[str, str]], prefix: str = "", **kwargs: Any) -> None:  # noqa: ANN401
        """`table` has the name of each command and what it is for in one line, in the order of the help."""
        super().__init__(*args, **kwargs)
        self._table = tuple(table)
        self._prefix = prefix

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of the table."""
        return [name for name, _ in self._table]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command; None if there is none of that name."""
        if cmd_name not in dict(self._table):
            return None
        command = importlib.import_module(f"rtdebug.commands.{self._prefix}{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does it, with a guess at what an unknown command was meant to be."""
        name = args[0]
        if name not in dict(self._table) and not name.startswith("-"):
            guess = did_you_mean(name, self.list_commands(ctx))
            raise click.UsageError(f"no command '{name}'{guess}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(self._table)
