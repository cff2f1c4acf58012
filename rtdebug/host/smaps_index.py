"""/proc/PID/smaps of processes with tens of thousands of mappings: what is resident of each, and entries on demand.

maps.py makes an object of every entry, which takes several times as long as the kernel needs to print them. Mostly a
few entries matter, and how much of each is resident tells which.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rtdebug.host.maps import PROC, MapsError, SmapsEntry, parse_smaps

_KEY = b"\nRss:"
_LAST_LINE = b"\nVmFlags:"
_CUT = "was the text cut, or is it another file?"


@dataclass(frozen=True, slots=True)
class SmapsIndex:
    """One smaps file, cut at the Rss of each entry."""

    pieces: list[bytes]
    rss_bytes: list[int]
    """By entry, in address order."""

    def __len__(self) -> int:
        return len(self.rss_bytes)

    def entry(self, index: int) -> SmapsEntry:
        """One entry as an object. Raises MapsError."""
        before, behind = self.pieces[index], self.pieces[index + 1]
        last = behind.find(_LAST_LINE)
        end = behind.find(b"\n", last + 1)
        text = before[_end_of_entry(before, index) :] + _KEY + behind[: end if end >= 0 else len(behind)]
        entries = parse_smaps(text.decode("utf-8", "surrogateescape"))
        if len(entries) != 1:
            raise MapsError("an entry of smaps has no Rss, or begins without a mapping", _CUT)
        return entries[0]


def parse_smaps_index(raw: bytes) -> SmapsIndex:
    """The text of /proc/PID/smaps with VmFlags (Linux 3.8). Raises MapsError. No path can forge a key: the kernel
    escapes newlines.
    """
    pieces = raw.split(_KEY)
    try:
        rss = [int(piece[: piece.index(b" kB")]) * 1024 for piece in pieces[1:]]
    except ValueError:
        raise MapsError("a line Rss of smaps has no number", _CUT) from None
    return SmapsIndex(pieces, rss)


def read_smaps_index(pid: int, proc: Path = PROC) -> SmapsIndex:
    """The entries of a process. Raises OSError (FileNotFoundError, ProcessLookupError: it has exited), MapsError."""
    return parse_smaps_index((proc / str(pid) / "smaps").read_bytes())


def _end_of_entry(piece: bytes, index: int) -> int:
    """Where the next entry begins in what stands before its Rss."""
    if index == 0:
        return 0
    last = piece.find(_LAST_LINE)
    end = piece.find(b"\n", last + 1) if last >= 0 else -1
    if end < 0:
        raise MapsError("an entry of smaps has no VmFlags", "this needs Linux 3.8 or newer")
    return end + 1
