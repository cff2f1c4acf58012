"""The processes of a target."""

from __future__ import annotations

from pathlib import Path

from rtdebug.containers.model import Container
from rtdebug.errors import NotRunning
from rtdebug.tracing.scope import make_scope, pids_in


def members(container: Container, proc: Path = Path("/proc")) -> list[int]:
    """Its processes now; of `cgroup:/` all of the host's. Raises NotRunning if there is none."""
    scope = make_scope(None if container.cgroup == "/" == container.id else container, proc)
    found = sorted(pids_in(scope, proc))
    if not found:
        raise NotRunning(f"{container.name or container.id!r} has no process", "`rtdebug ps` lists what runs now")
    return found
