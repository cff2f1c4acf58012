"""Every MADV_* there is: its number, since when, what it acts on, by which way, and how it is taken back.

Sources: man pages madvise(2), process_madvise(2), ksm(7); mm/madvise.c (`madvise_behavior_valid`,
`process_madvise_remote_valid`, `madvise_vma_behavior`) and include/uapi/asm-generic/mman-common.h.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from enum import StrEnum

from rtdebug.errors import UsageProblem
from rtdebug.host.constants import MADV

PREFIX = "MADV_"


class Way(StrEnum):
    """How advice reaches memory of a live process (D11)."""

    PROCESS_MADVISE = "process_madvise"
    """process_madvise(2) through a pidfd: the process itself does nothing."""
    INJECT = "inject"
    """The process calls madvise(2) itself: a thread of it is borrowed with ptrace(2) for one system call."""
    NONE = "none"
    """Not on a live process: it breaks what the process relies on, or has no effect to speak of."""


class Memory(StrEnum):
    """Kinds of memory, as far as advice tells them apart."""

    ANON = "anon"
    """Private anonymous."""
    SHMEM = "shmem"
    """Shared anonymous, memfd, System V, files of a tmpfs such as /dev/shm."""
    FILE = "file"
    """Files of a disk."""


@dataclass(frozen=True, slots=True)
class Advice:
    """One advice. `name` has its MADV_."""

    name: str
    since: str
    """First Linux that has it, and takes it by its `way`."""
    does: str
    """What it does, in a few words."""
    acts_on: frozenset[Memory]
    way: Way = Way.NONE
    destroys: bool = False
    """It may throw away what is in the memory."""
    undo: str | None = None
    """The advice that takes it back; None: nothing does."""
    sets_flag: str | None = None
    """The VmFlags code that it sets."""
    clears_flag: str | None = None
    """The VmFlags code that it clears."""

    @property
    def number(self) -> int:
        """For madvise(2); the same on x86-64 and arm64."""
        return _NUMBERS[self.name]

    @property
    def has_flag(self) -> bool:
        """Whether VmFlags shows it."""
        return self.sets_flag is not None or self.clears_flag is not None or self.name == "MADV_NORMAL"

    @property
    def short_name(self) -> str:
        """Without MADV_."""
        return self.name.removeprefix(PREFIX)


_NUMBERS = {name: number for number, name in MADV.items()}
_ALL = frozenset(Memory)
_ANON = frozenset({Memory.ANON})
_PAGEABLE = frozenset({Memory.ANON, Memory.SHMEM})
_MAPPED_FILE = frozenset({Memory.FILE, Memory.SHMEM})

_TABLE = (
    Advice("MADV_NORMAL", "2.4", "takes back RANDOM and SEQUENTIAL", _ALL, Way.INJECT),
    Advice("MADV_RANDOM", "2.4", "no read-ahead", _MAPPED_FILE, Way.INJECT, undo="MADV_NORMAL", sets_flag="rr"),
    Advice(
        "MADV_SEQUENTIAL",
        "2.4",
        "more read-ahead, old pages go first",
        _MAPPED_FILE,
        Way.INJECT,
        undo="MADV_NORMAL",
        sets_flag="sr",
    ),
    # commit d5fffc5aff26 ("mm/madvise: add MADV_WILLNEED to process_madvise()"), in v5.15
    Advice("MADV_WILLNEED", "5.15", "reads in what is on disk or in swap", _ALL, Way.PROCESS_MADVISE),
    Advice("MADV_DONTNEED", "2.4", "drops the pages: private memory reads as zero", _ALL, Way.INJECT, destroys=True),
    Advice(
        "MADV_FREE", "4.5", "the kernel may drop the pages until they are written", _ANON, Way.INJECT, destroys=True
    ),
    Advice(
        "MADV_REMOVE",
        "2.6.16",
        "punches a hole in the file behind it",
        _MAPPED_FILE,
        Way.INJECT,
        destroys=True,
    ),
    Advice("MADV_DONTFORK", "2.6.16", "a child does not get it", _ALL, undo="MADV_DOFORK", sets_flag="dc"),
    Advice("MADV_DOFORK", "2.6.16", "takes back DONTFORK", _ALL, undo="MADV_DONTFORK", clears_flag="dc"),
    Advice(
        "MADV_MERGEABLE",
        "2.6.32",
        "KSM may merge equal pages",
        _ANON,
        Way.INJECT,
        undo="MADV_UNMERGEABLE",
        sets_flag="mg",
    ),
    Advice(
        "MADV_UNMERGEABLE",
        "2.6.32",
        "unmerges what KSM merged",
        _ANON,
        Way.INJECT,
        undo="MADV_MERGEABLE",
        clears_flag="mg",
    ),
    Advice(
        "MADV_HUGEPAGE",
        "2.6.38",
        "huge pages where the host leaves it to the program",
        _PAGEABLE,
        Way.INJECT,
        undo="MADV_NOHUGEPAGE",
        sets_flag="hg",
        clears_flag="nh",
    ),
    Advice(
        "MADV_NOHUGEPAGE",
        "2.6.38",
        "no new huge pages",
        _PAGEABLE,
        Way.INJECT,
        undo="MADV_HUGEPAGE",
        sets_flag="nh",
        clears_flag="hg",
    ),
    Advice(
        "MADV_DONTDUMP",
        "3.4",
        "not in core dumps",
        _ALL,
        Way.INJECT,
        undo="MADV_DODUMP",
        sets_flag="dd",
    ),
    Advice("MADV_DODUMP", "3.4", "takes back DONTDUMP", _ALL, Way.INJECT, undo="MADV_DONTDUMP", clears_flag="dd"),
    Advice(
        "MADV_WIPEONFORK",
        "4.14",
        "a child gets zeros",
        _ANON,
        undo="MADV_KEEPONFORK",
        sets_flag="wf",
    ),
    Advice(
        "MADV_KEEPONFORK",
        "4.14",
        "takes back WIPEONFORK",
        _ANON,
        undo="MADV_WIPEONFORK",
        clears_flag="wf",
    ),
    Advice("MADV_COLD", "5.4", "has it reclaimed before other memory", _ALL, Way.PROCESS_MADVISE),
    Advice(
        "MADV_PAGEOUT",
        "5.4",
        "has it reclaimed now: to swap, or dropped if the disk has it",
        _ALL,
        Way.PROCESS_MADVISE,
        undo="MADV_WILLNEED",
    ),
    Advice("MADV_POPULATE_READ", "5.14", "faults the pages in, as reading would", _ALL),
    Advice("MADV_POPULATE_WRITE", "5.14", "faults the pages in, as writing would", _ALL),
    Advice("MADV_DONTNEED_LOCKED", "5.18", "DONTNEED, also on locked memory", _ALL, Way.INJECT, destroys=True),
    Advice("MADV_COLLAPSE", "6.1", "makes huge pages of what is there, now", _ALL, Way.PROCESS_MADVISE),
    Advice("MADV_HWPOISON", "2.6.32", "pretends that the memory is broken", _ALL, destroys=True),
    Advice("MADV_SOFT_OFFLINE", "2.6.33", "takes the page frame out of use", _ALL),
    Advice("MADV_GUARD_INSTALL", "6.13", "an access is a SIGSEGV from now on", _ALL, destroys=True),
    Advice("MADV_GUARD_REMOVE", "6.13", "takes back GUARD_INSTALL", _ALL),
)

ADVICE = {advice.name: advice for advice in _TABLE}
"""By full name, in the order of the numbers."""


def find_advice(text: str) -> Advice:
    """The advice that `text` names, in any case, with or without MADV_. Raises UsageProblem with near misses."""
    name = PREFIX + text.strip().upper().replace("-", "_").removeprefix(PREFIX)
    if name in ADVICE:
        return ADVICE[name]
    near = difflib.get_close_matches(name, ADVICE, n=1)
    guess = f"; do you mean {near[0]}?" if near else ""
    short_names = ", ".join(advice.short_name for advice in applicable())
    raise UsageProblem(f"no advice {text!r}{guess}", f"a live process can be given {short_names}")


def applicable() -> tuple[Advice, ...]:
    """What can be applied to a live process."""
    return tuple(advice for advice in _TABLE if advice.way is not Way.NONE)
