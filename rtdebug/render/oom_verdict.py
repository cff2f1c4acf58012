"""A verdict in words: figures of the evidence put into its sentence by the endings of their names."""

from __future__ import annotations

from collections.abc import Mapping

from rtdebug.oom.verdict import Verdict
from rtdebug.render.units import UNKNOWN, format_bytes, format_share
from rtdebug.tracing.line import Value


def verdict_fields(verdict: Verdict) -> dict[str, Value]:
    """The JSON key `verdict`."""
    return {
        "kind": verdict.kind,
        "text": fill(verdict.text, verdict.evidence),
        "evidence": dict(verdict.evidence),
        "advice": verdict.advice,
        "notes": [
            {"kind": note.kind, "text": fill(note.text, note.evidence), "evidence": dict(note.evidence)}
            for note in verdict.notes
        ],
    }


def fill(text: str, evidence: Mapping[str, Value]) -> str:
    """The sentence with its figures. Not escaped: a comm is in it as it was."""
    return text.format_map({key: _figure(key, value) for key, value in evidence.items()})


def _figure(key: str, value: Value) -> str:
    match value:
        case None:
            return UNKNOWN
        case float() if key.endswith("share"):
            return format_share(value)
        case int() | float() if key.endswith("_bytes"):
            return format_bytes(value)
        case int():
            return f"{value:,}"
        case _:
            return str(value)
