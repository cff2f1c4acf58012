"""What people already have, as series: CSV, logs of `docker stats`, range exports of Prometheus.

The form is found by looking, not by the name of the file. What the file does not say (units, times) is asked for, never
guessed.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from rtdebug.errors import RtdebugError, UsageProblem
from rtdebug.leaks.series import Series

_LARGEST = 4 << 30
_HEAD = 65536


@dataclass(frozen=True, slots=True)
class Hints:
    """What the user says of a file that does not say it itself."""

    unit: str | None = None
    """Of numbers without unit: bytes, KiB, MiB, ..., or percent."""
    interval_s: float | None = None
    """Between samples without times."""


def read_foreign(path: Path, hints: Hints) -> list[Series]:
    """Read one file. Raises UsageProblem when it is of no known form or something must be said, RtdebugError when it
    cannot be read.
    """
    from rtdebug.leaks import csv, docker_stats, prometheus

    try:
        if path.stat().st_size > _LARGEST:
            raise UsageProblem(f"{path} is larger than 4 GiB", "split it, or use `rtdebug leaks record`")
        text = path.read_bytes().decode("utf-8-sig", "replace")
    except OSError as error:
        raise RtdebugError(f"cannot read {path}: {error.strerror}") from error
    head = text[:_HEAD]
    if not head.strip():
        raise UsageProblem(f"{path} is empty", "give a CSV, a log of `docker stats` or a range export of Prometheus")
    if docker_stats.is_table(head) or docker_stats.is_json_lines(head):
        return docker_stats.parse(text, path.name, hints)
    if head.lstrip()[0] in "{[":
        try:
            return prometheus.parse(json.loads(text), path.name)
        except ValueError as error:
            raise RtdebugError(
                f"{path} is no whole JSON document: {error}", "it may be cut short: export it again"
            ) from error
    return csv.parse(text, path.name, hints)


_KINDS = (
    ("shmem", r"shm|tmpfs"),
    ("file", r"cache|file|mapped"),
    ("slab", r"slab"),
    ("swap", r"swap"),
    ("anon", r"rss|anon|heap"),
    ("sock", r"sock"),
    ("kernel_stack", r"kernel.?stack"),
    ("page_tables", r"page.?tables?"),
)


def kind_in_name(name: str) -> str:
    """Return the kind of memory that a column or metric is about, by its name; `usage` if it names none."""
    return next((kind for kind, pattern in _KINDS if re.search(pattern, name.lower())), "usage")
