"""`rtdebug shm`: the shared memory of a container, what limits it, and what was left behind in it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rtdebug.commands.options import duration, duration_option, output_option, runc_root_option, target_argument

if TYPE_CHECKING:
    from rtdebug.containers.model import Container
    from rtdebug.shm.report import ShmReport


def _age(text: str) -> float:
    """Type of an option: seconds, as a duration, or 0."""
    return 0.0 if re.fullmatch(r"0+[a-z]*", text.strip().lower()) else duration(text)


@click.command("shm")
@target_argument()
@click.option("--watch", is_flag=True, help="Refresh once a second; at Ctrl-C, tell the peak and a size to ask for.")
@duration_option("With --watch: stop after this time.")
@click.option("--remove-orphans", "remove", is_flag=True, help="Show what nobody uses any more, ask, and remove it.")
@click.option("--dry-run", is_flag=True, help="With --remove-orphans: only show.")
@click.option("--yes", "-y", is_flag=True, help="With --remove-orphans: do not ask.")
@click.option(
    "--min-age",
    "min_age_s",
    type=_age,
    default="60s",
    show_default=True,
    metavar="TIME",
    help="With --remove-orphans: keep what changed less than this ago.",
)
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="GLOB",
    help="With --remove-orphans: only names like this ('nccl-*'; keys of SysV segments); may be given several times.",
)
@output_option()
@runc_root_option()
def command(
    target: str,
    watch: bool,
    duration_s: float | None,
    remove: bool,
    dry_run: bool,
    yes: bool,
    min_age_s: float,
    names: tuple[str, ...],
    output: str,
    runc_roots: tuple[Path, ...],
) -> None:
    """Show a container's shared memory: each tmpfs with what really limits it, and every object with its users.

    TARGET is a container by any name you know it by (see `rtdebug trace --help`). TAKEN is what an object occupies
    in memory or swap, SIZE what was asked for. An orphan is mapped and open nowhere on this host, and stays until it
    is removed. Needs root.

    \b
    Examples:
      rtdebug shm web
      rtdebug shm pod/prod/trainer --watch
      rtdebug shm trainer --remove-orphans --name 'nccl-*' --min-age 10m
      rtdebug shm web -o json | jq '.mounts[] | {path, left_bytes, limited_by}'
    """
    from rtdebug.containers.resolve import find_container
    from rtdebug.errors import UsageProblem
    from rtdebug.render.escape import escape
    from rtdebug.render.shm import shm_json, shm_table
    from rtdebug.render.terminal import terminal_width
    from rtdebug.shm.report import read_shm

    if watch and remove:
        raise UsageProblem("--watch and --remove-orphans are two things", "give one of the two")
    if duration_s is not None and not watch:
        raise UsageProblem("--duration belongs to --watch", "give --watch too")
    if (dry_run or yes or names) and not remove:
        raise UsageProblem("--dry-run, --yes and --name belong to --remove-orphans", "give --remove-orphans too")
    container, notes = find_container(target, runc_roots)
    if output != "json":
        for note in notes:
            click.echo(f"note: {escape(note)}", err=True)
    if watch:
        _watch(container, duration_s, output)
        return
    report = read_shm(container)
    if remove:
        _remove(report, names, min_age_s, output, dry_run, yes)
    elif output == "json":
        click.echo(shm_json(report, notes), nl=False)
    else:
        click.echo(shm_table(report, terminal_width(sys.stdout)), nl=False)


def _watch(container: Container, duration_s: float | None, output: str) -> None:
    """Trace and look at the sizes until the end; only look, where tracing is not possible; then tell the peaks."""
    from functools import partial

    from rtdebug.containers.owners import owner_by_path
    from rtdebug.errors import HostUnable
    from rtdebug.host.reasons import every_reason
    from rtdebug.live import LiveOptions, LiveTrace
    from rtdebug.render.escape import escape
    from rtdebug.render.shm_watch import watch_view
    from rtdebug.render.terminal import output_fd
    from rtdebug.shm.report import read_mounts, read_shm
    from rtdebug.shm.watch import EVENTS, Watch, watch_sizes
    from rtdebug.tracing.options import TraceOptions
    from rtdebug.tracing.schema import load_schema
    from rtdebug.tracing.scope import make_scope
    from rtdebug.tracing.session import Session

    def notice(text: str) -> None:
        click.echo(f"rtdebug: {escape(text)}", err=True)

    watch = Watch(partial(read_shm, container), partial(read_mounts, container))
    view = watch_view(watch, output)

    def refresh() -> None:
        if watch.sample():
            view.refresh()

    def ready() -> None:
        notice("watching events and sizes; Ctrl-C to stop")
        view.refresh()

    try:
        with every_reason():
            session = Session(make_scope(container), TraceOptions(EVENTS), load_schema(), owner_by_path)
            live = LiveOptions(duration_s, reader_fd=output_fd(), tick=refresh)
            with session:
                LiveTrace(session, live, view, notice).run(ready)
    except HostUnable as error:
        notice(f"{error.message}: watching sizes only, no events; Ctrl-C to stop")
        watch_sizes(watch, view.refresh, duration_s)
    watch.finish()
    view.summary()


def _remove(
    report: ShmReport, names: tuple[str, ...], min_age_s: float, output: str, dry_run: bool, yes: bool
) -> None:
    """Show, ask, remove, tell."""
    from rtdebug.errors import UsageProblem
    from rtdebug.render.shm_removal import removal_json, removal_table, verdict_table
    from rtdebug.render.terminal import terminal_width
    from rtdebug.shm.orphans import Rules, judge
    from rtdebug.shm.removal import remove_orphans

    ask = not (dry_run or yes)
    if ask and (output == "json" or not sys.stdin.isatty()):
        raise UsageProblem("--remove-orphans has nobody to ask here", "give --yes, or --dry-run to only look")
    rules = Rules(int(min_age_s * 1e9), names, report.container.cgroup, report.comms)
    verdicts = judge(report.objects, report.mounts, rules, report.time_ns)
    meant = [verdict.object for verdict in verdicts if verdict.refusal is None]
    width = terminal_width(sys.stdout)
    if output != "json":
        click.echo(verdict_table(verdicts, report.time_ns, width), nl=False)
    if ask and meant and not click.confirm("Remove them? What they hold is lost.", err=True):
        click.echo("Nothing was removed.", err=True)
        return
    removals = None if dry_run else tuple(remove_orphans(report.pid, meant))
    if output == "json":
        click.echo(removal_json(verdicts, removals, report.time_ns), nl=False)
    elif removals:
        click.echo(removal_table(removals, width), nl=False)
