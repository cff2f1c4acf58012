"""Programs that the lab calls for what they print."""

from __future__ import annotations

import subprocess
from pathlib import Path

from lab.problem import LabProblem

_LAST_CHARACTERS = 2000


def call(*command: str | Path, cwd: Path | None = None) -> str:
    """Standard output. Raises LabProblem with the end of what it said when it fails, or is not there."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=cwd)
    except FileNotFoundError as error:
        raise LabProblem(f"{words[0]} is not installed") from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-_LAST_CHARACTERS:]
        raise LabProblem(f"{' '.join(words)[:300]} fails: {said}")
    return done.stdout
