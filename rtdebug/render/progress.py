"""Progress on standard error, on a terminal only, of what takes longer than two seconds."""

from __future__ import annotations

import sys
import time
from types import TracebackType

_SILENT_S = 2.0
_EVERY_S = 0.1


class Progress:
    """Call it with how much is done and how much there is; one line is rewritten, and removed at the end."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._next = time.monotonic() + _SILENT_S
        self._shown = False

    def __call__(self, done: int, total: int) -> None:
        """Show it, where it is time."""
        now = time.monotonic()
        if now >= self._next and sys.stderr.isatty():
            sys.stderr.write(f"\r{done:,} of {total:,} {self._what}\x1b[K")
            sys.stderr.flush()
            self._next, self._shown = now + _EVERY_S, True

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
