"""What a trace of one container costs a process in another one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from benchmarks.calls import caller
from benchmarks.figure import Figure, Result, Samples, interleave, ratio_of_least
from benchmarks.probes import bpftrace_same_events
from benchmarks.tracers import bpftrace, rtdebug
from rtdebug.errors import RtdebugError
from rtdebug.host import bpf
from rtdebug.tracing.btf import Btf

ROUNDS = 7
CALLS = 700_000
_RETURN_0 = bytes.fromhex("b7000000000000009500000000000000")
"""r0 = 0; exit"""


def measure() -> Result:
    """The same calls, and getpid, which no trace is about, beside a program that does nothing."""
    with caller("traced") as traced, caller("bystander") as bystander:

        def beside(tracer: Callable[[], AbstractContextManager[object]]) -> tuple[float, float]:
            with tracer():
                return bystander.ns_per_call("madvise", CALLS), bystander.ns_per_call("getpid", CALLS)

        rounds = interleave(
            ROUNDS,
            {
                "no trace": lambda: beside(_nothing),
                "an empty program": lambda: beside(_empty_program),
                "rtdebug": lambda: beside(lambda: rtdebug(traced.target)),
                "bpftrace": lambda: beside(lambda: bpftrace(bpftrace_same_events())),
            },
        )
    taken = [
        Samples(f"{call} beside {name}", tuple(pair[index] for pair in pairs))
        for index, call in enumerate(("madvise", "getpid"))
        for name, pairs in rounds.items()
    ]
    plain, empty, ours, theirs, plain_getpid, empty_getpid, ours_getpid, theirs_getpid = taken
    getpid = ratio_of_least("getpid", ours_getpid, empty_getpid, plain_getpid)
    return Result(
        (
            Figure("bystander's madvise / empty program", ratio_of_least("rtdebug", ours, empty, plain), "x", 1.25),
            Figure("bystander's getpid / empty program", getpid, "x"),
            Figure("bystander's madvise / bpftrace", ratio_of_least("bpftrace", ours, theirs, plain), "x"),
            Figure(
                "bystander's getpid / bpftrace", ratio_of_least("getpid", ours_getpid, theirs_getpid, plain_getpid), "x"
            ),
        ),
        tuple(taken),
        "ns per call",
    )


@contextmanager
def _nothing() -> Iterator[None]:
    yield


@contextmanager
def _empty_program() -> Iterator[None]:
    """`return 0` at the attach point that rtdebug uses: the BTF-typed raw tracepoint sys_exit."""
    btf_id = Btf().tracepoint_id("sys_exit")
    if btf_id is None:
        raise RtdebugError("this kernel's BTF does not know the tracepoint sys_exit")
    program = bpf.load_program(
        bpf.PROG_TYPE_TRACING, _RETURN_0, "bench_empty", attach_type=bpf.ATTACH_TRACE_RAW_TP, btf_id=btf_id
    )
    link = bpf.open_raw_tracepoint(program, None)
    try:
        yield
    finally:
        os.close(link)
        os.close(program)
