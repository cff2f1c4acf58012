"""Where a host keeps what rtdebug looks at; tests pass trees of their own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class HostRoots:
    """The folders under which processes and runtimes are found."""

    proc: Path = Path("/proc")
    run: Path = Path("/run")
    var_lib: Path = Path("/var/lib")
