"""A process inside a container: its namespaces, its root, its cgroup, its privileges, and nothing left of it.

    rtdebug --fork--> keeper --fork, exec--> porter --fork--> experiment process, inside
                      waits for the end of either, kills, and removes the cgroup

The keeper stays outside, holds a pipe of which rtdebug has the other end, and so learns of rtdebug's death, also by
SIGKILL. The porter dies with the keeper and the experiment process with the porter (PR_SET_PDEATHSIG), and with the
container's first process, for it is in its pid namespace.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pickle
import select
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO, NoReturn

from rtdebug.errors import RtdebugError
from rtdebug.host.cgroup import MemoryHierarchy, pids_of
from rtdebug.host.meminfo import parse_meminfo
from rtdebug.host.text import read_text
from rtdebug.madvise.door import Door
from rtdebug.madvise.inside import Inside, Porter, Prepare, a_bug, cannot_enter
from rtdebug.madvise.leaf import Leaf, enter, leaf_folder, make_leaf, remove_leaf

_PROC = Path("/proc")
_MOST_PID_BYTES = 20
_PATIENCE_S = 5.0
_PORTER = """
import pickle, sys
with open(int(sys.argv[1]), "rb") as file:
    sys.path[:] = pickle.load(file)
    work = pickle.load(file)
work()
"""
_MFD_EXEC = 0x10
_KEPT = ("LD_LIBRARY_PATH",)
"""Of the environment; a Python that has its libraries elsewhere does not start without it."""


class Experimenter:
    """rtdebug's end: what the process inside says, and its end."""

    def __init__(self, keeper_pid: int, leaf_folder: Path, lines_fd: int, life_fd: int) -> None:
        self._keeper_pid = keeper_pid
        self._leaf_folder = leaf_folder
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

    def held_bytes(self) -> int:
        """Anonymous and shared memory that the process inside has now; of page cache nothing is counted."""
        texts = (read_text(_PROC / str(pid) / "status") or "" for pid in pids_of(self._leaf_folder))
        return sum(status.get("RssAnon", 0) + status.get("RssShmem", 0) for status in map(parse_meminfo, texts))

    def close(self) -> int | None:
        """End it, and wait until nothing of it is left.

        Returns the signal that ended the process inside; None if none did before.
        """
        with contextlib.suppress(OSError):
            os.close(self._life_fd)
        _, status = os.waitpid(self._keeper_pid, 0)
        os.close(self.lines_fd)
        remove_leaf(self._leaf_folder)  # if the keeper was killed
        code = os.waitstatus_to_exitcode(status)
        return code - 128 if code > 128 else None


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
    return Experimenter(keeper, leaf_folder(hierarchy.path(cgroup), keeper), lines_read, life_write)


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
        code = _attend(door, leaf, prepare, lines_fd, life_fd)
    except OSError as error:
        Inside(lines_fd).say_error(cannot_enter(error))
    except RtdebugError as error:
        Inside(lines_fd).say_error(error)
    except Exception as error:
        Inside(lines_fd).say_error(a_bug(error))
    finally:
        with contextlib.suppress(Exception):
            if leaf is not None:
                remove_leaf(leaf.folder)
        os._exit(code)


def _attend(door: Door, leaf: Leaf, prepare: Prepare, lines_fd: int, life_fd: int) -> int:
    """From the porter's start to its end, or to that of rtdebug, which ends it too. Its exit status."""
    keeper, other = socket.socketpair()
    with keeper:
        with other:
            porter = _start(door, leaf, prepare, lines_fd, other.fileno())
        experiment = None
        try:
            if _first(keeper.fileno(), life_fd) and (said := keeper.recv(_MOST_PID_BYTES)):
                experiment = os.pidfd_open(int(said))
                _admit(int(said), door, leaf, keeper)
            _first(os.pidfd_open(porter.pid), life_fd)
            code = porter.poll()
        finally:
            _end(porter, experiment)
    return 128 - code if code is not None and code < 0 else code or 0


def _end(porter: subprocess.Popen[bytes], experiment: int | None) -> None:
    """The porter ends with the experiment process, and has waited for it: no zombie is left for somebody else."""
    with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
        if experiment is not None and porter.poll() is None:
            signal.pidfd_send_signal(experiment, signal.SIGKILL)
            porter.wait(_PATIENCE_S)
    porter.kill()
    porter.wait()


def _start(door: Door, leaf: Leaf, prepare: Prepare, lines_fd: int, keeper_fd: int) -> subprocess.Popen[bytes]:
    """The porter: a fresh Python, which learns what it has to do from a file without a name."""
    pidfd = os.pidfd_open(door.pid)
    root_fd = os.open(_PROC / str(door.pid) / "root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    work = Porter(door, leaf, prepare, lines_fd, keeper_fd, pidfd, root_fd)
    with os.fdopen(os.memfd_create("rtdebug-porter"), "w+b") as file, _sealed_copy(Path(sys.executable)) as program:
        pickle.dump([str(Path(path).absolute()) for path in sys.path], file)
        pickle.dump(work, file)
        file.seek(0)
        porter = subprocess.Popen(
            [sys.executable, "-I", "-c", _PORTER, str(file.fileno())],
            executable=f"/proc/{os.getpid()}/fd/{program.fileno()}",
            env={key: os.environ[key] for key in _KEPT if key in os.environ},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(file.fileno(), lines_fd, keeper_fd, pidfd, root_fd),
        )
    os.close(pidfd)
    os.close(root_fd)
    return porter


def _sealed_copy(program: Path) -> BinaryIO:
    """A copy of it in memory that nobody can change.

    Through /proc/PID/exe a container with CAP_SYS_PTRACE could else write to the host's Python (as in CVE-2019-5736).
    """
    try:
        fd = os.memfd_create("rtdebug-python", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | _MFD_EXEC)
    except OSError:  # EINVAL, before Linux 6.3
        fd = os.memfd_create("rtdebug-python", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    copy = os.fdopen(fd, "w+b")
    with program.open("rb") as original:
        shutil.copyfileobj(original, copy)
    copy.flush()
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
    return copy


def _admit(pid: int, door: Door, leaf: Leaf, keeper: socket.socket) -> None:
    """Let the experiment process begin, counted where it belongs."""
    enter(leaf, door.pid, pid)
    smaps_fd = os.open(_PROC / str(pid) / "smaps", os.O_RDONLY | os.O_CLOEXEC)
    socket.send_fds(keeper, [b"."], [smaps_fd])
    os.close(smaps_fd)


def _first(fd: int, life_fd: int) -> bool:
    """Wait until there is something on `fd`, or rtdebug has ended; whether rtdebug still lives."""
    ready, _, _ = select.select([fd, life_fd], [], [])
    return life_fd not in ready
