"""OOM kills as they happen: the block or the event line of a trace, with the verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TextIO

from rtdebug.oom.live_facts import facts_of_line
from rtdebug.oom.verdict import judge
from rtdebug.render.block import block, labelled
from rtdebug.render.columns import wrap
from rtdebug.render.escape import escape
from rtdebug.render.jsonl import encode_event
from rtdebug.render.oom import render_oom
from rtdebug.render.oom_verdict import fill, verdict_fields
from rtdebug.render.terminal import terminal_width
from rtdebug.tracing.line import EventLine

_COLUMNS = 80
_LABEL_COLUMNS = 14


class WatchRenderer:
    """Shows the `oom_kill` lines that `wants` lets through, and hands them on to `keep`."""

    def __init__(
        self,
        output: str,
        out: TextIO,
        wants: Callable[[EventLine], bool],
        keep: Callable[[EventLine], object] | None = None,
    ) -> None:
        self._output = output
        self._out = out
        self._wants = wants
        self._keep = keep

    def lines(self, lines: Sequence[EventLine]) -> None:
        """Show a batch. Raises BrokenPipeError when the reader went away, after all was kept."""
        shown = [line for line in lines if line.event == "oom_kill" and self._wants(line)]
        for line in shown:
            if self._keep is not None:
                self._keep(line)
        for line in shown:
            width = min(terminal_width(self._out) or _COLUMNS, 120)
            text = watch_json(line) if self._output == "json" else f"{watch_text(line, width)}\n"
            self._out.write(f"{text}\n")
        if shown:
            self._out.flush()


def watch_json(line: EventLine) -> str:
    """The event line of a trace, with the key `verdict`."""
    verdict = verdict_fields(judge(facts_of_line(line)))
    return encode_event(replace(line, fields={**line.fields, "verdict": verdict}))


def watch_text(line: EventLine, width: int = _COLUMNS) -> str:
    """The block of a trace, with the verdict below it."""
    verdict = judge(facts_of_line(line))
    notes = (row for note in verdict.notes for row in wrap(fill(note.text, note.evidence), width - _LABEL_COLUMNS))
    rows = [
        *labelled("verdict", f"{verdict.kind}: {fill(verdict.text, verdict.evidence)}", width),
        *labelled("to do", verdict.advice, width),
        *block("note", notes),
    ]
    return "\n".join([render_oom(line, width), *(escape(row, width) for row in rows)])
