"""Finding: one answer to "why did (or will) it run out of memory, and what do I change"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from rtdebug.tracing.line import Value

Evidence = Mapping[str, Value]
"""Figures by name; the ending is the unit, and None is not known."""


class Severity(StrEnum):
    """In this order they are shown."""

    CRITICAL = "critical"
    """It has failed, or fails now."""
    WARNING = "warning"
    """It will."""
    NOTE = "note"
    """It may, or makes the others harder to see."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a rule found. There is none without evidence."""

    rule: str
    severity: Severity
    cause: str
    """One sentence; `{names}` stand for figures of the evidence."""
    evidence: Evidence
    change: tuple[str, ...]
    """What to do, each with its tool before a colon: `docker run`, `compose`, `pod`, `host`, `rtdebug`."""
