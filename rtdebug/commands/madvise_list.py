"""`rtdebug madvise list`: the mappings worth advising."""

from __future__ import annotations

from pathlib import Path

import click

from rtdebug.commands.options import output_option, runc_root_option, target_argument


@click.command("list")
@target_argument()
@output_option()
@runc_root_option()
def command(target: str, output: str, runc_roots: tuple[Path, ...]) -> None:
    """List the mappings of a container that advice would help, largest gain first."""
