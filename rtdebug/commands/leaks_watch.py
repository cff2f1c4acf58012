"""`rtdebug leaks watch`: verdicts while a store is being written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from rtdebug.commands.leaks_options import paths_argument, rule_options, stores_of
from rtdebug.commands.options import baseline_options, duration, duration_option, output_option


@click.command("watch")
@paths_argument()
@output_option()
@click.option(
    "--every", "every_s", type=duration, default="60s", show_default=True, metavar="TIME", help="Look this often."
)
@duration_option("Stop after this time.")
@baseline_options("Also tell of figures outside their usual band", "off", default="mad")
@rule_options()
def command(
    paths: tuple[Path, ...],
    output: str,
    every_s: float,
    duration_s: float | None,
    baseline: str,
    window_s: float,
    min_span_s: float | None,
    min_growth_bytes: int | None,
) -> None:
    """Follow stores that `rtdebug leaks record` writes, and print a line when a verdict changes.

    First what leaks or is suspect now, then each series that becomes so, or is so no longer. The verdicts are those
    that `rtdebug leaks report` would give at that moment. Ctrl-C ends it.

    Also what is outside of its usual band, long before it can be called a leak: a figure of a container that jumps,
    is usual again, or stays at a new level. A band is known when --window has been recorded.

    \b
    Examples:
      rtdebug leaks watch
      rtdebug leaks watch ./web --every 10s --min-span 5m --window 5m
      rtdebug leaks watch -o json | jq 'select(.verdict == "leak")'
      rtdebug leaks watch --baseline 2.5sigma -o json | jq 'select(.event == "baseline")'
    """
    import time

    from rtdebug.host.signals import on_stop_signals
    from rtdebug.leaks.baseline import method_of
    from rtdebug.leaks.baseline_watch import BaselineWatch
    from rtdebug.leaks.extras import require_extras
    from rtdebug.leaks.rules import DEFAULT
    from rtdebug.leaks.streaming import watch
    from rtdebug.leaks.verdict import Judged
    from rtdebug.render.jsonl import encode_object
    from rtdebug.render.leaks_report import watch_line
    from rtdebug.render.leaks_watch import filled_line, news_line, news_object
    from rtdebug.render.terminal import output_fd

    stopped: list[bool] = []
    require_extras()
    rules = DEFAULT.with_floors(min_span_s, min_growth_bytes)
    stores = stores_of(paths)
    baselines = None if baseline == "off" else BaselineWatch(stores, method_of(baseline), window_s)

    def first(judged: Sequence[Judged]) -> None:
        click.echo(watch_line(judged), err=True)
        if baselines is not None:
            click.echo(filled_line(*baselines.filled, window_s), err=True)

    with on_stop_signals(lambda: stopped.append(True)) as wake_fd:
        for news in watch(
            stores, rules, every_s, duration_s, lambda: bool(stopped), wake_fd, first, output_fd(), baselines
        ):
            now_ns = time.time_ns()
            click.echo(encode_object(news_object(news, now_ns)) if output == "json" else news_line(news, now_ns))
