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
@output_option("table", "text", "json")
def command(
    files: tuple[Path, ...],
    journal: bool,
    since_s: float | None,
    until_s: float | None,
    container: str | None,
    by: str | None,
    output: str,
) -> None:
    """Explain OOM kills: who was killed, by which limit, and what filled it.

    Reads the kernel messages in FILEs (- is standard input), also compressed ones, in whatever form they were
    saved or pasted: dmesg, syslog, journalctl, kubectl. Without FILE it reads this host's ring buffer. A single
    kill is shown as a page, several as a table; -o text gives a page for each.

    \b
    Examples:
      sudo rtdebug oom
      rtdebug oom /var/log/kern.log /var/log/kern.log.*.gz --since 7d
      kubectl logs -n kube-system node-problem-detector-x2x7k | rtdebug oom - -o text
      rtdebug oom --by cluster logs/*/kern.log
      rtdebug oom --journal -o json | jq -r 'select(.verdict.kind == "shmem") | .container_id'
    """
    from rtdebug.errors import UsageProblem
    from rtdebug.oom.gather import Places
    from rtdebug.oom.select import Selection

    if files and journal:
        raise UsageProblem("give FILEs or --journal: one of the two", "`rtdebug oom --journal`")
    places = Places(files, journal)
    selection = Selection(_ns(since_s), _ns(until_s), container)
    if by == "cluster":
        _show_clusters(places, selection, output)
    else:
        _show(places, selection, output)
    if selection.untimed:
        click.echo(
            f"rtdebug: {selection.untimed} kills whose time is not in the log are left out by --since or --until",
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
    from rtdebug.oom.gather import gather
    from rtdebug.render.oom_episodes import show_episodes

    episodes = gather(places, selection, owners_when_asked(_containers) if places.are_this_host else None)
    if not show_episodes(episodes, output, sys.stdout):
        click.echo(f"rtdebug: no OOM kill in {places}", err=True)


def _show_clusters(places: Places, selection: Selection, output: str) -> None:
    raise NotImplementedError
