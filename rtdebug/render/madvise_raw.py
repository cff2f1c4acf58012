"""Every run of a madvise experiment, for pandas."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rtdebug.errors import RtdebugError, UsageProblem
from rtdebug.madvise.conduct import Outcome

if TYPE_CHECKING:
    import pandas as pd

_FORMS = (".parquet", ".json", ".jsonl")


def check_raw(path: Path | None) -> None:
    """Raise UsageProblem for a form that there is not, or a place where nothing can be: before the experiment."""
    check_file("--raw", path, _FORMS)


def check_file(option: str, path: Path | None, forms: Sequence[str]) -> None:
    """Raise UsageProblem for an ending that is none of `forms`, or a folder that is none or not to be written in."""
    if path is None:
        return
    if path.suffix not in forms:
        raise UsageProblem(f"{option}: no form '{path.suffix}'", f"allowed: {', '.join(forms)}")
    if not path.parent.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageProblem(f"{option}: {path} cannot be written", "give a place where you may write")


def run_frame(outcome: Outcome) -> pd.DataFrame:
    """One row a run, warm-up included. Columns are the fields of a run; the two of counters have their differences
    as `stat_NAME` and `vmstat_NAME`. Whole numbers are nullable integers.
    """
    import pandas as pd

    rows = []
    for run in outcome.runs:
        row = asdict(run)
        for name in ("stat", "vmstat"):
            row |= {f"{name}_{key}": value for key, value in row.pop(name).items()}
        rows.append(row)
    return pd.DataFrame(rows).convert_dtypes()


def write_raw(path: Path, outcome: Outcome) -> None:
    """Write them. Raises RtdebugError."""
    frame = run_frame(outcome)
    try:
        match path.suffix:
            case ".parquet":
                frame.to_parquet(path)
            case ".json":
                frame.to_json(path, orient="records")
            case _:
                frame.to_json(path, orient="records", lines=True)
    except OSError as error:
        why = error.strerror or error
        raise RtdebugError(f"cannot write {path}: {why}", "give a place where you may write") from error
