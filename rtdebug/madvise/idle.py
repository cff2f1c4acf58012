"""How much memory is idle: the kernel's accessed bits, cleared and looked at again.

Writing 1 to /proc/PID/clear_refs clears them (proc_pid_clear_refs(5)): the kernel's reclaim then takes memory for less
used than it is, and the processors' TLBs are flushed once. So it is done only for somebody who asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from rtdebug.madvise.waiting import wait

_CLEAR_ALL = "1"


def clear_referenced(pids: Iterable[int], proc: Path = Path("/proc")) -> int:
    """Clear the bits of these processes; how many it was done for. Those that ended meanwhile are left out."""
    done = 0
    for pid in pids:
        try:
            (proc / str(pid) / "clear_refs").write_text(_CLEAR_ALL)
        except OSError:
            continue
        done += 1
    return done


def watch_accesses(
    pids: Iterable[int], seconds: float, on_wait: Callable[[int, int], None], proc: Path = Path("/proc")
) -> None:
    """Clear the bits, and let the processes run for so long: then Referenced in smaps is what they accessed."""
    clear_referenced(pids, proc)
    wait(seconds, lambda: None, on_wait)
