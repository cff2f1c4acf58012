"""`rtdebug report FILE`: what a recording holds, as the trace showed it. No root, no bcc, any machine."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rtdebug.commands.options import event_option, output_option, pid_option
from rtdebug.errors import UsageProblem
from rtdebug.render.escape import escape

if TYPE_CHECKING:
    from rtdebug.render.jsonl import JsonRenderer
    from rtdebug.render.table import TableRenderer
    from rtdebug.tracing.line import EventLine
    from rtdebug.tracing.recording import Recording, Selection
    from rtdebug.tracing.summary import Summary

LINES_AT_ONCE = 1000


@click.command("report")
@click.argument("file", type=click.Path(readable=False, path_type=Path))
@output_option("table", "json", "parquet")
@click.option(
    "--output-file",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="With -o parquet: the new folder to write, one file for each kind of event.",
)
@event_option()
@pid_option()
@click.option("--summary-only", is_flag=True, help="No lines, only the summary, of what --event and --pid select.")
def command(
    file: Path,
    output: str,
    output_file: Path | None,
    events: tuple[str, ...],
    pid: int | None,
    summary_only: bool,
) -> None:
    """Show FILE, a recording made by `rtdebug trace --record FILE`.

    It is read as a stream, so it may be larger than the memory. A recording that breaks off (a full disk,
    kill -9) is shown up to where it is whole.

    \b
    Examples:
      rtdebug report incident.rtd
      rtdebug report incident.rtd --event oom_kill --event shm_full
      rtdebug report incident.rtd -o json | jq -r 'select(.event == "shm_full") | .path'
      rtdebug report incident.rtd -o parquet --output-file incident/
    """
    from rtdebug.render.choose import line_renderer
    from rtdebug.tracing.recording import Recording, Selection

    if (output == "parquet") != (output_file is not None):
        raise UsageProblem("-o parquet and --output-file go together", "for the other forms redirect standard output")
    if output_file is not None and summary_only:
        raise UsageProblem("--summary-only is no form of Parquet", "use it with -o json")
    recording = Recording.open(file)
    selection = Selection(frozenset(events), pid)
    if output_file is not None:
        _write_parquet(recording, selection, output_file)
    else:
        renderer = line_renderer(output, show_container=recording.start.target is None)
        renderer.summary(_show(recording, selection, renderer, summary_only))
    for note in notes(recording):
        click.echo(f"rtdebug: {escape(note)}", err=True)


def notes(recording: Recording) -> Iterator[str]:
    """Say what is missing in a recording that was read to its end."""
    name = recording.path.name
    if recording.problem is not None:
        yield f"{name}: {recording.problem}; what comes before is shown"
    elif recording.end is None:
        yield f"{name} has no end: the trace was killed, its disk was full, or it still runs"
    if recording.unknown_records:
        yield f"{name}: {recording.unknown_records} records are of kinds this rtdebug does not know"


def _show(
    recording: Recording, selection: Selection, renderer: TableRenderer | JsonRenderer, summary_only: bool
) -> Summary:
    from rtdebug.tracing.options import lost_events
    from rtdebug.tracing.summary import SummaryBuilder

    builder = SummaryBuilder(_shown(recording, selection), _is_everyone(recording, selection))
    lines = recording.totals(selection) if summary_only else recording.lines(selection)
    for batch in _batches(lines):
        for line in batch:
            builder.add(line)
        if not summary_only:
            renderer.lines(batch)
    end, lost = recording.end, recording.lost
    started_ns = (end.attached_ns if end else None) or recording.start.started_ns
    return builder.finish(
        started_ns,
        end.ended_ns if end else max(recording.last_ns, started_ns),
        lost_events(lost) if lost is not None else None,
        still_mapped=end.still_mapped if end else None,
        # what exists at the end is of all processes and kinds
        still_linked=end.still_linked if end and selection.is_all else None,
        last_sizes=end.last_sizes if end else None,
    )


def _shown(recording: Recording, selection: Selection) -> frozenset[str]:
    from rtdebug.tracing.options import EVENTS

    return frozenset(filter(selection.shows, recording.start.options.get("events", EVENTS)))


def _is_everyone(recording: Recording, selection: Selection) -> bool:
    asked = recording.start.options
    return all(filter_ is None for filter_ in (selection.pid, asked.get("pid"), asked.get("comm")))


def _batches(lines: Iterable[EventLine]) -> Iterator[list[EventLine]]:
    source = iter(lines)
    while batch := list(islice(source, LINES_AT_ONCE)):
        yield batch


def _write_parquet(recording: Recording, selection: Selection, folder: Path) -> None:
    from rtdebug.render.parquet import require_pyarrow, write_parquet

    require_pyarrow()
    from rtdebug.tracing.frames import frame_batches

    began = time.monotonic()
    rows = write_parquet(folder, frame_batches(recording, selection))
    total = f"{sum(rows.values()):,} rows in {len(rows)} files, {time.monotonic() - began:.1f} s"
    click.echo(f"wrote {escape(str(folder))}: {total}", err=True)
