"""A madvise experiment: what its own clock and counters take, and its loops beside the same loops in C."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cffi import FFI

from benchmarks.figure import Figure, Result, Samples, ratio, sampled
from rtdebug.madvise.access import accesses, make_index, populate
from rtdebug.madvise.area import mapped
from rtdebug.madvise.measure import Meter
from rtdebug.madvise.plan import CACHE_LINE_BYTES, Case

ROUNDS = 25
SIZE_BYTES = 64 << 20
PAGE_BYTES = 4096
SEED = 1
_WORD_BYTES = 8
_DECLARATIONS = """
int64_t read_step(const int64_t *words, size_t count, size_t step);
void write_step(int64_t *words, size_t count, size_t step);
int64_t read_index(const int64_t *words, const int64_t *index, size_t count);
void write_index(int64_t *words, const int64_t *index, size_t count);
"""


def measure() -> Result:
    """Everything on one mapping that is there already, so that both loops meet the same pages."""
    case = Case("anon", (), SIZE_BYTES)
    meter = Meter(Path("/nowhere"))
    with TemporaryDirectory() as folder, mapped(case, SIZE_BYTES, 2 << 20) as area:
        loops = _Loops(Path(folder), area.words())
        populate(area.words(), PAGE_BYTES, write=True)
        subjects: dict[str, Callable[[], float]] = {"nothing": lambda: meter.timed(lambda: None).time_ns / 1e6}
        for access in ("sequential", "random", "zipf"):
            for mode in ("read", "write"):
                subjects |= loops.pair(access, mode)
        taken = {sample.name: sample for sample in sampled(ROUNDS, subjects)}
    shortest = min((sample for name, sample in taken.items() if name.endswith("numpy")), key=lambda each: each.median)
    own = Samples("own", tuple(value / shortest.median for value in taken["nothing"].values))
    figures = [Figure("experiment: clock and counters / shortest access", own, "x", 0.02)]
    for name in taken:
        if name.endswith(", numpy"):
            pattern = name.removesuffix(", numpy")
            compared = ratio(pattern, taken[name], taken[f"{pattern}, C"])
            figures.append(Figure(f"experiment: {pattern}, numpy / C", compared, "x"))
    return Result(tuple(figures), tuple(taken.values()), "ms")


class _Loops:
    """The same accesses twice: as an experiment does them, and in C."""

    def __init__(self, folder: Path, words: Any) -> None:  # noqa: ANN401 - an array of numpy
        self._ffi = FFI()
        self._ffi.cdef(_DECLARATIONS)
        self._c = self._ffi.dlopen(str(_library(folder)))
        self._words = words
        self._kept: list[object] = []
        """What C has only the addresses of."""

    def pair(self, access: str, mode: str) -> dict[str, Callable[[], float]]:
        case = Case("anon", (), SIZE_BYTES, access, mode)
        pointer = self._ffi.cast("int64_t *", self._words.ctypes.data)
        numpy = accesses(case, PAGE_BYTES, SEED)
        if access == "sequential":
            step, function = CACHE_LINE_BYTES // _WORD_BYTES, getattr(self._c, f"{mode}_step")
            arguments: tuple[object, ...] = (pointer, SIZE_BYTES // _WORD_BYTES, step)
        else:
            index = make_index(case, PAGE_BYTES, SEED)
            self._kept.append(index)
            function = getattr(self._c, f"{mode}_index")
            arguments = (pointer, self._ffi.cast("int64_t *", index.ctypes.data), len(index))
        return {
            f"{access} {mode}, numpy": lambda: _ms(lambda: numpy(self._words)),
            f"{access} {mode}, C": lambda: _ms(lambda: function(*arguments)),
        }


def _library(folder: Path) -> Path:
    library = folder / "scan.so"
    source = Path(__file__).with_name("scan.c")
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
    return library


def _ms(action: Callable[[], object]) -> float:
    """CPU time: both loops do nothing but compute."""
    began = time.thread_time_ns()
    action()
    return (time.thread_time_ns() - began) / 1e6
