"""Kills by killers in user space (systemd-oomd, Talos, earlyoom): the kernel and its counters know nothing of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rtdebug.containers.cgroup_path import parse_cgroup_path
from rtdebug.oom.dressing import LogLine
from rtdebug.oom.undress import undress

KILLERS = (b"systemd-oomd", b"OOMController", b"earlyoom")
"""Their lines have one of these words."""

_OOMD = re.compile(
    r"Killed (?P<cgroup>/\S+) due to (?P<reason>[a-z ]{1,60}?)"
    r"(?: for /\S+ being (?P<pressure>\d{1,3}(?:\.\d+)?)% > (?P<threshold>\d{1,3}(?:\.\d+)?)%[^\n]*)?$"
)
_TALOS = re.compile(
    r'Sending SIGKILL to cgroup \{[^\n]*"controller": "runtime\.OOMController"[^\n]*"cgroup": "([^"\n]+)"'
)
_EARLYOOM = re.compile(r"sending SIG(?:TERM|KILL) to process (?P<pid>\d+)[^\n]*? \"(?P<comm>[^\"\n]*)\"")


@dataclass(frozen=True, slots=True)
class UserspaceKill:
    """One kill, as its killer logged it."""

    by: str
    cgroup: str | None = None
    reason: str | None = None
    pressure_percent: float | None = None
    threshold_percent: float | None = None
    pid: int | None = None
    comm: str | None = None
    time_text: str | None = None

    @property
    def pod_uid(self) -> str | None:
        """Of the pod that the cgroup's path names."""
        return parse_cgroup_path(self.cgroup).pod_uid if self.cgroup else None


def userspace_kills(lines: Iterable[str]) -> Iterator[UserspaceKill]:
    """The kills in a log; a line that only tells of pressure is none."""
    for line in undress(lines):
        if (found := _systemd_oomd(line) or _talos(line) or _earlyoom(line)) is not None:
            yield found


def _systemd_oomd(line: LogLine) -> UserspaceKill | None:
    match = _OOMD.match(line.message) if line.source == "systemd-oomd" else None
    if match is None:
        return None
    pressure, threshold = (None if match[name] is None else float(match[name]) for name in ("pressure", "threshold"))
    return UserspaceKill(
        "systemd-oomd", match["cgroup"], match["reason"], pressure, threshold, time_text=line.time_text
    )


def _talos(line: LogLine) -> UserspaceKill | None:
    match = _TALOS.search(line.message)
    return UserspaceKill("Talos OOMController", match[1], time_text=line.time_text) if match else None


def _earlyoom(line: LogLine) -> UserspaceKill | None:
    match = _EARLYOOM.search(line.message) if line.source == "earlyoom" else None
    if match is None:
        return None
    return UserspaceKill("earlyoom", pid=int(match["pid"]), comm=match["comm"], time_text=line.time_text)
