"""`rtdebug leaks watch`: verdicts while a store is being written."""

from __future__ import annotations

from pathlib import Path

import click

from rtdebug.commands.leaks_options import paths_argument, rule_options, stores_of
from rtdebug.commands.options import duration, output_option


@click.command("watch")
@paths_argument()
@output_option()
@click.option(
    "--every", "every_s", type=duration, default="60s", show_default=True, metavar="TIME", help="Look this often."
)
@click.option("--duration", "duration_s", type=duration, metavar="TIME", help="Stop after this time.")
@rule_options()
def command(
    paths: tuple[Path, ...],
    output: str,
    every_s: float,
    duration_s: float | None,
    min_span_s: float | None,
    min_growth_bytes: int | None,
) -> None:
    """Follow stores that `rtdebug leaks record` writes, and print a line when a verdict changes.

    First what leaks or is suspect now, then each series that becomes so, or is so no longer. The verdicts are those
    that `rtdebug leaks report` would give at that moment. Ctrl-C ends it.

    \b
    Examples:
      rtdebug leaks watch
      rtdebug leaks watch ./web --every 10s --min-span 5m
      rtdebug leaks watch -o json | jq 'select(.verdict == "leak")'
    """
    import time

    from rtdebug.host.signals import on_stop_signals
    from rtdebug.leaks.extras import require_extras
    from rtdebug.leaks.rules import DEFAULT
    from rtdebug.leaks.streaming import watch
    from rtdebug.render.jsonl import encode_object
    from rtdebug.render.leaks_report import change_line, change_object, watch_line
    from rtdebug.render.terminal import output_fd

    stopped: list[bool] = []
    require_extras()
    rules = DEFAULT.with_floors(min_span_s, min_growth_bytes)
    stores = stores_of(paths)
    with on_stop_signals(lambda: stopped.append(True)) as wake_fd:
        for judged in watch(
            stores,
            rules,
            every_s,
            duration_s,
            lambda: bool(stopped),
            wake_fd,
            lambda judged: click.echo(watch_line(judged), err=True),
            output_fd(),
        ):
            now_ns = time.time_ns()
            text = encode_object(change_object(judged, now_ns)) if output == "json" else change_line(judged, now_ns)
            click.echo(text)
