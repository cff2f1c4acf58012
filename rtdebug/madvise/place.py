"""A process inside a container: its namespaces, its root, its cgroup, its privileges, and nothing left of it.

    rtdebug --fork--> keeper --fork--> experiment process, inside
                      waits for the end of either, kills, and removes the cgroup

The keeper stays outside, holds a pipe of which rtdebug has the other end, and so learns of rtdebug's death, also by
SIGKILL. The experiment process dies with the keeper (PR_SET_PDEATHSIG), and with the container's first process, for it
is in its pid namespace.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from rtdebug.containers.model import Container
from rtdebug.errors import HostUnable, NotRunning, RtdebugError
from rtdebug.host.cgroup import MemoryHierarchy, pids_of
from rtdebug.host.process import namespace_id
from rtdebug.madvise import syscalls
from rtdebug.madvise.leaf import Leaf, enter, make_leaf, remove_leaf
from rtdebug.madvise.privileges import Privileges, read_privileges, take_on

_KINDS = {
    "user": syscalls.CLONE_NEWUSER,
    "ipc": syscalls.CLONE_NEWIPC,
    "net": syscalls.CLONE_NEWNET,
    "mnt": syscalls.CLONE_NEWNS,
    "pid": syscalls.CLONE_NEWPID,
}
_PROC = Path("/proc")

Body = Callable[["Inside"], None]
Prepare = Callable[[Leaf], Body]
"""Called in the experiment process while it still sees the host: imports, opens files. What it returns runs inside."""


@dataclass(frozen=True, slots=True)
class Door:
    """The process whose namespaces are joined, and what it may do."""

    pid: int
    namespaces: tuple[str, ...]
    """Those that are not ours already."""
    privileges: Privileges


class Inside:
    """What the experiment process has to speak with."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def say(self, **values: object) -> None:
        """Send one object to rtdebug."""
        line = memoryview((json.dumps(values) + "\n").encode())
        while line:
            line = line[os.write(self._fd, line) :]


class Experimenter:
    """rtdebug's end: what the process inside says, and its end."""

    def __init__(self, keeper_pid: int, lines_fd: int, life_fd: int) -> None:
        self._keeper_pid = keeper_pid
        self._life_fd = life_fd
        self._buffer = b""
        self.lines_fd = lines_fd

    def hear(self, timeout_s: float) -> list[dict[str, object]] | None:
        """What it has said; an empty list when nothing came in time, None at its end."""
        if not select.select([self.lines_fd], [], [], timeout_s)[0]:
            return []
        chunk = os.read(self.lines_fd, 1 << 16)
        if not chunk:
            return None
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        said = [json.loads(line) for line in lines]
        return [each for each in said if isinstance(each, dict)]

    def close(self) -> int | None:
        """End it, and wait until nothing of it is left.

        Returns the signal that ended the process inside; None if none did before.
        """
        with contextlib.suppress(OSError):
            os.close(self._life_fd)
        _, status = os.waitpid(self._keeper_pid, 0)
        os.close(self.lines_fd)
        code = os.waitstatus_to_exitcode(status)
        return code - 128 if code > 128 else None


def find_door(container: Container, hierarchy: MemoryHierarchy, proc: Path = _PROC) -> Door:
    """The container's first process, else any of its cgroup's. Raises NotRunning."""
    pid = container.pid
    if pid is None and container.cgroup is not None:
        pid = min(pids_of(hierarchy.path(container.cgroup)), default=None)
    privileges = read_privileges(pid, proc) if pid is not None else None
    if pid is None or privileges is None:
        raise NotRunning(f"{container.name or container.id!r} has no process", "start it: `rtdebug ps` lists what runs")
    kinds = [kind for kind in _KINDS if namespace_id(pid, kind, proc) not in (None, namespace_id("self", kind, proc))]
    return Door(pid, tuple(kinds), privileges)


def send_inside(door: Door, hierarchy: MemoryHierarchy, cgroup: str, prepare: Prepare) -> Experimenter:
    """Start a process that enters `cgroup` and the namespaces of `door` and there runs what `prepare` returns.

    What goes wrong on the way in comes as a line with `error` and `hint`.
    """
    lines_read, lines_write = os.pipe2(os.O_CLOEXEC)
    life_read, life_write = os.pipe2(os.O_CLOEXEC)
    sys.stdout.flush()
    sys.stderr.flush()
    keeper = os.fork()
    if keeper == 0:
        os.close(lines_read)
        os.close(life_write)
        _keep(door, hierarchy, cgroup, prepare, lines_write, life_read)
    os.close(lines_write)
    os.close(life_read)
    return Experimenter(keeper, lines_read, life_write)


def _keep(
    door: Door, hierarchy: MemoryHierarchy, cgroup: str, prepare: Prepare, lines_fd: int, life_fd: int
) -> NoReturn:
    """Be the keeper."""
    code = 1
    leaf = None
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)  # rtdebug decides; its end is ours
        leaf = make_leaf(hierarchy, cgroup)
        code = _watch(_start(door, leaf, prepare, lines_fd), lines_fd, life_fd)
    except RtdebugError as error:
        _say_error(lines_fd, error)
    except Exception as error:
        _say_error(lines_fd, RtdebugError(f"{type(error).__name__}: {error}", "this is a bug in rtdebug"))
    finally:
        with contextlib.suppress(Exception):
            if leaf is not None:
                remove_leaf(leaf.folder)
        os._exit(code)


def _start(door: Door, leaf: Leaf, prepare: Prepare, lines_fd: int) -> int:
    """Fork the experiment process into the container's pid namespace: setns(2) changes that of children only."""
    try:
        pidfd = os.pidfd_open(door.pid)
        root = os.open(_PROC / str(door.pid) / "root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        if "pid" in door.namespaces:
            syscalls.setns(pidfd, syscalls.CLONE_NEWPID)
    except OSError as error:
        raise _cannot_enter(error) from None
    child = os.fork()
    if child == 0:
        _experiment(door, leaf, prepare, lines_fd, pidfd, root)
    os.close(pidfd)
    os.close(root)
    return child


def _watch(child: int, lines_fd: int, life_fd: int) -> int:
    """Wait for the end of the experiment, or of rtdebug, which ends the experiment too."""
    os.close(lines_fd)
    pidfd = os.pidfd_open(child)
    ready, _, _ = select.select([pidfd, life_fd], [], [])
    if pidfd not in ready:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if pidfd in ready and os.WIFSIGNALED(status):
        return 128 + os.WTERMSIG(status)
    return 0


def _experiment(door: Door, leaf: Leaf, prepare: Prepare, lines_fd: int, pidfd: int, root: int) -> NoReturn:
    """Be the experiment process. The way in has an order: what needs the host's rights and files comes first."""
    try:
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
        Path("/proc/self/oom_score_adj").write_text("1000")  # before anybody of the container
        enter(leaf, door.pid)
        body = prepare(leaf)
        kinds = 0
        for kind in door.namespaces:
            kinds |= _KINDS[kind] if kind != "pid" else 0
        if kinds:
            syscalls.setns(pidfd, kinds)
        os.fchdir(root)
        os.chroot(".")
        os.chdir("/")
        _import_no_more()
        take_on(door.privileges)
        body(Inside(lines_fd))
    except OSError as error:
        _say_error(lines_fd, _cannot_enter(error))
    except RtdebugError as error:
        _say_error(lines_fd, error)
    except Exception as error:
        _say_error(lines_fd, RtdebugError(f"{type(error).__name__}: {error}", "this is a bug in rtdebug"))
    finally:
        os._exit(0)


def _import_no_more() -> None:
    """From here on the files are the container's: nothing of them may be imported (D13)."""
    sys.path.clear()
    sys.meta_path.clear()
    sys.path_hooks.clear()


def _cannot_enter(error: OSError) -> RtdebugError:
    return HostUnable(
        f"cannot enter the container: {error.strerror} ({error.filename or 'setns'})",
        "run rtdebug as root of the host, with CAP_SYS_ADMIN and CAP_SYS_PTRACE; Linux 5.8 or newer",
    )


def _say_error(fd: int, error: RtdebugError) -> None:
    with contextlib.suppress(OSError):
        Inside(fd).say(error=error.message, hint=error.hint, exit_code=error.exit_code)
