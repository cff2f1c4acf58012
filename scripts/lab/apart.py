"""Commands in namespaces of their own: what they mount is gone with them, and they end with us."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from lab.problem import LabProblem

MOUNTS = ("--mount",)
"""Namespaces: mounts of its own."""
EVERYTHING = ("--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
"""And a network, and processes that the kernel ends with the first one."""
_PR_SET_CHILD_SUBREAPER = 36


def run_apart(command: Sequence[str], timeout_s: float, namespaces: Sequence[str]) -> int:
    """Exit status of a command in new namespaces. However it ends, what it started is ended, and waited for.

    Raises LabProblem when it takes too long.
    """
    ends_with_us = ("setpriv", "--pdeathsig", "KILL", "nice")
    before = _children()
    _adopt(True)  # who loses its parent becomes our child: so we can end and await the last of them
    process = subprocess.Popen([*ends_with_us, "unshare", *namespaces, *command], stdin=subprocess.DEVNULL)
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired as error:
        raise LabProblem(f"turned off after {timeout_s:g} s; --timeout gives it more") from error
    finally:
        process.kill()
        process.wait()
        while left := _children() - before:
            for pid in left:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        _adopt(False)


def _adopt(orphans: bool) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(orphans), 0, 0, 0)


def _children() -> set[int]:
    return {int(pid) for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()}
