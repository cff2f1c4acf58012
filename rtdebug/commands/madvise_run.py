"""`rtdebug madvise run`: would advice help here, and what does it cost?"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from rtdebug.commands.options import output_option, runc_root_option, size, target_argument


def complete_plan(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The plans that come with rtdebug."""
    from rtdebug.madvise.plan_text import shipped_plans

    return [CompletionItem(name) for name in shipped_plans() if name.startswith(incomplete)]


@click.command("run")
@target_argument()
@click.argument("plan", nargs=-1, required=True, shell_complete=complete_plan)
@output_option()
@click.option("--runs", type=click.IntRange(1, 1000), metavar="N", help="Runs of each advice, instead of the plan's.")
@click.option("--seed", type=click.IntRange(0), metavar="N", help="Of the order of runs and accesses.")
@click.option("--size", "size_bytes", type=size, metavar="SIZE", help="Size of the memory, instead of the plan's.")
@click.option(
    "--picture",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Draw the distributions: .png, .svg or .html.",
)
@click.option(
    "--raw",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write every run, for pandas: .parquet, .json or .jsonl.",
)
@runc_root_option()
def command(
    target: str,
    plan: tuple[str, ...],
    output: str,
    runs: int | None,
    seed: int | None,
    size_bytes: int | None,
    picture: Path | None,
    raw: Path | None,
    runc_roots: tuple[Path, ...],
) -> None:
    """Measure advice in the container of TARGET, on memory of the experiment's own.

    A process joins the container's namespaces and a cgroup below the container's, maps memory, and does what
    PLAN says, with each advice and without any. It touches none of the container's own memory, takes no more
    than the container has room for, and ends when the container comes under pressure.

    PLAN is the name of a plan that comes with rtdebug (thp-anon, give-back, shm-thp, model-file), a .toml
    file, or words in any order: memory, size, access, read or write, advice.

    \b
    Examples:
      rtdebug madvise run my-redis thp-anon
      rtdebug madvise run my-redis anon 64M random read HUGEPAGE,COLLAPSE
      rtdebug madvise run my-redis give-back --raw runs.parquet --picture runs.png
      rtdebug madvise run my-redis thp-anon -o json | jq '.recommendation[].text'
    """
    from rtdebug.containers.resolve import find_container
    from rtdebug.host.cgroup import find_memory_hierarchy
    from rtdebug.madvise.answer import answers
    from rtdebug.madvise.conduct import conduct
    from rtdebug.madvise.extras import require_extras
    from rtdebug.madvise.plan_text import read_plan
    from rtdebug.madvise.recommendation import recommend
    from rtdebug.render.escape import escape
    from rtdebug.render.madvise_picture import check_picture, write_picture
    from rtdebug.render.madvise_raw import check_raw, write_raw
    from rtdebug.render.madvise_run import run_json, run_table

    require_extras()
    check_picture(picture)
    check_raw(raw)
    chosen = read_plan(plan)
    chosen = replace(chosen, runs=runs or chosen.runs, seed=chosen.seed if seed is None else seed)
    if size_bytes is not None:
        chosen = replace(
            chosen, cases=tuple(replace(case, size_bytes=size_bytes, where="--size") for case in chosen.cases)
        )
    container, notes = find_container(target, runc_roots)
    for note in notes:
        click.echo(f"note: {escape(note)}", err=True)
    outcome = conduct(chosen, container, find_memory_hierarchy(), _progress())
    found = answers(outcome)
    recommendations = recommend(found, outcome.settings)
    render = run_json if output == "json" else run_table
    click.echo(render(outcome, found, recommendations), nl=False)
    if picture is not None:
        write_picture(picture, outcome)
    if raw is not None:
        write_raw(raw, outcome)


def _progress() -> Callable[[int, int], None]:
    """A line on standard error that is written over, on a terminal only."""
    if not sys.stderr.isatty():
        return lambda _done, _total: None

    def show(done: int, total: int) -> None:
        click.echo(f"\r{done} of {total} runs" if done < total else "\r\x1b[K", nl=False, err=True)

    return show
