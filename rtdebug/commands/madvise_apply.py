"""`rtdebug madvise apply`: advice on a mapping of a live process."""

from __future__ import annotations

from pathlib import Path

import click

from rtdebug.commands.options import output_option, runc_root_option, target_argument


@click.command("apply")
@target_argument()
@output_option()
@runc_root_option()
def command(target: str, output: str, runc_roots: tuple[Path, ...]) -> None:
    """Give advice on a mapping of a live process."""
