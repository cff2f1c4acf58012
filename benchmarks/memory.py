"""Resident memory of the tracing process: while it waits, and after a million recorded calls."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.calls import Caller, caller
from benchmarks.figure import Figure, Result, Samples, ratio, sampled
from benchmarks.probes import bpftrace_same_events, full_headers
from benchmarks.tracers import Tracer, bpftrace, rtdebug, stock_bcc

ROUNDS = 3
CALLS = 1_000_000
_MB = 1_000_000


def measure() -> Result:
    """Rss counts what is shared with other processes, and the kernel's ring where it is mapped; Pss its part of it."""
    with caller() as traced, full_headers() as (headers, arguments), TemporaryDirectory() as folder:
        record = ("--every-call", "--record", str(Path(folder) / "calls.rtd"), "--force")
        taken = sampled(
            ROUNDS,
            {
                "rtdebug": lambda: _megabytes(rtdebug(traced.target), traced),
                "rtdebug, Pss": lambda: _megabytes(rtdebug(traced.target), traced, "Pss"),
                "rtdebug --every-call --record": lambda: _megabytes(rtdebug(traced.target, *record), traced),
                "bpftrace, same events": lambda: _megabytes(bpftrace(bpftrace_same_events()), traced),
                "bcc": lambda: _megabytes(stock_bcc(arguments, headers), traced),
            },
        )
    added_up, _, recorded, of_bpftrace, of_bcc = taken
    largest = Samples("rtdebug", tuple(map(max, added_up.values, recorded.values)))
    return Result(
        (
            Figure("resident memory while tracing", largest, "MB", 45),
            Figure("resident memory / bpftrace", ratio("bpftrace", largest, of_bpftrace), "x"),
            Figure("resident memory / bcc", ratio("bcc", largest, of_bcc), "x"),
        ),
        tuple(taken),
        "MB",
    )


def _megabytes(tracer: AbstractContextManager[Tracer], traced: Caller, kind: str = "Rss") -> float:
    with tracer as running:
        before = running.memory_bytes(kind)
        traced.make("madvise", CALLS)
        return max(before, running.memory_bytes(kind)) / _MB
