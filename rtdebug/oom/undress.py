r"""The kernel's messages in a log as people paste it: wrapped lines joined, `#012` and literal `\n` undone.

One line by itself: `dressing`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from rtdebug.oom.dressing import ELLIPSES, LogLine, strip_dressing

_WRAP_COLUMNS = 79
"""A terminal does not wrap a shorter line."""
_RECORD_AT_MOST = 32 * 1024
"""Mem-Info of many nodes is the longest; what goes on for longer is something else."""
_UNFINISHED = re.compile(r"Task in \S+|\s*(?:Task in \S+ )?killed as a result of limit of|Memory cgroup stats for")
_GOES_ON = re.compile(r"\s*(?:killed as a result of limit of|/)")
_QUOTED = re.compile(r"(?:> ?)+(?:: )?|: ")
_MAIL_COLUMNS = 70
"""Mailers fill a line up to 72 columns or more: a shorter one ended there by itself."""
_NEWLINE = re.compile(r"#012|\\n")
_COLOUR = re.compile(r"\x1b\[[\d;]*m")
_JSON_LINES_AT_MOST = 200


def undress(lines: Iterable[str]) -> Iterator[LogLine]:
    """The messages of a log as people paste it.

    A line without dressing after one with it belongs to that one: indented it is a further line of the same
    record, else the terminal or the mailer wrapped it. A line that is only "..." comes through: a part is missing.
    Some kernels print the path of a cgroup as a record of its own: these are joined.
    """
    begun: LogLine | None = None
    for line in _records(lines):
        if begun is not None and _GOES_ON.match(line.message):
            line = replace(begun, message=f"{begun.message} {line.message.lstrip()}")
        elif begun is not None:
            yield begun
        begun = line if _is_unfinished(line.message) else None
        if begun is None:
            yield line
    if begun is not None:
        yield begun


def _is_unfinished(message: str) -> bool:
    might = message.endswith(("limit of", "stats for")) or message.startswith("Task in")
    return might and _UNFINISHED.fullmatch(message) is not None


def _records(lines: Iterable[str]) -> Iterator[LogLine]:
    pending: LogLine | None = None
    before = ""
    for text, is_quoted in _unfold(lines):
        line = strip_dressing(text)
        joined = None
        goes_on = not line.dressed and text.strip() not in ("", *ELLIPSES)
        if pending is not None and goes_on and len(pending.message) < _RECORD_AT_MOST:
            joined = _join(pending, text, _glue(before, text, is_quoted))
        before = text
        if joined is not None:
            pending = joined
            continue
        if pending is not None:
            yield pending
        is_flowed = is_quoted and text.endswith(" ") and len(text) < _WRAP_COLUMNS
        if not line.dressed:
            line = replace(line, message=line.message.strip())
        pending = line if line.dressed or is_flowed else None
        if pending is None and text.strip():
            yield line
    if pending is not None:
        yield pending


def _join(line: LogLine, text: str, glue: str | None) -> LogLine | None:
    if text[0].isspace():
        message = line.message.rstrip().removesuffix("\\")
        between = "" if message.endswith(",") else "\n"  # no record of the kernel has a line that ends so
        return replace(line, message=f"{message}{between}{text.strip()}")
    if glue is None:
        return None
    whole = f"{line.message.rstrip(glue)}{glue}{text}".lstrip(glue) if glue else line.message + text
    return replace(line, message=whole)


def _glue(before: str, text: str, is_quoted: bool) -> str | None:
    """What was between two parts of a line that was wrapped; None: it was not."""
    if before.endswith(" ") and len(before) < _WRAP_COLUMNS:
        return " "  # by a mailer (format=flowed)
    if is_quoted:  # others break at a blank, and it is gone
        word = len(text.split(" ", 1)[0])
        return " " if len(before) + 1 + word > _MAIL_COLUMNS else None
    return "" if len(before) >= _WRAP_COLUMNS and not before.endswith(":") else None  # a list follows


def _objects(lines: Iterable[str]) -> Iterator[str]:
    """Physical lines, each JSON object over many of them (`-o json-pretty`) as one."""
    gathered: list[str] = []
    for raw in lines:
        text = raw.rstrip("\r\n")
        if not gathered and text != "{":
            yield text
            continue
        gathered.append(text)
        if text in ("}", "},"):
            yield " ".join(gathered).rstrip(",")
            gathered = []
        elif len(gathered) > _JSON_LINES_AT_MOST:
            yield from gathered
            gathered = []
    yield from gathered


def _unfold(lines: Iterable[str]) -> Iterator[tuple[str, bool]]:
    r"""Physical lines, with `#012` and literal `\n` undone, and whether they were quoted in a mail."""
    for text in _objects(lines):
        if text.startswith("\x1b[") or text.endswith("\x1b[0m"):
            text = _COLOUR.sub("", text)
        is_quoted = text.startswith((">", ": "))
        if is_quoted:
            text = _QUOTED.sub("", text, count=1)
        if text.startswith("{") or ("#012" not in text and "\\n" not in text):
            yield text, is_quoted
            continue
        first, *more = _NEWLINE.split(text)
        if any(strip_dressing(part).dressed for part in more):
            yield from ((part, is_quoted) for part in (first, *more))  # a whole log in one string
        else:
            yield "\n".join((first, *more)), is_quoted
