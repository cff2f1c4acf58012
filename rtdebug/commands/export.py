"""`rtdebug export`: metrics for Prometheus."""

from __future__ import annotations

from pathlib import Path

import click

from rtdebug.commands.options import baseline_options, interval_option, runc_root_option
from rtdebug.errors import UsageProblem

DEFAULT_LISTEN = "127.0.0.1:9435"


def series_number(text: str) -> int:
    """Type of an option: 100 to 10 million."""
    if not text.isdecimal() or not 100 <= int(text) <= 10_000_000:
        raise click.BadParameter(f"'{text}' is out of range: give 100 to 10000000")
    return int(text)


@click.command("export")
@click.option(
    "--listen",
    metavar="ADDRESS",
    help=f"Serve metrics at HOST:PORT, [IPV6]:PORT or :PORT.  [default: {DEFAULT_LISTEN}]",
)
@click.option(
    "--web-config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="TLS and passwords, in the form of all Prometheus exporters.",
)
@click.option(
    "--textfile",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write metrics to FILE, for the node exporter; without --listen, only that.",
)
@interval_option("Time between two looks at the containers.", default="10s")
@click.option("--no-trace", is_flag=True, help="Read files only: no OOM victims, SIGBUS, ENOSPC and madvise.")
@baseline_options("Flag figures outside their usual band")
@click.option(
    "--max-series",
    type=series_number,
    default="10000",
    show_default=True,
    metavar="N",
    help="Counters of the trace that are kept; containers that are gone for the longest lose theirs first.",
)
@runc_root_option()
def command(
    listen: str | None,
    web_config: Path | None,
    textfile: Path | None,
    interval_s: float,
    no_trace: bool,
    baseline: str | None,
    window_s: float,
    max_series: int,
    runc_roots: tuple[Path, ...],
) -> None:
    """Serve metrics of all containers for Prometheus: what no other exporter has.

    OOM kills with their victim and the cgroup whose limit was hit, also of containers that are gone; memory by kind,
    huge pages, /dev/shm and what was left in it, SIGBUS, ENOSPC and madvise; pressure, refaults and memory events;
    which kinds of memory leak. A container that hangs delays nothing. docs/export.md explains every metric.

    Without the rights to trace it reads files only, and rtdebug_trace_up is 0.

    \b
    Examples:
      rtdebug export
      rtdebug export --listen :9435 --web-config /etc/rtdebug/web.yml --baseline
      rtdebug export --textfile /var/lib/prometheus/node-exporter/rtdebug.prom --interval 1m
    """
    from contextlib import ExitStack
    from functools import partial

    from rtdebug.export.counters import Counters
    from rtdebug.export.exporter import Exporter, Publish
    from rtdebug.export.model import Snapshot
    from rtdebug.export.server import Server
    from rtdebug.export.server import listen as listen_at
    from rtdebug.export.textfile import write_textfile
    from rtdebug.export.traced import TraceProcess
    from rtdebug.export.web_config import WebConfig, load_web_config
    from rtdebug.host.cgroup import find_memory_hierarchy
    from rtdebug.host.child import in_child
    from rtdebug.leaks.baseline import baselines_of, method_of
    from rtdebug.leaks.selection import Selection, find_all
    from rtdebug.render.escape import escape
    from rtdebug.render.metrics import MetricsPage, require_prometheus_client

    if web_config is not None and textfile is not None and listen is None:
        raise UsageProblem("--web-config protects what --listen serves", "give --listen too, or leave it out")
    require_prometheus_client()

    def notice(text: str) -> None:
        click.echo(f"rtdebug: {escape(text)}", err=True)

    hierarchy = find_memory_hierarchy()
    config = WebConfig() if web_config is None else load_web_config(web_config)
    with ExitStack() as stack:
        server = None
        if listen is not None or textfile is None:
            server = Server(listen_at(listen or DEFAULT_LISTEN), config, max(60.0, 6 * interval_s))
            stack.callback(server.close)
        first, notes = in_child(partial(find_all, runc_roots, ()))
        for note in notes:
            notice(note)
        selection = Selection(hierarchy, first, (), runc_roots)
        stack.callback(selection.close)
        counters = Counters(max_series)
        baselines = baselines_of(method_of(baseline), window_s, interval_s) if baseline is not None else None
        exporter = Exporter(
            hierarchy,
            selection.containers,
            counters,
            None if no_trace else TraceProcess(counters, notice, interval_s),
            interval_s=interval_s,
            baselines=baselines,
        )
        metrics = MetricsPage()

        def publish(snapshot: Snapshot) -> None:
            page = metrics.page(snapshot)
            if textfile is not None:
                write_textfile(textfile, page)
            if server is not None:
                server.publish(page)

        where = [server.url] if server else []
        where += [str(textfile)] if textfile else []
        ready = f"Exporting to {' and '.join(where)} every {interval_s:g} s. Ctrl-C ends it."
        exporter.run(
            Publish(publish, server.check if server else lambda: None), lambda: click.echo(escape(ready), err=True)
        )
