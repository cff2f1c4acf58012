"""What runs in the experiment process: all runs of a plan, in an order shuffled by its seed."""

from __future__ import annotations

import errno
import gc
import random
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

from rtdebug.madvise import syscalls
from rtdebug.madvise.access import Words, accesses, populate
from rtdebug.madvise.advice import ADVICE, PREFIX
from rtdebug.madvise.area import Area, CannotMapError, drop_cache, mapped, opened_file
from rtdebug.madvise.inside import Body, Inside
from rtdebug.madvise.leaf import Leaf
from rtdebug.madvise.measure import Meter, Step, differences
from rtdebug.madvise.plan import BASELINE, Case, Plan
from rtdebug.madvise.run import Run


@dataclass(frozen=True, slots=True)
class Turn:
    """One run to come."""

    case: int
    advice: str
    round: int
    warm_up: bool


def turns(plan: Plan) -> Iterator[Turn]:
    """All runs: each round has every advice of every case once, in an order of its own.

    So a slow minute of the host hits all of them, and none always comes after the same other.
    """
    source = random.Random(plan.seed)
    each = [(index, advice) for index, case in enumerate(plan.cases) for advice in (BASELINE, *case.advice)]
    for number in range(plan.warm_up + plan.runs):
        source.shuffle(each)
        for index, advice in each:
            yield Turn(index, advice, number, warm_up=number < plan.warm_up)


def patterns(plan: Plan) -> tuple[Callable[[Words], None], ...]:
    """The accesses of each case. Made before the fork: so the container is not charged for their indices."""
    page_bytes = resource.getpagesize()
    known: dict[tuple[object, ...], Callable[[Words], None]] = {}
    for case in plan.cases:
        known.setdefault(_pattern_key(case), accesses(case, page_bytes, plan.seed))
    return tuple(known[_pattern_key(case)] for case in plan.cases)  # the same for every kind of memory


def _pattern_key(case: Case) -> tuple[object, ...]:
    return (case.access, case.mode, case.size_bytes, case.access_count, case.stride_bytes)


def prepare(plan: Plan, alignment_bytes: int, leaf: Leaf) -> Body:
    """Open what the runs read, while the host's files are in sight; then they can begin."""
    meter = Meter(leaf.memory_folder)
    _try_everything(meter, alignment_bytes)
    bench = Bench(plan.cases, patterns(plan), meter, alignment_bytes, resource.getpagesize())
    return lambda inside: _all_runs(plan, bench, leaf, inside)


def _try_everything(meter: Meter, alignment_bytes: int) -> None:
    """Once round, so that nothing is imported or looked up for the first time inside."""
    syscalls.libc()
    case = Case("anon", (), size_bytes=alignment_bytes)
    with mapped(case, alignment_bytes, alignment_bytes) as area:
        words = area.words()
        populate(words, resource.getpagesize(), write=True)
        meter.timed(lambda: syscalls.madvise(area.address, area.size_bytes, 0))
        meter.read(area)


@dataclass(frozen=True, slots=True)
class Bench:
    """What all runs use."""

    cases: Sequence[Case]
    actions: Sequence[Callable[[Words], None]]
    """The accesses of each case."""
    meter: Meter
    alignment_bytes: int
    page_bytes: int


def _all_runs(plan: Plan, bench: Bench, leaf: Leaf, inside: Inside) -> None:
    gc.disable()  # its pauses would be somebody's time
    bench.meter.look_at(inside.smaps_fd)
    inside.say(own_cgroup=not leaf.is_shared)
    with ExitStack() as stack:
        own_said = False
        files: dict[int, int] = {}
        unable: set[int] = set()
        for index, case in enumerate(plan.cases):
            if case.memory == "file":
                try:
                    files[index] = stack.enter_context(opened_file(case, case.size_bytes or 0))
                except CannotMapError as error:
                    unable.add(index)
                    inside.say(unable=index, reason=str(error))
        for position, turn in enumerate(turns(plan)):
            if turn.case in unable:
                continue
            try:
                run = _run(bench, turn, position, files.get(turn.case))
            except CannotMapError as error:
                unable.add(turn.case)
                inside.say(unable=turn.case, reason=str(error))
                continue
            inside.say(run=asdict(run))
            if not own_said:  # only now its heap is as large as it gets
                inside.say(own_bytes=bench.meter.own_bytes())
                own_said = True
    inside.say(done=True)


def _run(bench: Bench, turn: Turn, position: int, file: int | None) -> Run:
    case = bench.cases[turn.case]
    size = case.size_bytes or 0
    if file is not None and case.file is None:
        drop_cache(file)
    with mapped(case, size, bench.alignment_bytes, file) as area:
        measured = _measure(bench, case, turn, area, bench.actions[turn.case])
    moment = case.moment(turn.advice)
    return Run(
        turn.case, case.memory, case.access, case.mode, size, turn.advice, moment, turn.round, turn.warm_up, position,
        **measured,
    )  # fmt: skip


def _measure(
    bench: Bench, case: Case, turn: Turn, area: Area, access: Callable[[Words], None]
) -> dict[str, Any]:
    """All steps of one run."""
    meter = bench.meter
    words = area.words()
    after = case.moment(turn.advice) == "after"
    advice: _Given = _Given(None, None)
    mapped_first = meter.read(area)
    if not after:
        advice = _give(meter, area, turn.advice)
    populating = meter.timed(lambda: populate(words, bench.page_bytes, write=case.memory != "file"))
    populated = meter.read(area)
    returned: tuple[int | None, int | None] = (None, None)
    if after and turn.advice != BASELINE:
        usage, began = meter.usage_bytes(), time.perf_counter_ns()
        advice = _give(meter, area, turn.advice)
        returned = meter.watch_return(usage, began, area.size_bytes)
    settled = meter.read(area) if after else populated
    accessing = meter.timed(lambda: access(words))
    accessed = meter.read(area)
    steps = [step for step in (advice.step, populating, accessing) if step is not None]
    return {
        "errno": advice.errno,
        "advice_ns": advice.step.time_ns if advice.step else None,
        "populate_ns": populating.time_ns,
        "access_ns": accessing.time_ns,
        "total_ns": sum(step.time_ns for step in steps),
        "cpu_ns": sum(step.cpu_ns for step in steps),
        **_faults("populate", populating),
        **_faults("access", accessing),
        "access_dtlb_misses": accessing.dtlb_misses,
        "populated_rss_bytes": populated.rss_bytes,
        "rss_bytes": settled.rss_bytes,
        "accessed_rss_bytes": accessed.rss_bytes,
        "populated_thp_bytes": populated.thp_bytes,
        "thp_bytes": settled.thp_bytes,
        "lazyfree_bytes": settled.lazyfree_bytes,
        "swap_bytes": settled.swap_bytes,
        "mapped_usage_bytes": mapped_first.cgroup_usage_bytes,
        "usage_bytes": settled.cgroup_usage_bytes,
        "returned_bytes": returned[0],
        "return_ns": returned[1],
        "pressure_us": _difference(mapped_first.pressure_us, accessed.pressure_us),
        "stat": differences(mapped_first.stat, settled.stat),
        "vmstat": differences(mapped_first.vmstat, settled.vmstat),
    }


@dataclass(frozen=True, slots=True)
class _Given:
    step: Step | None
    errno: str | None


def _give(meter: Meter, area: Area, advice: str) -> _Given:
    """Call madvise(2) on all of the area; what it refuses is a result too."""
    if advice == BASELINE:
        return _Given(None, None)
    number = ADVICE[PREFIX + advice].number
    refused: list[int] = []

    def call() -> None:
        try:
            syscalls.madvise(area.address, area.size_bytes, number)
        except OSError as error:
            refused.append(error.errno or 0)

    step = meter.timed(call)
    return _Given(step, errno.errorcode.get(refused[0], str(refused[0])) if refused else None)


def _faults(name: str, step: Step) -> dict[str, int]:
    return {f"{name}_minor_faults": step.minor_faults, f"{name}_major_faults": step.major_faults}


def _difference(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before
