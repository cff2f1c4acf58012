"""Helper: a forked process that does one part of the exporter's work, and never outlives it.

Parts are processes and not threads, so that what blocks in the kernel (a FUSE file system that does not answer) can be
left behind, what faces the network has no rights, and what a trace needs is apart from what a scrape needs.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable, Collection

_PR_SET_PDEATHSIG = 1
_POLL_S = 0.01


class Helper:
    """A forked process that calls `work` and ends; of our descriptors it has those of `keep` and the standard ones."""

    def __init__(self, work: Callable[[], object], keep: Collection[int]) -> None:
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            _work(work, keep, parent)

    def is_over(self) -> bool:
        """Whether it has ended and was reaped. One that hangs in the kernel may not end although it was killed."""
        if self.pid == 0:
            return True
        try:
            ended, _ = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:
            ended = self.pid
        if ended:
            self.pid = 0
        return bool(ended)

    def kill(self) -> None:
        """Kill it; is_over() says when it has gone."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)

    def end(self, patience_s: float) -> None:
        """Wait for its end; kill it when that takes longer, and do not wait for one that cannot even be killed."""
        if not self._waited(patience_s):
            self.kill()
            self._waited(1.0)

    def _waited(self, patience_s: float) -> bool:
        until = time.monotonic() + patience_s
        while not self.is_over():
            if time.monotonic() > until:
                return False
            time.sleep(_POLL_S)
        return True


def _work(work: Callable[[], object], keep: Collection[int], parent: int) -> None:
    """Never returns."""
    status = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            return
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal: we are told to end in our own way
        _close_all_but({0, 1, 2, *keep})
        work()
        status = 0
    except Exception:
        if os.environ.get("RTDEBUG_TRACEBACK"):
            import traceback

            traceback.print_exc()
    finally:
        os._exit(status)


def _close_all_but(keep: Collection[int]) -> None:
    low = 0
    for fd in [*sorted(keep), max(keep) + 1 + os.sysconf("SC_OPEN_MAX")]:
        if fd > low:  # an empty range would be taken for one without end
            os.closerange(low, fd)
        low = fd + 1
