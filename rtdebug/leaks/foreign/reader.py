"""What people already have, as series: CSV, logs of `docker stats`, range exports of Prometheus.

The form is found by looking, not by the name of the file. What the file does not say (units, times) is asked for, never
guessed.
"""

from __future__ import annotations

import re
from pathlib import Path

from rtdebug.errors import RtdebugError, UsageProblem
from rtdebug.leaks.foreign.hints import Hints
from rtdebug.leaks.series import Series

_LARGEST = 4 << 30
_HEAD = 65536


def read_foreign(path: Path, hints: Hints) -> list[Series]:
    """Read one file. Raises UsageProblem when it is of no known form or something must be said, RtdebugError when it
    cannot be read.
    """
    from rtdebug.leaks.foreign import csv, prometheus, records, tool_logs

    try:
        if path.stat().st_size > _LARGEST:
            raise UsageProblem(f"{path} is larger than 4 GiB", "split it, or use `rtdebug leaks record`")
        text = _decoded(path.read_bytes())
    except OSError as error:
        raise RtdebugError(f"cannot read {path}: {error.strerror}") from error
    head = text[:_HEAD]
    if not head.strip():
        raise UsageProblem(f"{path} is empty", "give a CSV, a log of `docker stats` or a range export of Prometheus")
    if tool_logs.is_table(head) or tool_logs.is_json_lines(head):
        return tool_logs.parse(text, path.name, hints)
    if re.match(r"\s*(?:\{|\[\s*[\[{\]])", head):
        try:
            found = records.documents(text)
        except (ValueError, RecursionError) as error:
            raise RtdebugError(
                f"{path} is no whole JSON document: {error}", "it may be cut short: export it again"
            ) from error
        document = records.rows_in(found[0]) if len(found) == 1 else found
        if isinstance(document, list) and records.is_table(document):
            return csv.parse(records.as_csv(document), path.name, hints)
        return prometheus.parse(document, path.name, hints)
    return csv.parse(text, path.name, hints)


def _decoded(content: bytes) -> str:
    """What PowerShell writes with `>` is UTF-16, by its mark; all else is UTF-8."""
    utf16 = content.startswith((b"\xff\xfe", b"\xfe\xff"))
    return content.decode("utf-16" if utf16 else "utf-8-sig", "replace")
