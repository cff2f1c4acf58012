"""The list of kernels, out of the file `kernels` beside this one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lab.problem import LabProblem

LIST = Path(__file__).with_name("kernels")


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel that the lab knows."""

    name: str
    """As the user calls it: `6.1`."""
    suite: str
    """Suite of Debian whose newest kernel it is."""
    purpose: str
    """What is different about it."""


def parse_kernels(text: str) -> tuple[Kernel, ...]:
    """The lines `name suite purpose`; empty ones and those that begin with # are left out."""
    lines = (line.split(maxsplit=2) for line in text.splitlines() if line.strip() and not line.startswith("#"))
    return tuple(Kernel(*fields) for fields in lines)


def read_kernels(path: Path = LIST) -> tuple[Kernel, ...]:
    """All kernels of the list."""
    return parse_kernels(path.read_text(encoding="utf-8"))


def find_kernel(name: str, kernels: tuple[Kernel, ...]) -> Kernel:
    """The kernel of that name. Raises LabProblem with the names there are."""
    for kernel in kernels:
        if kernel.name == name:
            return kernel
    known = ", ".join(kernel.name for kernel in kernels)
    raise LabProblem(f"no kernel {name!r} in the lab; it has {known}")
