"""Sizes as people write them."""

from __future__ import annotations

import re

_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_TOO_LARGE = 2**63


def parse_bytes(text: str) -> int:
    """Bytes from 65536, 64k, 64KiB, 1.5M, 2 GiB; units are powers of 1024. Raises ValueError, to be read by people."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([kmgt]?)(?:i?b)?", text.strip().lower(), re.ASCII)
    if not match:
        raise ValueError(f"'{text}' is no size: give bytes, or a number with k, M, G or T")
    count = float(match[1]) * _UNITS[match[2]]
    if count >= _TOO_LARGE:
        raise ValueError(f"'{text}' is more than any machine has")
    return int(count)
