"""What a traced call pays: beyond what it costs when nothing is attached."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.calls import Caller, caller
from benchmarks.figure import Figure, Result, ratio_of_least, sampled
from benchmarks.tracers import Tracer, bpftrace, rtdebug

ROUNDS = 5
CALLS = 700_000
PRINTED_CALLS = 14_000
PAUSE_S = 0.1
"""bpftrace prints what its buffer of 4,000 events holds; a full one would cost less than an event, being lost."""
_ADVICE = "tracepoint:syscalls:sys_enter_madvise"
_COUNT = f"{_ADVICE} {{ @[pid, args->behavior] = count(); }}"
_PRINT = (
    f'{_ADVICE} {{ printf("%llu %d %d %llx %llu %d\\n", nsecs, pid, tid, args->start, args->len_in, args->behavior); }}'
)


def measure() -> Result:
    """A call that is added up, beside one that bpftrace counts; one that is recorded, beside one it prints."""
    with caller() as traced, TemporaryDirectory() as folder:
        record = ("--every-call", "--record", str(Path(folder) / "calls.rtd"), "--force")
        taken = sampled(
            ROUNDS,
            {
                "not traced": lambda: traced.ns_per_call("madvise", CALLS),
                "rtdebug, added up": lambda: _traced(rtdebug(traced.target), traced),
                "bpftrace count()": lambda: _traced(bpftrace(_COUNT), traced),
                "rtdebug, each recorded": lambda: _traced(rtdebug(traced.target, *record), traced),
                "bpftrace printf()": lambda: _traced(bpftrace(_PRINT), traced, PRINTED_CALLS, PAUSE_S),
            },
        )
    plain, added_up, count, recorded, printed = taken
    return Result(
        (
            Figure(
                "overhead, added up / bpftrace count()", ratio_of_least("added up", added_up, count, plain), "x", 0.5
            ),
            Figure(
                "overhead, recorded / bpftrace printf()",
                ratio_of_least("recorded", recorded, printed, plain),
                "x",
                0.35,
            ),
        ),
        tuple(taken),
        "ns per call",
    )


def _traced(tracer: AbstractContextManager[Tracer], traced: Caller, calls: int = CALLS, pause_s: float = 0) -> float:
    with tracer:
        return traced.ns_per_call("madvise", calls, pause_s)
