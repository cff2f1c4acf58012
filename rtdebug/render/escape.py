"""Text that came from a container, made safe for a terminal: one line, no control sequences.

Names, paths, comms, labels and command lines are bytes that a container chose. `decode` turns them into
str without loss; `escape` turns that str into what a person may see. Nothing else may reach a terminal.
"""

from __future__ import annotations

ELLIPSIS = "…"
_NAMED = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def decode(raw: bytes) -> str:
    """Text of a char[] of the kernel: up to its first NUL, as UTF-8.

    A byte that is not UTF-8 becomes a lone surrogate (PEP 383), so that the bytes can be had back with
    `text.encode("utf-8", "surrogateescape")`.
    """
    return raw.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def escape(text: str, limit: int | None = None) -> str:
    r"""`text` on one line, safe for a terminal, at most `limit` columns wide (then it ends with "…").

    Printable Unicode stays. Controls, line separators, bidi overrides and other format characters,
    unassigned characters and lone surrogates become visible: `\n`, `\x1b`, `\u202e`; a byte that was not
    UTF-8 becomes `\xNN`. A backslash stays as it is, so `escape(escape(x)) == escape(x)`; JSON output is
    the form without loss.
    """
    if text.isprintable():
        if limit is None or display_width(text) <= limit:
            return text
        return _cut(list(text), limit)
    parts = [character if character.isprintable() else _visible(character) for character in text]
    return "".join(parts) if limit is None else _cut(parts, limit)


def display_width(text: str) -> int:
    """Columns that printable `text` takes on a terminal: East Asian wide 2, combining marks 0."""
    return len(text) if text.isascii() else sum(map(_character_width, text))


def _visible(character: str) -> str:
    code = ord(character)
    if character in _NAMED:
        return _NAMED[character]
    if 0xDC80 <= code <= 0xDCFF:  # one byte that was not UTF-8, see decode()
        return rf"\x{code - 0xDC00:02x}"
    if code < 0x80:
        return rf"\x{code:02x}"
    return rf"\u{code:04x}" if code <= 0xFFFF else rf"\U{code:08x}"


def _character_width(character: str) -> int:
    import unicodedata  # a shared object of its own; most text is ASCII

    if unicodedata.category(character) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def _cut(parts: list[str], limit: int) -> str:
    """As many whole parts as fit: an escape form is never cut in its middle."""
    widths = [display_width(part) for part in parts]
    if sum(widths) <= limit:
        return "".join(parts)
    kept: list[str] = []
    room = limit - 1
    for part, width in zip(parts, widths, strict=True):
        room -= width
        if room < 0:
            break
        kept.append(part)
    return "".join(kept) + ELLIPSIS if limit > 0 else ""
