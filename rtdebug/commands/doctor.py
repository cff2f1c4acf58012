"""`rtdebug doctor`: everything this host has or lacks, at once, with the remedies."""

from __future__ import annotations

import os
import sys

import click

from rtdebug.commands.options import output_option
from rtdebug.errors import HostUnable
from rtdebug.host.features import blocking, host_unable, run_checks
from rtdebug.host.trials import mount_tracefs
from rtdebug.render.doctor import doctor_fields, render_doctor
from rtdebug.render.jsonl import encode_object
from rtdebug.render.terminal import terminal_width, use_colour


@click.command("doctor")
@output_option()
@click.option(
    "--mount-tracefs",
    "mount",
    is_flag=True,
    help="First mount tracefs on /sys/kernel/tracing if it is not, for other tools; it stays.",
)
def command(output: str, mount: bool) -> None:
    """Check what this host can do for rtdebug, and how to get the rest.

    Attach kinds are tried for real and closed again. The exit status is 3 if `rtdebug trace` cannot run.

    \b
    Examples:
      rtdebug doctor
      rtdebug doctor -o json | jq '.checks[] | select(.remedy)'
      rtdebug doctor --mount-tracefs
    """
    if mount:
        mount_tracefs()
    checks = run_checks()
    if output == "json":
        click.echo(encode_object(doctor_fields(checks)))
    else:
        width = terminal_width(sys.stdout) or 80
        click.echo("\n".join(render_doctor(checks, width, use_colour(sys.stdout, os.environ))), color=True)
    if blocking(checks):
        raise HostUnable(host_unable(checks).message, "the remedies are in the list above")
