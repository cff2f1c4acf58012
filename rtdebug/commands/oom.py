"""`rtdebug oom`: the OOM kills of kernel logs, and why they happened."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rtdebug.commands.options import complete_container, moment, output_option

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rtdebug.containers.model import Container
    from rtdebug.oom.gather import Places
    from rtdebug.oom.select import Selection


@click.command("oom")
@click.argument(
    "files", nargs=-1, metavar="[FILE]...", type=click.Path(readable=False, allow_dash=True, path_type=Path)
)
@click.option("--journal", is_flag=True, help="Read this host's journal, of all boots it holds (journalctl).")
@click.option(
    "--since", "since_s", type=moment, metavar="TIME", help="Only kills after this time (2h, 2026-03-01 14:00)."
)
@click.option("--until", "until_s", type=moment, metavar="TIME", help="Only kills before this time.")
@click.option(
    "--container",
    metavar="NAME",
    shell_complete=complete_container,
    help="Only this container, pod, unit or cgroup: by its id, the beginning of it, name, pod uid or path.",
)
@click.option("--by", type=click.Choice(["cluster"]), help="Group kills that share pod or image, program and kind.")
@click.option("--watch", is_flag=True, help="Show this host's kills as they happen, until Ctrl-C.")
@click.option(
    "--keep",
    type=click.IntRange(1, 10_000),
    metavar="N",
    help="With --watch: keep the last N reports on disk, each with a snapshot of the container.",
)
@click.option(
    "--keep-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default="/var/lib/rtdebug/oom",
    show_default=True,
    metavar="DIR",
    help="Where --keep keeps them.",
)
@output_option("table", "text", "json")
def command(
    files: tuple[Path, ...],
    journal: bool,
    since_s: float | None,
    until_s: float | None,
    container: str | None,
    by: str | None,
    watch: bool,
    keep: int | None,
    keep_dir: Path,
    output: str,
) -> None:
    """Explain OOM kills: who was killed, by which limit, and what filled it.

    Reads the kernel messages in FILEs (- is standard input), also compressed ones, in whatever form they were
    saved or pasted: dmesg, syslog, journalctl, kubectl. Without FILE it reads this host's ring buffer. A single
    kill is shown as a page, several as a table; -o text gives a page for each. With --watch it shows the kills of
    this host as they happen, by the means of `rtdebug trace`.

    \b
    Examples:
      sudo rtdebug oom
      rtdebug oom /var/log/kern.log /var/log/kern.log.*.gz --since 7d
      kubectl logs -n kube-system node-problem-detector-x2x7k | rtdebug oom - -o text
      rtdebug oom --by cluster logs/*/kern.log
      sudo rtdebug oom --watch --keep 20
      rtdebug oom --journal -o json | jq -r 'select(.verdict.kind == "shmem") | .container_id'
    """
    from rtdebug.errors import UsageProblem
    from rtdebug.oom.gather import Places
    from rtdebug.oom.select import Selection

    if files and journal:
        raise UsageProblem("give FILEs or --journal: one of the two", "`rtdebug oom --journal`")
    if watch:
        if files or journal or by or since_s is not None or until_s is not None:
            raise UsageProblem("--watch shows what is to come: no FILE, --journal, --by, --since or --until")
        _watch(container, keep, keep_dir, output)
        return
    if keep is not None:
        raise UsageProblem("--keep keeps what --watch sees", "`rtdebug oom --watch --keep 20`")
    places = Places(files, journal)
    selection = Selection(_ns(since_s), _ns(until_s), container)
    if by == "cluster":
        _show_clusters(places, selection, output)
    else:
        _show(places, selection, output)
    if selection.untimed:
        click.echo(
            f"rtdebug: {selection.untimed} kills whose time is not in the log are left out by --since or --until"
            " (`dmesg -T` writes it)",
            err=True,
        )


def _ns(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds * 1e9)


def _containers() -> Iterable[Container]:
    from rtdebug.errors import RtdebugError
    from rtdebug.host.child import in_child
    from rtdebug.live import known_containers

    try:
        return in_child(known_containers)
    except RtdebugError:
        return ()


def _show(places: Places, selection: Selection, output: str) -> None:
    from rtdebug.containers.owners import owners_when_asked
    from rtdebug.oom.gather import gather, gather_userspace
    from rtdebug.render.escape import escape
    from rtdebug.render.oom_episodes import show_episodes
    from rtdebug.render.oom_userspace import userspace_lines
    from rtdebug.render.progress import Progress

    owner = owners_when_asked(_containers) if places.are_this_host else None
    with Progress("MiB read") as progress:
        shown = show_episodes(gather(places, selection, owner, progress), output, sys.stdout)
    if not shown:
        for text in (selection.nothing_in(places), *userspace_lines(gather_userspace(places))):
            click.echo(f"rtdebug: {escape(text)}", err=True)


def _show_clusters(places: Places, selection: Selection, output: str) -> None:
    from rtdebug.containers.owners import owners_when_asked
    from rtdebug.oom.cluster import find_clusters
    from rtdebug.oom.gather import gather
    from rtdebug.render.escape import escape
    from rtdebug.render.oom_clusters import clusters_json, clusters_table
    from rtdebug.render.progress import Progress

    owner = owners_when_asked(_containers) if places.are_this_host else None
    with Progress("MiB read") as progress:
        clusters = find_clusters(gather(places, selection, owner, progress))
    if output == "json":
        click.echo(clusters_json(clusters), nl=False)
    elif clusters:
        click.echo(clusters_table(clusters), nl=False)
    else:
        click.echo(escape(f"rtdebug: {selection.nothing_in(places)}"), err=True)


def _watch(container: str | None, keep: int | None, keep_dir: Path, output: str) -> None:
    from contextlib import closing, nullcontext

    from rtdebug.containers.owners import owners
    from rtdebug.host.child import in_child
    from rtdebug.host.reasons import every_reason
    from rtdebug.keep import Keeper
    from rtdebug.live import LiveOptions, LiveTrace, known_containers
    from rtdebug.oom.select import wants_line
    from rtdebug.render.escape import escape
    from rtdebug.render.oom_watch import WatchRenderer, watch_json, watch_text
    from rtdebug.render.ready import ready_line
    from rtdebug.render.terminal import output_fd
    from rtdebug.tracing.options import TraceOptions
    from rtdebug.tracing.schema import load_schema
    from rtdebug.tracing.scope import make_scope
    from rtdebug.tracing.session import Session

    def notice(text: str) -> None:
        click.echo(f"rtdebug: {escape(text)}", err=True)

    options = TraceOptions(("oom_kill",))
    with every_reason():
        scope = make_scope(None)
        session = Session(scope, options, load_schema(), owners(in_child(known_containers)))
        keeper = (
            Keeper(keep_dir, keep, lambda line: (watch_json(line), watch_text(line)), notice) if keep else None
        )
        renderer = WatchRenderer(output, sys.stdout, wants_line(container), keeper.keep if keeper else None)
        with closing(keeper) if keeper else nullcontext(), session:
            trace = LiveTrace(session, LiveOptions(reader_fd=output_fd()), renderer, notice)
            trace.run(lambda: click.echo(escape(ready_line(scope, options, keep_dir if keep else None)), err=True))
