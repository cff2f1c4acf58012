"""What the user must say of files that do not say it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hints:
    """What the user says of a file that does not say it itself."""

    unit: str | None = None
    """Of numbers without unit: bytes, KiB, MiB, ..., or percent."""
    interval_s: float | None = None
    """Between samples without times."""
