"""OOM episodes as JSON lines."""

from __future__ import annotations

from rtdebug.oom.episode import OomEpisode
from rtdebug.oom.schema import episode_fields
from rtdebug.render.jsonl import encode_object
from rtdebug.render.oom_verdict import verdict_fields
from rtdebug.tracing.line import Value


def oom_fields(episode: OomEpisode) -> dict[str, Value]:
    """All keys of docs/oom.md."""
    return {**episode_fields(episode), "verdict": verdict_fields(episode.verdict)}


def oom_json(episode: OomEpisode) -> str:
    """One object on one line, without the newline."""
    return encode_object(oom_fields(episode))
