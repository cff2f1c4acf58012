"""`rtdebug leaks record`: sample the memory of containers into a store."""

from __future__ import annotations

import click


@click.command("record")
def command() -> None:
    """Sample the memory of all containers, or of those named, into a store."""
