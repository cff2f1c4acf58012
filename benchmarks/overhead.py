"""What a traced call pays: beyond what it costs when nothing is attached."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.calls import Caller, caller
from benchmarks.figure import Figure, Result, ratio, sampled
from benchmarks.tracers import Tracer, bpftrace, rtdebug

ROUNDS = 5
CALLS = 700_000
PRINTED_CALLS = 140_000
"""Of the slow one."""
_ADVICE = "tracepoint:syscalls:sys_enter_madvise"
_COUNT = f"{_ADVICE} {{ @[pid, args->behavior] = count(); }}"
_PRINT = (
    f'{_ADVICE} {{ printf("%llu %d %d %llx %llu %d\\n", nsecs, pid, tid, args->start, args->len_in, args->behavior); }}'
)


def measure() -> Result:
    """Where bpftrace cannot keep up it loses what it should print, and the call gets cheaper: to its advantage."""
    with caller() as traced, TemporaryDirectory() as folder:
        record = ("--every-call", "--record", str(Path(folder) / "calls.rtd"), "--force")
        taken = sampled(
            ROUNDS,
            {
                "not traced": lambda: traced.ns_per_call("madvise", CALLS),
                "rtdebug, added up": lambda: _traced(rtdebug(traced.target), traced),
                "bpftrace count()": lambda: _traced(bpftrace(_COUNT), traced),
                "rtdebug, each recorded": lambda: _traced(rtdebug(traced.target, *record), traced),
                "bpftrace printf()": lambda: _traced(bpftrace(_PRINT), traced, PRINTED_CALLS),
            },
        )
    plain, added_up, count, recorded, printed = taken
    return Result(
        (
            Figure("overhead, added up / bpftrace count()", ratio("added up", added_up, count, plain), "x", 0.5),
            Figure("overhead, recorded / bpftrace printf()", ratio("recorded", recorded, printed, plain), "x", 0.35),
        ),
        tuple(taken),
        "ns per call",
    )


def _traced(tracer: AbstractContextManager[Tracer], traced: Caller, calls: int = CALLS) -> float:
    with tracer:
        return traced.ns_per_call("madvise", calls)
