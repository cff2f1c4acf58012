"""OOM kills in logs of any size: only the neighbourhood of lines that speak of one is read closely.

A log is searched in blocks for a few words that no dump of the kernel is without; the parser gets the lines from
a little before the first of them to a little after the last. Memory does not grow with the log.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter

from rtdebug.errors import RtdebugError
from rtdebug.oom.dressing import undress
from rtdebug.oom.kernel_log import OomLogReader
from rtdebug.oom.record import OomRecord
from rtdebug.oom.when import line_clock_ns

ANCHORS = (
    b"invoked oom-killer",
    b"oom_score_adj",  # the table's head since 2.6.36, the kill line since 5.1
    b"oom_kill_process",  # the stack, and what its rate limit suppressed
    b"oom-kill:constraint=",
    b"Killed process ",
    b"Memory cgroup stats",
    b"killed as a result of limit",
    b" and no killable process",
    b"oom_reaper: reaped",
    b"memory.oom.group",
)
"""Long words: the longer, the faster they are searched for."""

BLOCK_BYTES = 256 * 1024
"""Fits in a processor's cache, so that one pass for each word costs no more trips to the memory."""
_BEFORE_BYTES = 4096
"""What precedes the first anchor of a dump: the CPU line and the stack, SLUB's complaint, counters of v1."""
_AFTER_BYTES = 8192
"""As much without any word about an OOM ends the neighbourhood: foreign lines come in between."""
_LINE_AT_MOST = 64 * 1024
_ROW = re.compile(rb"\[ *\d+\] +\d+ +\d+ +\d+")
"""The task table, which may be far longer than that."""


def scan_log(blocks: Iterable[bytes]) -> Iterator[OomRecord]:
    """All OOM kills of one log, in the order they began; gives each as soon as it is over.

    An RtdebugError out of `blocks` comes through after the kills that were read before it.
    """
    reader = OomLogReader()
    problem: RtdebugError | None = None
    try:
        for _, numbered in groupby(oom_lines(blocks), key=itemgetter(0)):
            region = (raw.decode("utf-8", "surrogateescape") for _, raw in numbered)
            for line in undress(region):
                yield from reader.feed(line, line_clock_ns(line))
    except RtdebugError as error:
        problem = error
    yield from reader.flush()
    if problem is not None:
        raise problem


def oom_lines(blocks: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """The lines near an anchor, each with the number of its neighbourhood."""
    region = 0
    room = 0
    before = b""
    for data in _whole_lines(blocks):
        position = 0
        while position < len(data):
            if room <= 0:
                anchor = _first_anchor(data, position)
                if anchor < 0:
                    before = _last_lines(before + data[max(position, len(data) - _BEFORE_BYTES) :])
                    break
                start = max(position, data.rfind(b"\n", 0, max(0, anchor - _BEFORE_BYTES)) + 1)
                region += 1
                if start == position:
                    yield from ((region, line) for line in before.splitlines(keepends=True))
                before = b""
                position, room = start, anchor - start + _AFTER_BYTES
            end = data.index(b"\n", position) + 1
            line = data[position:end]
            position = end
            room = _AFTER_BYTES if _is_of_oom(line) else room - len(line)
            yield region, line[:_LINE_AT_MOST]


def _whole_lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes, each piece ending with a line; a line without end is cut."""
    rest = b""
    for block in blocks:
        data = rest + block
        end = data.rfind(b"\n") + 1
        if not end and len(data) > 4 * BLOCK_BYTES:
            yield data[:_LINE_AT_MOST] + b"\n"
            data = b""
        rest = data[end:]
        if end:
            yield data[:end]
    if rest:
        yield rest + b"\n"


def _first_anchor(data: bytes, start: int) -> int:
    found = -1
    for anchor in ANCHORS:
        at = data.find(anchor, start) if found < 0 else data.find(anchor, start, found + len(anchor))
        if at >= 0:
            found = at
    return found


def _is_of_oom(line: bytes) -> bool:
    return any(anchor in line for anchor in ANCHORS) or _ROW.search(line) is not None


def _last_lines(data: bytes) -> bytes:
    tail = data[-_BEFORE_BYTES:]
    return tail if len(tail) == len(data) else tail[tail.find(b"\n") + 1 :]
