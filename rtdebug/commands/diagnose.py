"""`rtdebug diagnose`: why a container ran, or will run, out of memory, and what to change."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from rtdebug.commands.options import duration, output_option, runc_root_option, target_argument


@click.command("diagnose")
@target_argument(required=False)
@click.option("--all", "whole_host", is_flag=True, help="Every running container, a line for each that has findings.")
@click.option(
    "--app-log",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
    metavar="FILE",
    help="Also the program's own log (- is standard input): what it says of shared memory.",
)
@click.option(
    "--kernel-log",
    "kernel_logs",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    metavar="FILE",
    help="Kernel log to look for OOM kills in, in place of this host's ring buffer.",
)
@click.option(
    "--sample",
    "sample_s",
    type=duration,
    default="1s",
    show_default=True,
    metavar="TIME",
    help="Between the two looks at the counters.",
)
@output_option()
@runc_root_option()
@click.pass_context
def command(
    ctx: click.Context,
    target: str | None,
    whole_host: bool,
    app_log: Path | None,
    kernel_logs: tuple[Path, ...],
    sample_s: float,
    output: str,
    runc_roots: tuple[Path, ...],
) -> None:
    """Say why a container ran, or will run, out of memory, and what to change.

    Looks at its shared memory, OOM kills in the kernel log, limits up the cgroup tree, pressure, and the host around
    it; changes nothing. Each finding comes with the figures it rests on and the exact change. A container that is down
    is looked for in the kernel log. Exit status 0: nothing found, 1: something.

    \b
    Examples:
      rtdebug diagnose web
      kubectl logs trainer | rtdebug diagnose pod/ml/trainer --app-log -
      rtdebug diagnose --all -o json | jq -r 'select(.findings != []) | .container_name'
    """
    from rtdebug.diagnose.ask import diagnose_all, diagnose_one, read_messages
    from rtdebug.errors import UsageProblem
    from rtdebug.render.diagnose import diagnosis_json, diagnosis_page, summary_table
    from rtdebug.render.escape import escape
    from rtdebug.render.progress import Progress
    from rtdebug.render.terminal import terminal_width, use_colour

    if (target is None) == (not whole_host):
        raise UsageProblem("give one TARGET, or --all: one of the two", "`rtdebug ps` lists the containers")
    if whole_host and app_log:
        raise UsageProblem("--app-log is of one container", "leave it out with --all")

    def notice(text: str) -> None:
        click.echo(f"rtdebug: {escape(text)}", err=True)

    if target is not None:
        messages = read_messages(app_log) if app_log else ()
        diagnoses = [(target, *diagnose_one(target, runc_roots, kernel_logs, messages, sample_s, notice))]
    else:
        with Progress("containers") as progress:
            diagnoses = list(diagnose_all(runc_roots, kernel_logs, sample_s, notice, progress))
    for name, facts, findings in diagnoses if output == "json" else ():
        click.echo(diagnosis_json(name, facts, findings), nl=False)
    if output == "table" and whole_host:
        click.echo(summary_table([(facts, findings) for _, facts, findings in diagnoses]), nl=False)
    elif output == "table":
        width = terminal_width(sys.stdout) or 100
        for name, facts, findings in diagnoses:
            for line in diagnosis_page(name, facts, findings, width, use_colour(sys.stdout, os.environ)):
                click.echo(line)
    ctx.exit(1 if any(findings for _, _, findings in diagnoses) else 0)
