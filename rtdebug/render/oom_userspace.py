"""Kills by killers in user space, in a line each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rtdebug.oom.userspace import UserspaceKill

_SHOWN = 5


def userspace_lines(kills: Sequence[UserspaceKill]) -> Iterator[str]:
    """Not escaped."""
    for kill in kills[:_SHOWN]:
        yield f"{kill.by} killed {_whom(kill)}{_why(kill)}{f' at {kill.time_text}' if kill.time_text else ''}"
    if kills:
        more = f"{len(kills)} in all: " if len(kills) > _SHOWN else ""
        yield f"{more}these are kills by user space, of which the kernel's log and counters say nothing"


def _whom(kill: UserspaceKill) -> str:
    return kill.cgroup or f"{kill.comm or 'a process'} (pid {kill.pid})"


def _why(kill: UserspaceKill) -> str:
    if kill.pressure_percent is None:
        return f" for {kill.reason}" if kill.reason else ""
    return f" for {kill.reason} ({kill.pressure_percent:g}% > {kill.threshold_percent:g}%)"
