"""What a mistyped name was meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(text: str, names: Iterable[str]) -> str:
    """`, did you mean 'oom_kill'?`, or nothing if none of `names` is near to `text`."""
    close = difflib.get_close_matches(text.strip().lower().replace("-", "_"), list(names), n=1, cutoff=0.5)
    return f", did you mean '{close[0]}'?" if close else ""
