"""Episodes to a stream, in the form that was asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TextIO

from rtdebug.oom.episode import OomEpisode
from rtdebug.render.oom_json import oom_json
from rtdebug.render.oom_page import oom_page
from rtdebug.render.oom_table import OomTable
from rtdebug.render.terminal import terminal_width

_PAGE_COLUMNS = 80
_WIDEST_PAGE = 120


def show_episodes(episodes: Iterable[OomEpisode], output: str, out: TextIO) -> int:
    """Write them, each as soon as it is known but for the table; say how many there were.

    `output`: table (a page, if there is only one), text (a page for each) or json (one object a line).
    """
    if output != "table":
        return _stream(episodes, output, out)
    table, only, count = OomTable(), None, 0
    try:
        for episode in episodes:
            table.add(episode)
            only, count = episode, count + 1
    finally:  # what came before an error is shown
        if count > 1:
            out.write(table.text())
        elif only is not None:
            _stream([only], "text", out)
    return count


def _stream(episodes: Iterable[OomEpisode], output: str, out: TextIO) -> int:
    count = 0
    for text in _pages(episodes, _width(out)) if output != "json" else map(oom_json, episodes):
        out.write(f"{text}\n")
        out.flush()
        count += 1
    return count


def _pages(episodes: Iterable[OomEpisode], width: int) -> Iterator[str]:
    for index, episode in enumerate(episodes):
        yield ("\n" if index else "") + oom_page(episode, width)


def _width(out: TextIO) -> int:
    return min(terminal_width(out) or _PAGE_COLUMNS, _WIDEST_PAGE)
