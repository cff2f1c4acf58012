"""What to change, in the words of who runs the container. A remedy begins with whose it is: `docker run`, `pod`, ..."""

from __future__ import annotations

from collections.abc import Sequence

from rtdebug.containers.model import Container

_DOCKER = ("docker run", "compose")
_KUBERNETES = ("pod",)


def remedies_for(container: Container | None, remedies: Sequence[str]) -> tuple[str, ...]:
    """Without those of other runtimes, as long as one of its own is there; what is for everybody stays."""
    own = _tools(container)
    if own and any(text.startswith(own) for text in remedies):
        others = tuple(tool for tool in (*_DOCKER, *_KUBERNETES) if tool not in own)
        remedies = [text for text in remedies if not text.startswith(others)]
    is_podman = container is not None and container.runtime == "podman"
    return tuple(_of_podman(text) if is_podman else text for text in remedies)


def _tools(container: Container | None) -> tuple[str, ...]:
    """Empty: nobody knows, or no tool of which remedies speak."""
    if container is None:
        return ()
    if container.runtime != "podman" and (container.pod or container.namespace == "k8s.io"):
        return _KUBERNETES
    return _DOCKER if container.runtime in ("docker", "podman") else ()


def _of_podman(text: str) -> str:
    """It takes docker's options."""
    return f"podman run{text.removeprefix('docker run')}" if text.startswith("docker run") else text
