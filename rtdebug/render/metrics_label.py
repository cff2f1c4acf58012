"""Labels of metrics: text of containers made harmless and short, and different for different containers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b

from rtdebug.containers.model import Container
from rtdebug.render.escape import escape

WHO = ("container", "container_id", "namespace", "pod")
"""Labels of everything that belongs to a container."""
_LONGEST = 240
"""Paths of cgroups of pods have up to 200 characters."""
_SHORT_ID = 12


def harmless(text: str) -> str:
    """What a container chose, for a label: safe on a terminal too, at most 256 characters, cut ones still different."""
    shown = escape(text)
    if len(shown) <= _LONGEST:
        return shown
    digest = blake2b(shown.encode("utf-8", "backslashreplace"), digest_size=6).hexdigest()
    return f"{shown[:_LONGEST]}...{digest}"


@lru_cache(maxsize=65536)
def label_text(names: Sequence[str], values: Sequence[str]) -> str:
    """`name="value",...` without the empty ones, which Prometheus takes for absent."""
    return ",".join(f'{name}="{_quoted(value)}"' for name, value in zip(names, values, strict=True) if value)


class Labels:
    """Labels of containers, as text: the same for the same one, different for different ones, whatever their names."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str | None], str] = {}
        self._taken: set[str] = set()

    def of(self, container: Container | None) -> str:
        """Text of WHO; empty for processes in no container."""
        if container is None:
            return ""
        key = container.id, container.cgroup
        if key not in self._known:
            self._known[key] = self._make(container)
        return self._known[key]

    def _make(self, container: Container) -> str:
        short = _short(container.id)
        text = _who(container, short)
        if text in self._taken:  # ids of containerd are unique in a namespace only; nested names are anybody's
            text = _who(container, f"{short} {container.cgroup}")
        number = 2
        while text in self._taken:
            text, number = _who(container, f"{short} #{number}"), number + 1
        self._taken.add(text)
        return text


def _who(container: Container, shown_id: str) -> str:
    namespace = container.namespace if container.pod is not None else None
    texts = (container.name or _short(container.id), shown_id, namespace or "", container.pod or "")
    return label_text(WHO, tuple(map(harmless, texts)))


def _short(container_id: str) -> str:
    """As docker and crictl show it; ids that are no hashes stay whole."""
    is_hash = len(container_id) >= 32 and all(character in "0123456789abcdef" for character in container_id)
    return container_id[:_SHORT_ID] if is_hash else container_id


def _quoted(text: str) -> str:
    """Values are escaped as prometheus.io/docs/instrumenting/exposition_formats says; harmless() left no newline."""
    return text.replace("\\", "\\\\").replace('"', '\\"')
