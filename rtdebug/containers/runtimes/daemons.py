"""The daemons and shims of runtimes that run on this host, and what their command lines give away."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rtdebug.containers.cgroup_path import identify
from rtdebug.host.cgroup import parse_proc_cgroup
from rtdebug.host.process import namespace_id, pids, read_cmdline, read_comm, read_ids
from rtdebug.host.text import read_text

_COMMS = frozenset({"dockerd", "containerd", "containerd-shim", "conmon"})
"""As the kernel cuts them: 15 bytes."""


@dataclass(frozen=True, slots=True)
class Daemon:
    """A process of a runtime."""

    pid: int
    comm: str
    uid: int
    argv: tuple[str, ...]
    shares_mounts: bool
    """It sees the same mounts as rtdebug: paths in its arguments mean the same here."""


def find_daemons(proc: Path) -> tuple[Daemon, ...]:
    """Every dockerd, containerd, containerd-shim and conmon of the host.

    Any process can call itself so, and what a container's process claims must not tell rtdebug where to look:
    one in another pid namespace is left out, and one with other mounts that lies in a container's cgroup.
    """
    return tuple(daemon for pid in pids(proc) if (daemon := _read_daemon(pid, proc)) is not None)


def option(argv: Sequence[str], *names: str) -> Iterator[str]:
    """Values of an option in a command line, as `--name value` or `--name=value`."""
    for index, argument in enumerate(argv):
        name, separator, value = argument.partition("=")
        if name not in names:
            continue
        if separator:
            yield value
        elif index + 1 < len(argv):
            yield argv[index + 1]


def _read_daemon(pid: int, proc: Path) -> Daemon | None:
    comm = read_comm(pid, proc)
    if comm not in _COMMS:
        return None
    ids = read_ids(pid, proc)
    pid_namespace = namespace_id(pid, "pid", proc)
    if ids is None or pid_namespace is None or pid_namespace != namespace_id("self", "pid", proc):
        return None
    mounts = namespace_id(pid, "mnt", proc)
    shares_mounts = mounts is not None and mounts == namespace_id("self", "mnt", proc)
    if not shares_mounts and _in_container(pid, proc):
        return None
    return Daemon(pid, comm, ids.uid, read_cmdline(pid, proc), shares_mounts)


def _in_container(pid: int, proc: Path) -> bool:
    cgroup = read_text(proc / str(pid) / "cgroup") or ""
    return identify(parse_proc_cgroup(cgroup)).kind in ("container", "lxc")
