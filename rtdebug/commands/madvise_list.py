"""`rtdebug madvise list`: the mappings worth advising."""

from __future__ import annotations

from pathlib import Path

import click

from rtdebug.commands.options import duration, output_option, pid_option, runc_root_option, size, target_argument

_LEAST = "2M"


@click.command("list")
@target_argument()
@pid_option()
@click.option("--top", type=click.IntRange(1, 100_000), default=20, show_default=True, help="So many mappings.")
@click.option(
    "--least",
    "least_bytes",
    type=size,
    default=_LEAST,
    show_default=True,
    metavar="SIZE",
    help="Only mappings with so much resident.",
)
@click.option(
    "--idle",
    "idle_s",
    type=duration,
    metavar="TIME",
    help="Clear the processes' accessed bits, and see what they access in this time. The kernel's reclaim loses "
    "what the bits told it.",
)
@output_option()
@runc_root_option()
def command(
    target: str,
    pid: int | None,
    top: int,
    least_bytes: int,
    idle_s: float | None,
    output: str,
    runc_roots: tuple[Path, ...],
) -> None:
    """List the mappings of a container that advice would help, largest gain first.

    The gain of HUGEPAGE and COLLAPSE is what huge pages could map and do not; that of PAGEOUT is what is idle.
    Beside it stands whether the mapping may have huge pages, and which setting decides that. Nothing is
    changed, except by --idle.

    \b
    Examples:
      rtdebug madvise list my-redis
      rtdebug madvise list my-redis --idle 30s
      rtdebug madvise list pod/prod/web -o json | jq '.mappings[] | select(.advice) | [.pid, .advice, .gain_bytes]'
    """
    from rtdebug.containers.resolve import find_container
    from rtdebug.madvise.apply_plan import read_host
    from rtdebug.madvise.candidates import ProcessMaps, find_candidates, read_process
    from rtdebug.madvise.idle import watch_accesses
    from rtdebug.madvise.members import members
    from rtdebug.render.escape import escape
    from rtdebug.render.madvise_list import list_json, list_table
    from rtdebug.render.progress import Progress
    from rtdebug.tracing.scope import check_pid, make_scope

    container, notes = find_container(target, runc_roots)
    for note in notes:
        click.echo(f"note: {escape(note)}", err=True)
    if pid is not None:
        check_pid(pid, make_scope(container))
    pids = members(container) if pid is None else [pid]
    if idle_s is not None:
        with Progress(f"s: seeing what {len(pids):,} processes access") as waited:
            watch_accesses(pids, idle_s, waited)
    host = read_host()
    with Progress("processes read") as progress:

        def read(number: int) -> ProcessMaps | None:
            progress(number, len(pids))
            return read_process(pids[number])

        found = find_candidates(map(read, range(len(pids))), host, least_bytes, top)
    if output == "json":
        click.echo(list_json(found, host.thp, idle_s), nl=False)
    else:
        click.echo(list_table(found, host.thp, least_bytes, idle_s, target), nl=False)
