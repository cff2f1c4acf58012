"""`rtdebug leaks record`: sample the memory of containers into a store."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import click

from rtdebug.commands.options import (
    complete_container,
    duration_option,
    interval_option,
    output_option,
    runc_root_option,
    size,
)

DEFAULT_STORE = "/var/lib/rtdebug/leaks"
LEAST_KEPT_BYTES = 1 << 20


@click.command("record")
@click.argument("targets", nargs=-1, metavar="[TARGET]...", shell_complete=complete_container)
@click.option(
    "--store",
    type=click.Path(path_type=Path),
    default=DEFAULT_STORE,
    show_default=True,
    metavar="DIR",
    help="Where the samples go. A store can be read while it is written, and copied.",
)
@interval_option("Time between two samples.", default="10s")
@duration_option("Stop after this time (30m, 2h, 7d).")
@click.option(
    "--keep",
    "keep_bytes",
    type=size,
    default="2G",
    show_default=True,
    metavar="SIZE",
    help="Remove the oldest of this host's samples beyond this size.",
)
@click.option(
    "--stacks",
    is_flag=True,
    help="Also keep where memory is mapped (mmap, brk) and touched (page faults), by user stack.",
)
@click.option(
    "--malloc",
    is_flag=True,
    help="Also sample malloc and free of the TARGETs by user stack. Slows each call down by 1 to 5 us.",
)
@output_option()
@runc_root_option()
def command(
    targets: tuple[str, ...],
    store: Path,
    interval_s: float,
    duration_s: float | None,
    keep_bytes: int,
    stacks: bool,
    malloc: bool,
    output: str,
    runc_roots: tuple[Path, ...],
) -> None:
    """Sample the memory of all containers, or of those named, into a store.

    Each container's memory by kind, and each of its processes, every ten seconds, until Ctrl-C or SIGTERM. A leak shows
    in hours: let it run. A store survives kill -9 and reboots, and the next recording goes on in it.

    \b
    Examples:
      rtdebug leaks record
      rtdebug leaks record web worker --interval 2s --duration 30m --store ./web
      rtdebug leaks record web --stacks --malloc --duration 1h
      systemd-run --unit rtdebug-leaks rtdebug leaks record --keep 5G
    """
    import platform
    from contextlib import ExitStack

    from rtdebug.errors import RtdebugError, UsageProblem
    from rtdebug.host.cgroup import find_memory_hierarchy
    from rtdebug.host.child import in_child
    from rtdebug.leaks.recorder import Progress, Recorder
    from rtdebug.leaks.sample import Sampler
    from rtdebug.leaks.selection import Selection, find_all
    from rtdebug.leaks.sites import open_sites
    from rtdebug.leaks.writer import StoreWriter
    from rtdebug.render.escape import escape
    from rtdebug.render.leaks_record import ready_line, status_line, summary_json, summary_text
    from rtdebug.render.parquet import require_pyarrow
    from rtdebug.render.terminal import StatusLine

    if malloc and not targets:
        raise UsageProblem(
            "--malloc slows every malloc down: name the containers it is for",
            "rtdebug leaks record TARGET --malloc; --stacks is cheap enough for all",
        )
    if keep_bytes < LEAST_KEPT_BYTES:
        raise UsageProblem("--keep is less than 1 MiB", "what is kept would be gone within minutes")
    require_pyarrow()
    hierarchy = find_memory_hierarchy()
    first, notes = in_child(partial(find_all, runc_roots, targets))
    status = StatusLine(sys.stderr)

    def notice(text: str) -> None:
        status.clear()
        click.echo(f"rtdebug: {escape(text)}", err=True)

    def tell(progress: Progress) -> None:
        status.show(status_line(progress))

    def ready() -> None:
        sources = tuple(name for name, on in (("stacks", stacks), ("malloc", malloc)) if on)
        status.clear()
        click.echo(escape(ready_line(store, interval_s, targets, sources)), err=True)

    for note in notes:
        notice(note)
    host = platform.node()
    with ExitStack() as stack:
        writer = stack.enter_context(StoreWriter(store, host, keep_bytes, notice))
        sites = open_sites(host, notice, stacks=stacks, malloc=malloc)
        recorder = Recorder(
            Selection(hierarchy, first, targets, runc_roots),
            Sampler(hierarchy, host, interval_s),
            writer,
            interval_s=interval_s,
            duration_s=duration_s,
            sites=None if sites is None else stack.enter_context(sites),
            tell=tell,
        )
        recorder.run(ready)
    status.clear()
    progress = recorder.progress()
    if output == "json":
        click.echo(summary_json(progress, store), nl=False)
    else:
        for line in summary_text(progress, store).splitlines():
            click.echo(escape(line))
    if progress.lost_rows:
        raise RtdebugError(
            f"{progress.lost_rows:,} rows are not in {store}: it could not be written for a while",
            "make room there, or keep less (--keep); what was written before and after is whole",
        )
