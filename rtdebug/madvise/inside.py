"""The way into a container, from the side of the process that goes: what is seen there must know nothing.

    keeper --fork, exec--> porter --fork--> experiment process

A process inside a container can be looked into by one of the container with CAP_SYS_PTRACE. So it is no fork of
rtdebug, which has an environment, what runtimes told it, and the user's terminal: the porter is a fresh Python with an
empty environment and no streams. It stays in the host's pid namespace, where the container does not see it. Only its
child is in the container's, and is made when the porter has given up all rights that the container does not have.
"""

from __future__ import annotations

import array  # noqa: F401 - socket imports it late, when nothing can be imported any more
import contextlib
import gc
import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rtdebug.errors import HostUnable, RtdebugError
from rtdebug.madvise import syscalls
from rtdebug.madvise.door import Door
from rtdebug.madvise.leaf import Leaf
from rtdebug.madvise.privileges import take_on

Body = Callable[["Inside"], None]
Prepare = Callable[[Leaf], Body]
"""Called in the porter while it still sees the host: imports, opens files. What it returns runs inside. It is pickled:
a function of a module, or a partial() of one."""


class Inside:
    """What the experiment process has to speak with, and to look at itself."""

    def __init__(self, lines_fd: int, smaps_fd: int = -1) -> None:
        self._fd = lines_fd
        self.smaps_fd = smaps_fd
        """Its own smaps: the container's /proc may be absent, or a trap."""

    def say(self, **values: object) -> None:
        """Send one object to rtdebug."""
        line = memoryview((json.dumps(values) + "\n").encode())
        while line:
            line = line[os.write(self._fd, line) :]

    def say_error(self, error: RtdebugError) -> None:
        """Send what rtdebug shall raise."""
        with contextlib.suppress(OSError):
            self.say(error=error.message, hint=error.hint, exit_code=error.exit_code)


@dataclass(frozen=True, slots=True)
class Porter:
    """The porter's work; the numbers are of descriptors that it inherits."""

    door: Door
    leaf: Leaf
    prepare: Prepare
    lines_fd: int
    keeper_fd: int
    """A socket: the keeper is told the pid of the experiment process, and gives its smaps when it may begin."""
    pidfd: int
    root_fd: int

    def __call__(self) -> None:
        """Never returns. The way in has an order: what needs the host's rights and files comes first."""
        code = 1
        try:
            syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
            Path("/proc/self/oom_score_adj").write_text("1000")  # before anybody of the container
            body = self.prepare(self.leaf)
            self._go_in()
            code = self._run(body)
        except OSError as error:
            Inside(self.lines_fd).say_error(cannot_enter(error))
        except RtdebugError as error:
            Inside(self.lines_fd).say_error(error)
        except Exception as error:
            Inside(self.lines_fd).say_error(a_bug(error))
        finally:
            os._exit(code)

    def _go_in(self) -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
        resource.setrlimit(resource.RLIMIT_NPROC, (hard, hard))  # the container's user may have many processes
        if self.door.kinds:
            syscalls.setns(self.pidfd, self.door.kinds)
        os.fchdir(self.root_fd)
        os.chroot(".")
        os.chdir("/")
        os.close(self.root_fd)
        os.close(self.pidfd)
        _import_no_more()
        take_on(self.door.privileges)

    def _run(self, body: Body) -> int:
        """As its child, which is the first to be in the container's pid namespace. As a shell has it: 128 + signal."""
        gc.collect()
        gc.freeze()  # what is shared with the child stays shared, and the container is not charged for copies
        child = os.fork()
        if child == 0:
            _experiment(body, self.lines_fd, self.keeper_fd)
        os.close(self.lines_fd)
        os.write(self.keeper_fd, str(child).encode())
        os.close(self.keeper_fd)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        return 128 - code if code < 0 else code


def _experiment(body: Body, lines_fd: int, keeper_fd: int) -> None:
    """Be the experiment process. Never returns."""
    inside = Inside(lines_fd)
    try:
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
        with socket.socket(fileno=keeper_fd) as keeper:
            _, fds, _, _ = socket.recv_fds(keeper, 1, 1)
        if fds:  # else nobody is there any more
            body(Inside(lines_fd, fds[0]))
    except RtdebugError as error:
        inside.say_error(error)
    except Exception as error:
        inside.say_error(a_bug(error))
    finally:
        os._exit(0)


def _import_no_more() -> None:
    """From here on the files are the container's: nothing of them may be imported (D13)."""
    sys.path.clear()
    sys.meta_path.clear()
    sys.path_hooks.clear()


def cannot_enter(error: OSError) -> RtdebugError:
    """What to tell of a failure on the way in."""
    return HostUnable(
        f"cannot enter the container: {error.strerror} ({error.filename or 'setns'})",
        "run rtdebug as root of the host, with CAP_SYS_ADMIN and CAP_SYS_PTRACE; Linux 5.8 or newer",
    )


def a_bug(error: Exception) -> RtdebugError:
    """What to tell of an exception that nobody expected."""
    return RtdebugError(f"{type(error).__name__}: {error}", "this is a bug in rtdebug")
