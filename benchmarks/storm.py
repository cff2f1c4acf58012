"""One process makes madvise calls as fast as it can, and each one is recorded."""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.calls import Caller, caller
from benchmarks.figure import Figure, Result, Samples
from benchmarks.tracers import rtdebug
from rtdebug.errors import RtdebugError
from rtdebug.tracing.chunks import Kind
from rtdebug.tracing.recording import Recording, Selection

ROUNDS = 5
CALLS = 3_000_000
_SETTLE_S = 0.1
"""Ten times the interval at which the ring is drained."""


def measure() -> Result:
    """Count the calls made, those in the file, those lost, and the CPU time of the tracing process."""
    with caller() as traced:
        rounds = [_storm(traced) for _ in range(ROUNDS)]
    drained, lost, missing, offered = (tuple(values) for values in zip(*rounds, strict=True))
    return Result(
        (
            Figure("storm: events lost", Samples("lost", lost), "events", 0),
            Figure("storm: calls made but not in the recording", Samples("missing", missing), "calls", 0),
            Figure("storm: events drained per CPU-second", Samples("drained", drained), "M/s", 2, at_least=True),
        ),
        (Samples("calls made by one core", offered),),
        "M/s",
    )


def _storm(traced: Caller) -> tuple[float, float, float, float]:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "storm.rtd"
        with rtdebug(traced.target, "--every-call", "--record", str(file)) as tracer:
            before_ns = tracer.cpu_ns()
            ns_per_call = traced.make("madvise", CALLS)
            time.sleep(_SETTLE_S)
            spent_ns = tracer.cpu_ns() - before_ns
        recorded, lost = _read(file)
    return recorded / spent_ns * 1e3, lost, CALLS - recorded, 1e3 / ns_per_call


def _read(file: Path) -> tuple[int, int]:
    """Return how many madvise calls the recording holds, and how many events it says were lost."""
    recording = Recording.open(file)
    madvise = Selection(frozenset({"madvise"}))
    chunks = (chunk for chunk in recording.chunks() if chunk.kind is Kind.CALLS)
    recorded = sum(len(recording.calls_of(chunk, madvise)) for chunk in chunks)
    if recording.end is None:
        raise RtdebugError(f"the recording of the storm is not whole: {recording.problem}")
    return recorded, sum(recording.end.lost.values())
