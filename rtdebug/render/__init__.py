"""One module per output form; everything that reaches a terminal goes through `escape`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rtdebug.tracing.line import EventLine
    from rtdebug.tracing.summary import Summary


class Renderer(Protocol):
    """What `trace` and `report` write to: `TableRenderer` or `JsonRenderer`.

    Each call is flushed. BrokenPipeError: the reader went away; OSError: the output cannot be written.
    """

    def line(self, line: EventLine) -> None:
        """Write one line."""

    def lines(self, lines: Iterable[EventLine]) -> None:
        """Write a batch of lines: far cheaper than one by one."""

    def summary(self, summary: Summary) -> None:
        """Write the closing summary."""
