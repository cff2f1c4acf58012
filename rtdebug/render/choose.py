"""The renderer of event lines for `-o table` and `-o json`, on standard output."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rtdebug.render.jsonl import JsonRenderer
    from rtdebug.render.table import TableRenderer


def line_renderer(output: str, show_container: bool) -> TableRenderer | JsonRenderer:
    """Return the renderer; `show_container` gives the table a column for it."""
    if output == "json":
        from rtdebug.render.jsonl import JsonRenderer

        return JsonRenderer(sys.stdout.buffer)
    from rtdebug.render.oom import render_oom
    from rtdebug.render.table import Columns, TableRenderer
    from rtdebug.render.terminal import terminal_width, use_colour

    columns = Columns(show_container, terminal_width(sys.stdout), use_colour(sys.stdout, os.environ))
    return TableRenderer(sys.stdout, columns, {"oom_kill": render_oom})
