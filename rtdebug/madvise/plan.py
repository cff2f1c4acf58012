"""What an experiment does: kinds of memory, sizes, accesses, advice. Reading plans is in plan_text.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rtdebug.errors import UsageProblem

MEMORY: Mapping[str, str] = {
    "anon": "private anonymous memory: malloc, heaps, tensors",
    "shared-anon": "MAP_SHARED|MAP_ANONYMOUS, shared with forked children",
    "memfd": "memfd_create(2)",
    "shm": "a file in the container's /dev/shm",
    "sysv": "a System V segment, shmget(2)",
    "file": "a file in the container's file system, mapped shared",
}
ACCESS: Mapping[str, str] = {
    "sequential": "each cache line in order",
    "stride": "one word every `stride`, in order",
    "random": "words anywhere, each as likely",
    "zipf": "words anywhere, some pages far more often (exponent 0.99)",
}
MODES = ("read", "write")
MOMENTS = ("before", "after")
"""Advice is given before the memory is touched for the first time, or after."""

BASELINE = "none"
"""The same without any advice: what everything is compared with."""

MOMENT_OF: Mapping[str, str] = {
    "NORMAL": "before", "SEQUENTIAL": "before", "RANDOM": "before", "WILLNEED": "before",
    "HUGEPAGE": "before", "NOHUGEPAGE": "before", "POPULATE_READ": "before", "POPULATE_WRITE": "before",
    "DONTDUMP": "before", "MERGEABLE": "before",
    "COLLAPSE": "after", "COLD": "after", "PAGEOUT": "after", "FREE": "after", "DONTNEED": "after", "REMOVE": "after",
}  # fmt: skip
"""What an experiment may try, and when it is given unless the plan says otherwise."""

CACHE_LINE_BYTES = 64
MOST_ACCESSES = 1 << 20
AUTO_LARGEST_BYTES = 128 << 20
SIZE_UNIT_BYTES = 2 << 20
"""Sizes are rounded up to it: the huge page of x86-64."""
MOST_RUNS = 1000
MOST_CASES = 64


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of memory under one pattern of accesses, with several pieces of advice to compare."""

    memory: str
    advice: tuple[str, ...]
    """Without `MADV_`, the baseline left out."""
    size_bytes: int | None = None
    """None: as the container's headroom allows (see sized())."""
    access: str = "random"
    mode: str = "read"
    when: str | None = None
    """None: as MOMENT_OF says for each."""
    stride_bytes: int = 4096
    accesses: int | None = None
    """For random and zipf; None: one for each cache line, at most MOST_ACCESSES."""
    file: str | None = None
    """Of memory `file`: one that is there already, and is only read; None: one of our own in /tmp."""
    where: str = ""
    """What an error message calls it: `web.toml, line 7`."""

    def moment(self, advice: str) -> str:
        """When this advice is given."""
        return self.when or MOMENT_OF.get(advice, "after")

    @property
    def access_count(self) -> int:
        """Words that one run reads or writes."""
        size = self.size_bytes or 0
        match self.access:
            case "sequential":
                return size // CACHE_LINE_BYTES
            case "stride":
                return size // self.stride_bytes
            case _:
                return self.accesses or min(size // CACHE_LINE_BYTES, MOST_ACCESSES)


@dataclass(frozen=True, slots=True)
class Plan:
    """What `rtdebug madvise run` does."""

    name: str
    cases: tuple[Case, ...]
    question: str | None = None
    runs: int = 15
    """Of each advice, warm-up not counted."""
    warm_up: int = 1
    """Rounds that are run and not counted."""
    seed: int = 1
    """Of the order of the runs and of the accesses: the same seed does the same."""

    @property
    def total_runs(self) -> int:
        """All that is run, baselines and warm-up included."""
        return (self.runs + self.warm_up) * sum(len(case.advice) + 1 for case in self.cases)


def sized(plan: Plan, room_bytes: int | None, shm_bytes: int | None = None) -> Plan:
    """The plan with every size known. `room_bytes` is what the container can take; None: nothing limits it.
    `shm_bytes` is free in its /dev/shm; None: there is no limit, or no /dev/shm.

    Raises UsageProblem for a size beyond that, with the largest there may be.
    """
    largest = None if room_bytes is None else room_bytes // SIZE_UNIT_BYTES * SIZE_UNIT_BYTES
    if largest is not None and largest < SIZE_UNIT_BYTES:
        raise UsageProblem(
            "the container has no room for an experiment: a tenth of each memory limit stays free, and below that "
            "18 MiB are needed",
            "rtdebug ps shows usage and limit; try it in a copy of the container that is idle, or with a higher limit",
        )
    return replace(plan, cases=tuple(_sized(case, largest, shm_bytes) for case in plan.cases))


def _sized(case: Case, largest: int | None, shm_bytes: int | None) -> Case:
    if case.size_bytes is None:
        rooms = [room for room in (largest, shm_bytes if case.memory == "shm" else None) if room is not None]
        half = min([AUTO_LARGEST_BYTES, *(room // 2 for room in rooms)])
        return replace(case, size_bytes=max(SIZE_UNIT_BYTES, half // SIZE_UNIT_BYTES * SIZE_UNIT_BYTES))
    size = -(-case.size_bytes // SIZE_UNIT_BYTES) * SIZE_UNIT_BYTES
    if largest is not None and size > largest:
        raise UsageProblem(
            f"{case.where}: size {size >> 20} MiB is more than the container can take",
            f"allowed: 2 MiB to {largest >> 20} MiB, or auto; a tenth of the limit stays free, see rtdebug ps",
        )
    return replace(case, size_bytes=size)
