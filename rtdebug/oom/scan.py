"""OOM kills in logs of any size: only the neighbourhood of lines that speak of one is read closely.

A log is searched in blocks for a few words that no dump of the kernel is without; the parser gets the lines from
a little before the first of them to a little after the last. Memory does not grow with the log.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter

from rtdebug.errors import RtdebugError
from rtdebug.oom.kernel_log import OomLogReader
from rtdebug.oom.record import OomRecord
from rtdebug.oom.undress import undress
from rtdebug.oom.when import line_clock_ns

ANCHORS = (
    b"invoked oom-killer: gfp",
    b"oom_score_adj",  # the table's head since 2.6.36, the kill line since 5.1
    b"Killed process ",
    b"Memory cgroup stats for",
    b"oom_reaper: reaped process ",
    b"oom-kill:constraint=CONSTRAINT_",  # all that is left by `dmesg | grep oom-kill`
)
"""No dump is without one of them. Long words: the longer, the faster they are searched for."""

BLOCK_BYTES = 96 * 1024
"""Fits in a processor's cache, so that one pass for each word costs no trips to the memory; and malloc() takes what is
below 128 KiB from its heap: larger ones it maps and unmaps each time, at a third of the whole cost."""
_BEFORE_BYTES = 4096
"""What precedes the first anchor of a dump without its head: the CPU line and the stack, counters of v1."""
_BEFORE_HEAD_BYTES = 1024
"""And what precedes the head: SysRq, SLUB's complaint, how many dumps were suppressed."""
_AFTER_BYTES = 8192
"""As much without any word about an OOM ends the neighbourhood: memory.stat is long, foreign lines come in between."""
_AFTER_KILL_BYTES = 1024
"""After the last line of a dump: only the rest of the group and the reaper follow."""
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
                near = _BEFORE_HEAD_BYTES if data.startswith(ANCHORS[0], anchor) else _BEFORE_BYTES
                start = max(position, data.rfind(b"\n", 0, max(0, anchor - near)) + 1)
                region += 1
                if start == position:
                    yield from ((region, line) for line in before.splitlines(keepends=True))
                before = b""
                position, room = start, anchor - start + _AFTER_BYTES
            end = data.index(b"\n", position) + 1
            line = data[position:end]
            position = end
            room = _room_after(line, room)
            yield region, line[:_LINE_AT_MOST]


def words_in_lines(blocks: Iterable[bytes], words: Sequence[bytes]) -> Iterator[bytes]:
    """The lines that hold one of `words`."""
    for data in _whole_lines(blocks):
        if any(word in data for word in words):
            yield from (line for line in data.splitlines() if any(word in line for word in words))


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


def _room_after(line: bytes, room: int) -> int:
    """How many bytes after this line still belong to the neighbourhood."""
    if b"Killed process" in line or b"oom_reaper" in line:
        return _AFTER_KILL_BYTES
    if b"oom" in line or b"cgroup stats" in line or b"limit" in line or _ROW.search(line):
        return _AFTER_BYTES
    return room - len(line)


def _last_lines(data: bytes) -> bytes:
    tail = data[-_BEFORE_BYTES:]
    return tail if len(tail) == len(data) else tail[tail.find(b"\n") + 1 :]
