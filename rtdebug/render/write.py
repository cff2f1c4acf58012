"""Write a file that somebody asked for: whole or not at all."""

from __future__ import annotations

from pathlib import Path

from rtdebug.host.placing import placed_file


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path`, in place of a file that is there. Raises RtdebugError, UsageProblem: no file is there."""
    with placed_file(path, replace=True, mode=0o666) as file:
        file.write(text.encode())
