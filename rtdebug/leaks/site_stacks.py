"""The stack of an allocation site as text: the same after a restart, so that sites can be compared."""

from __future__ import annotations

from pathlib import Path

from rtdebug.host.maps import PROC
from rtdebug.host.process import read_ids
from rtdebug.host.text import valid_utf8
from rtdebug.leaks.site_maps import UNPAIRED, SiteKey, SiteMaps, SiteTotals
from rtdebug.tracing.symbols import Frame, Symbolizer

MAX_FRAMES = 32
MAX_FRAME_CHARACTERS = 256
_UNKNOWN = "[unknown]"


class SiteStacks:
    """Names the stacks of sites, each once."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._symbolizer = Symbolizer(proc)
        self._texts: dict[SiteKey, str] = {}

    def text(self, key: SiteKey, totals: SiteTotals, maps: SiteMaps) -> str:
        """A line for each frame, the innermost first. Not escaped, but valid UTF-8; at most MAX_FRAMES lines."""
        if key not in self._texts:
            frames = self._frames(key, totals, maps)
            while len(frames) > 1 and frames[-1].module is None:  # where the frame pointers lead nowhere
                frames.pop()
            self._texts[key] = "\n".join(map(_line, frames[:MAX_FRAMES])) or _UNKNOWN
        return self._texts[key]

    def knows(self, key: SiteKey) -> bool:
        """Whether text() would be quick."""
        return key in self._texts or key.stack_id == UNPAIRED

    def forget(self, key: SiteKey) -> None:
        """Let go of a site that will not come again."""
        self._texts.pop(key, None)

    def _frames(self, key: SiteKey, totals: SiteTotals, maps: SiteMaps) -> list[Frame]:
        ids = read_ids(key.pid, self._proc)
        ns_pid = ids.ns_pid if ids else None
        addresses = maps.stack(key.stack_id)
        if not addresses:
            return self._symbolizer.symbolize(key.pid, ns_pid, [key.caller])
        words = (key.caller,) if key.kind == "malloc" else totals.top
        return self._symbolizer.symbolize_call(key.pid, ns_pid, addresses, words)


def _line(frame: Frame) -> str:
    """Without the address of what lies nowhere: it differs from start to start."""
    text = _UNKNOWN if frame.module is None else str(frame)
    return valid_utf8(text.replace("\n", "\\n"))[:MAX_FRAME_CHARACTERS]
