"""The textfile mode: a file that the node exporter's textfile collector reads."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from rtdebug.errors import UsageProblem


def write_textfile(path: Path, content: bytes) -> None:
    """Replace `path` at once: whoever reads it sees the old or the new content. Raises UsageProblem, OSError."""
    try:
        fd, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise UsageProblem(
            f"--textfile {path}: cannot write there: {error.strerror}", "give a file in a folder that exists"
        ) from error
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), 0o644)  # the node exporter is another user
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
