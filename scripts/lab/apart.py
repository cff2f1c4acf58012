"""Commands in namespaces of their own: what they start and mount ends with them, and they end with us."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from lab.problem import LabProblem

_PR_SET_CHILD_SUBREAPER = 36


def run_apart(command: Sequence[str], timeout_s: float, namespaces: Sequence[str] = ("--mount", "--net")) -> int:
    """Exit status of a command that is the first process of a namespace of processes, and of other `namespaces`.

    However it ends, and however we end: the kernel ends all processes in there, and with them go their mounts.
    Raises LabProblem when it takes too long.
    """
    ends_with_us = ("setpriv", "--pdeathsig", "KILL", "nice")
    apart = ("unshare", *namespaces, "--pid", "--fork", "--kill-child", "--mount-proc")
    before = _children()
    _adopt(True)  # who loses its parent becomes our child: so we can wait for the last of them
    process = subprocess.Popen([*ends_with_us, *apart, *command], stdin=subprocess.DEVNULL)
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired as error:
        raise LabProblem(f"turned off after {timeout_s:g} s; --timeout gives it more") from error
    finally:
        process.kill()
        process.wait()
        while left := _children() - before:
            os.waitpid(left.pop(), 0)
        _adopt(False)


def _adopt(orphans: bool) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(orphans), 0, 0, 0)


def _children() -> set[int]:
    return {int(pid) for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()}
