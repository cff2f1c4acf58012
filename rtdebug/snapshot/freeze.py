"""The cgroup freezer: a container held still for as long as it is read, and thawed whatever happens.

Sources: Documentation/admin-guide/cgroup-v1/freezer-subsystem.rst, cgroup-v2.rst ("cgroup.freeze", Linux 5.2).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rtdebug.errors import HostUnable, RtdebugError
from rtdebug.host.cgroup import pids_of
from rtdebug.host.controllers import controller_folder
from rtdebug.host.text import read_text
from rtdebug.host.watchdog import Watchdog

LONGEST_S = 30.0
"""After so long the watchdog thaws, even if the snapshot has not come to its end."""
_FREEZES_WITHIN_S = 2.0
_POLL_S = 0.002


@dataclass(frozen=True, slots=True)
class Freezer:
    """The freezer of one cgroup."""

    folder: Path
    version: int

    @property
    def _file(self) -> Path:
        return self.folder / ("cgroup.freeze" if self.version == 2 else "freezer.state")

    def is_asked(self) -> bool:
        """Whether somebody has frozen it, or is about to: `runc pause`, for one."""
        return (read_text(self._file) or "").strip() in ("1", "FROZEN", "FREEZING")

    def is_frozen(self) -> bool:
        """Whether all of its processes stand still."""
        if self.version == 1:
            return (read_text(self._file) or "").strip() == "FROZEN"
        return "frozen 1" in (read_text(self.folder / "cgroup.events") or "").splitlines()

    def freeze(self) -> None:
        """Ask for it; it takes effect a little later. Raises OSError."""
        self._file.write_text("1" if self.version == 2 else "FROZEN")

    def thaw(self) -> None:
        """Let them run. A cgroup that has vanished is no error."""
        with contextlib.suppress(FileNotFoundError, OSError):
            self._file.write_text("0" if self.version == 2 else "THAWED")


def find_freezer(pid: int, cgroup: str, proc: Path = Path("/proc")) -> Freezer:
    """The freezer of the container whose init is `pid` and whose memory cgroup is `cgroup`.

    Raises HostUnable where there is none; RtdebugError for a cgroup that others are in too: the root, or that
    of rtdebug itself.
    """
    found = controller_folder(pid, "freezer", proc)
    version = 1 if found is not None and (found / "freezer.state").exists() else 2
    if found is None or (version == 2 and not (found / "cgroup.freeze").exists()):
        raise HostUnable(
            "--freeze: this container is in no cgroup with a freezer",
            "it needs the v1 freezer hierarchy, or cgroup v2 and Linux 5.2; without --freeze all else works",
        )
    folder = _above(found, cgroup)
    if os.getpid() in pids_of(folder):
        raise RtdebugError(
            "--freeze: rtdebug runs in the cgroup that would be frozen", "run it from outside, or without --freeze"
        )
    return Freezer(folder, version)


@contextlib.contextmanager
def frozen(freezer: Freezer) -> Iterator[None]:
    """Hold a container still; whether all of it stands still, is_frozen() tells. One that was paused stays paused.

    It is thawed when this process ends, however it ends, and after LONGEST_S.
    """
    if freezer.is_asked():
        yield
        return
    with Watchdog(freezer.thaw, LONGEST_S):
        try:
            _freeze(freezer)
            yield
        finally:
            freezer.thaw()  # by ourselves too: somebody may have killed the watchdog


def _freeze(freezer: Freezer) -> None:
    """A task in an uninterruptible wait cannot be frozen: then we read it as it is."""
    try:
        freezer.freeze()
    except OSError as error:
        raise RtdebugError(f"--freeze: the kernel refused: {error.strerror}", "run it without --freeze") from None
    deadline = time.monotonic() + _FREEZES_WITHIN_S
    while not freezer.is_frozen() and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def _above(folder: Path, cgroup: str) -> Path:
    """The folder of the container, where its init has moved below it: the one whose path ends like its cgroup's.

    Raises RtdebugError for what would freeze more than the container.
    """
    ending = cgroup.strip("/")
    for path in (folder, *folder.parents):
        if ending and path.as_posix().endswith(f"/{ending}"):
            return path
    if (folder / "cgroup.procs").exists() and (folder.parent / "cgroup.procs").exists():
        return folder
    raise RtdebugError(
        "--freeze: this target has no cgroup of its own",
        "all processes of the host would stop; run it without --freeze",
    )
