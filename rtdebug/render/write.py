"""Write a file that somebody asked for: whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from rtdebug.errors import RtdebugError


def write_text(path: Path, text: str) -> None:
    """Write `text` beside `path` and rename it. Raises RtdebugError."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise RtdebugError(f"cannot write {path}: {error.strerror or error}", "give another name") from error
