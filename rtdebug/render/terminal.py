"""What the terminal at the other end can show: its width and its colours.

By hand, for the stream must stay light: `rich.console` costs 2 MB resident before it prints anything, and
the tracing process has 45 MB in all.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from enum import Enum
from typing import TextIO


class Style(Enum):
    """The few looks there are, as SGR parameters (ECMA-48)."""

    ALARM = "1;31"
    FAILED = "33"
    GOOD = "32"
    TITLE = "1"
    QUIET = "2"


def terminal_width(stream: TextIO) -> int | None:
    """Columns of the terminal `stream` writes to; None when it is none (a file or pipe is never cut)."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):  # ValueError: closed, or not a real file
        return None


def output_fd() -> int | None:
    """The descriptor behind standard output; None when there is none."""
    try:
        return sys.stdout.fileno()
    except (OSError, ValueError, AttributeError):
        return None


def use_colour(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Colour on a terminal only, unless NO_COLOR (no-color.org) or TERM=dumb says otherwise."""
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def paint(text: str, style: Style, colour: bool) -> str:
    """`text` in `style` if `colour`, else as it is."""
    return f"\x1b[{style.value}m{text}\x1b[0m" if colour and text else text


class StatusLine:
    """One line on a terminal that is written over again and again; on anything else, nothing."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._shown = False

    def show(self, text: str) -> None:
        """Put `text` (escaped already) in place of what was shown, cut to the terminal's width."""
        width = terminal_width(self._stream)
        if width is not None:
            self._stream.write(f"\r\x1b[K{text[: width - 1]}")
            self._stream.flush()
            self._shown = True

    def clear(self) -> None:
        """Take it away, so that something else can be written."""
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._shown = False
