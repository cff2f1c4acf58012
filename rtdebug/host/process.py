"""/proc/PID: who a process is. Everything here may vanish while it is read; then the answer is None."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rtdebug.host.text import parse_int, read_text

PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """The part of /proc/PID/stat that tells processes apart, man page proc_pid_stat(5)."""

    pid: int
    comm: str
    """At most 15 bytes that the process chose. The kernel escapes newline and backslash here."""
    state: str
    """R, S, D, Z, T, t, X, I."""
    ppid: int
    start_ticks: int
    """Since boot, in clock ticks (sysconf _SC_CLK_TCK): with the pid it names one process for ever."""


@dataclass(frozen=True, slots=True)
class ProcessIds:
    """The ids in /proc/PID/status, man page proc_pid_status(5)."""

    tgid: int
    uid: int
    """Effective, in the reader's user namespace."""
    ns_pids: tuple[int, ...]
    """The pid in every pid namespace from the reader's inwards (`NSpid`)."""

    @property
    def ns_pid(self) -> int | None:
        """The pid as the process itself sees it."""
        return self.ns_pids[-1] if self.ns_pids else None


def parse_stat(text: str) -> ProcessStat | None:
    """One /proc/PID/stat. The comm may hold spaces, parentheses and newlines: it ends at the last `)`."""
    head, _, tail = text.rpartition(")")
    pid, _, comm = head.partition(" (")
    fields = tail.split()
    if not pid.isdecimal() or len(fields) < 20:
        return None
    return ProcessStat(int(pid), comm, state=fields[0], ppid=int(fields[1]), start_ticks=int(fields[19]))


def read_stat(pid: int, proc: Path = PROC) -> ProcessStat | None:
    """None if there is no such process."""
    text = read_text(proc / str(pid) / "stat")
    return parse_stat(text) if text else None


def parse_status_ids(text: str) -> ProcessIds | None:
    """The ids of one /proc/PID/status. The kernel escapes newlines in the name, so lines are lines."""
    values = {key: value.split() for key, _, value in (line.partition(":") for line in text.split("\n"))}
    try:
        return ProcessIds(
            tgid=int(values["Tgid"][0]),
            uid=int(values["Uid"][1]),
            ns_pids=tuple(map(int, values.get("NSpid", ()))),
        )
    except (KeyError, IndexError, ValueError):
        return None


def read_ids(pid: int, proc: Path = PROC) -> ProcessIds | None:
    """None if there is no such process."""
    text = read_text(proc / str(pid) / "status")
    return parse_status_ids(text) if text else None


def is_running(pid: int, proc: Path = PROC) -> bool:
    """Whether the process exists and has not exited: a zombie has."""
    stat = read_stat(pid, proc)
    return stat is not None and stat.state not in "ZX"


def read_comm(pid: int, proc: Path = PROC) -> str | None:
    """The name the process has now; None if there is no such process."""
    text = read_text(proc / str(pid) / "comm")
    return None if text is None else text.removesuffix("\n")


def parse_cmdline(text: str) -> tuple[str, ...]:
    """The arguments in /proc/PID/cmdline: each ends with a NUL."""
    return tuple(text.removesuffix("\0").split("\0")) if text else ()


def read_cmdline(pid: int, proc: Path = PROC) -> tuple[str, ...]:
    """The arguments of `pid`; none for a kernel thread, a zombie, or a process that has exited."""
    return parse_cmdline(read_text(proc / str(pid) / "cmdline") or "")


def pids(proc: Path = PROC) -> Iterator[int]:
    """Every process (thread group) that `proc` shows."""
    for entry in proc.iterdir():
        pid = parse_int(entry.name) if entry.name.isdecimal() else None
        if pid is not None:
            yield pid


def namespace_id(pid: int | str, kind: str, proc: Path = PROC) -> int | None:
    """Inode number of /proc/PID/ns/`kind` (`mnt`, `pid`, `cgroup`, ...), man page namespaces(7).

    Two processes are in one namespace if it is equal. None: no such process, or not ours to look at.
    """
    try:
        return (proc / str(pid) / "ns" / kind).stat().st_ino
    except OSError:
        return None
