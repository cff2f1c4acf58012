"""`rtdebug madvise apply`: advice on a mapping of a live process."""

from __future__ import annotations

import signal
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from rtdebug.commands.options import duration, output_option, pid_number, runc_root_option, target_argument


def complete_advice(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The names without MADV_, with what each does."""
    from rtdebug.madvise.advice import applicable

    wanted = incomplete.upper().removeprefix("MADV_")
    return [
        CompletionItem(each.short_name, help=each.does) for each in applicable() if each.short_name.startswith(wanted)
    ]


@click.command("apply")
@target_argument()
@click.option("--pid", type=pid_number, required=True, metavar="PID", help="The process, by its pid on the host.")
@click.option(
    "--mapping", required=True, metavar="MAPPING", help="An address inside the mapping, or its name: heap, data.bin."
)
@click.option(
    "--advice", required=True, metavar="ADVICE", shell_complete=complete_advice, help="The advice: HUGEPAGE, COLD, ..."
)
@click.option("--for", "for_s", type=duration, metavar="TIME", help="Take the advice back after this time: 60s, 10m.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@click.option("--destroy-data", is_flag=True, help="Allow advice that can destroy what is in the mapping.")
@output_option()
@runc_root_option()
def command(
    target: str,
    pid: int,
    mapping: str,
    advice: str,
    for_s: float | None,
    dry_run: bool,
    destroy_data: bool,
    output: str,
    runc_roots: tuple[Path, ...],
) -> None:
    """Give advice on one mapping of a live process of TARGET, and show in smaps what it did.

    COLD, PAGEOUT, WILLNEED and COLLAPSE act from outside, by process_madvise(2). For the others, such as
    HUGEPAGE, NOHUGEPAGE, DONTDUMP and MERGEABLE, the process must call madvise(2) itself: one thread of it is
    stopped, mostly for less than a millisecond, makes that call, and runs on; also if rtdebug is killed.

    With --for the advice is taken back after that time, on Ctrl-C, when rtdebug is killed, and when the
    container comes within 10 % of its memory limit or its tasks wait for memory.

    \b
    Examples:
      rtdebug madvise apply my-redis --pid 4711 --mapping heap --advice HUGEPAGE --for 10m
      rtdebug madvise apply my-redis --pid 4711 --mapping 0x7f12a4000000 --advice collapse --dry-run
      rtdebug madvise apply pod/prod/web --pid 4711 --mapping cache.bin --advice PAGEOUT -o json
    """
    from rtdebug.containers.resolve import find_container
    from rtdebug.madvise.advice import find_advice
    from rtdebug.madvise.apply import Applied, apply, apply_for
    from rtdebug.madvise.apply_plan import make_plan, read_host
    from rtdebug.madvise.guard import guard_process
    from rtdebug.render.escape import escape
    from rtdebug.render.madvise_apply import applied_json, applied_text, plan_text, taken_back_text
    from rtdebug.render.progress import Progress
    from rtdebug.tracing.scope import check_pid, make_scope

    wanted = find_advice(advice)
    container, notes = find_container(target, runc_roots)
    for note in notes:
        click.echo(f"note: {escape(note)}", err=True)
    check_pid(pid, make_scope(container))
    plan = make_plan(pid, mapping, wanted, undo=for_s is not None, destroy=destroy_data, host=read_host())
    done: list[Applied] = []

    def show(applied: Applied) -> None:
        done.append(applied)
        if output == "table":
            click.echo(applied_text(plan, applied), nl=False)

    if output == "table":
        click.echo(plan_text(plan, for_s, dry_run), nl=False)
    taken_back = None
    if not dry_run:
        guard = guard_process(pid)
        if for_s is None:
            show(apply(plan, guard))
        else:
            _end_by_signals()
            with Progress("s until it is taken back") as progress:
                taken_back = apply_for(plan, for_s, guard, show, progress)
    if output == "json":
        click.echo(applied_json(plan, done[0] if done else None, taken_back), nl=False)
    elif taken_back:
        click.echo(taken_back_text(plan, taken_back), nl=False)


def _end_by_signals() -> None:
    """SIGTERM and SIGHUP end the waiting as Ctrl-C does."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
