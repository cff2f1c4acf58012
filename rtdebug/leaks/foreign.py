"""What people already have, as series: CSV, logs of `docker stats`, range exports of Prometheus.

The form is found by looking, not by the name of the file. What the file does not say (units, times) is asked for, never
guessed.
"""

from __future__ import annotations

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
    from rtdebug.leaks import csv, prometheus, records, tool_logs

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
_OF_FILES = re.compile(
    r"container|mem(?:ory)?|total|bytes?|[kmg]i?b|[kmgb]|in|of|size|usage|used|active|inactive|mapped|page|files?|cached?|"
    r"buff(?:er|ers|ered)?|and|stats?"
)
_NO_MEMORY = re.compile(
    r"cpu|net|network|rx|tx|recv|received|sent|transmit|blk|block|blkio|io|disk|fs|storage|read|reads|write|writes|"
    r"pids?|ppid|tid|threads?|fds?|ports?|load|requests?|latency|duration|count|counts|counter|fault|faults|failcnt|"
    r"pgfault|pgmajfault|minflt|majflt|seconds|gpu|temperature|temp|uptime"
)
_NOT_HELD = re.compile(r"vsz|vms|vmsize|virt|virtual|peak|hwm|vmhwm|vmpeak|max|maximum|watermark|free|avail|available")
_MEMORY = re.compile(
    r"mem|memory|rss|vmrss|res|resident|pss|uss|ram|heap\w*|usage|used|workingset|working|anon|shm|shmem|external"
)


def kind_in_name(name: str) -> str:
    """Return the kind of memory that a column or metric is about, by its name; `usage` if it names none.

    `file` only where it says nothing else: a column can be named after its container, and page cache never leaks.
    """
    kind = next((kind for kind, pattern in _KINDS if re.search(pattern, name.lower())), "usage")
    return "usage" if kind == "file" and not all(map(_OF_FILES.fullmatch, words_in(name))) else kind


def names_memory(name: str) -> bool | None:
    """Whether a column or metric is of memory that is held, by its name; None: the name does not say.

    Not held are address space, high-water marks and what is free: they grow where nothing leaks.
    """
    words = words_in(name)
    if any(_NO_MEMORY.fullmatch(word) or _NOT_HELD.fullmatch(word) for word in words):
        return False
    return True if any(_MEMORY.fullmatch(word) for word in words) else None


def names_limit(name: str) -> bool:
    """Whether a column is a limit: `mem_limit`, not `rate-limiter`."""
    return not {"limit", "limits"}.isdisjoint(words_in(name))


def words_in(name: str) -> list[str]:
    """Words in small letters: of `rssMB`, `RSS (MB)`, `heapUsed`, `mem_rss`."""
    return re.findall(r"[a-z]+|%", re.sub(r"(?<=[a-z])(?<![KMGT]i)(?=[A-Z])", " ", name).lower())
