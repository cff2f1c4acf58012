"""A group of commands that are imported when they are called, so that help answers at once."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import click

from rtdebug.render.guess import did_you_mean


class LazyGroup(click.Group):
    """A group whose commands are modules, imported when they are called.

    `entries`: name and one line of help of each, in order; the module is `rtdebug.commands.` + `prefix` + name,
    and its `command` is the command.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        entries: Sequence[tuple[str, str]] = (),
        prefix: str = "",
        **attributes: Any,  # noqa: ANN401 - what click takes
    ) -> None:
        super().__init__(name, **attributes)
        self.entries = dict(entries)
        self.prefix = prefix

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of the entries."""
        return list(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command; None if there is none of that name."""
        if cmd_name not in self.entries:
            return None
        command = importlib.import_module(f"rtdebug.commands.{self.prefix}{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does it, with a guess at what an unknown command was meant to be."""
        name = args[0]
        if name not in self.entries and not name.startswith("-"):
            guess = did_you_mean(name, self.list_commands(ctx))
            raise click.UsageError(f"no command '{name}'{guess}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self.entries.items()))
