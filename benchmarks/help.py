"""`rtdebug --help`."""

from __future__ import annotations

import subprocess
import sys
import time

from benchmarks.figure import Figure, Result, Samples, sampled
from benchmarks.tracers import ROOT, python_environment

ROUNDS = 15


def measure() -> Result:
    """Measure it as a user meets it: a new process each time."""
    (taken,) = sampled(ROUNDS, {"rtdebug --help": _seconds})
    return Result((Figure("rtdebug --help", Samples("least", (taken.least,)), "s", 0.2),), (taken,), "s")


def _seconds() -> float:
    started = time.perf_counter()
    command = [sys.executable, "-m", "rtdebug", "--help"]
    subprocess.run(command, cwd=ROOT, env=python_environment(), stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - started
