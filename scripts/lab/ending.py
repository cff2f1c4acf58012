"""How the lab's commands end: problems as one message, signals by way of the cleaning up."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable

from lab.problem import LabProblem


def ended(name: str, body: Callable[[], int]) -> int:
    """The exit status of `body`: its own, 3 for a LabProblem, which is told, 130 for Ctrl-C; 128 + n for a signal n."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    try:
        return body()
    except LabProblem as problem:
        print(f"{name}: {problem}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        print(f"{name}: interrupted; nothing of it is left", file=sys.stderr)
        return 130


def _end(number: int, _frame: object) -> None:
    """End by an exception, so that all is cleaned up; a second signal (as timeout(1) sends) does not stop that."""
    for each in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    raise SystemExit(128 + number)
