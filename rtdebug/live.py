"""The live trace: a session, the OOM kills, the container's life and the recording, run as one loop.

What it shows goes to a `Sink`; it prints nothing itself.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import select
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rtdebug.containers.model import Container
from rtdebug.containers.owners import owners
from rtdebug.errors import NotRunning, RtdebugError
from rtdebug.host.child import Child
from rtdebug.host.process import is_running
from rtdebug.host.signals import on_stop_signals
from rtdebug.oom.report import OomReport
from rtdebug.oom.watch import OomWatch
from rtdebug.tracing.entries import line_entry
from rtdebug.tracing.line import EventLine
from rtdebug.tracing.linked import still_linked
from rtdebug.tracing.options import EVENTS, lost_events
from rtdebug.tracing.recording import End, RecordingWriter
from rtdebug.tracing.scope import Scope
from rtdebug.tracing.session import Session, still_mapped_bytes
from rtdebug.tracing.summary import SharedKey, Summary, SummaryBuilder

_MS = 1_000_000
_S = 1_000_000_000
_IDLE_NS = 250 * _MS
_CALLS_NS = 10 * _MS
_NO_CALLS_NS = 25 * _MS
"""Calls are drained so often while they come, and looked for so often while none do: they do not wake us, and their
ring of 8 MiB fills in 75 ms at full speed."""
_FULL_SHARE = 0.1
"""A ring of calls that is fuller than this after draining is drained again at once."""
_LINES_AT_ONCE = 256
_GRACE_NS = 400 * _MS
"""After the container's end: its last processes exit, and the kernel log of a kill comes in."""
_LINKED_NS = 5 * _S
_ALARM_NS = 200 * _MS
"""Between two looks at a container's shared memory: usually, and when something went wrong."""
_ALARMS = frozenset({"oom_kill", "shm_full", "sigbus"})
_LOOK_NS = 500 * _MS
"""So often a container is looked for that is to be started again."""


class Sink(Protocol):
    """Where the lines go. May raise BrokenPipeError: its reader went away."""

    def lines(self, lines: Sequence[EventLine]) -> None:
        """Show a batch of lines."""


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """How a live trace runs."""

    duration_s: float | None = None
    interval_s: float = 1.0
    """Between two lines of the same aggregated call."""
    reader_fd: int | None = None
    """The other end of this descriptor reads what the sink writes; the trace ends when it is closed."""
    follow: Callable[[], Container | None] | None = None
    """Finds the container again after its end; None: the trace ends with it."""
    tick: Callable[[], object] | None = None
    """Called once an interval, whether something happened or not."""


class LiveTrace:
    """One run. `notice` gets what the user should know while it runs."""

    def __init__(
        self,
        session: Session,
        options: LiveOptions,
        sink: Sink,
        notice: Callable[[str], object],
        open_writer: Callable[[], RecordingWriter] | None = None,
    ) -> None:
        self._session = session
        self._options = options
        self._sink: Sink | None = sink
        self._notice = notice
        self._open_writer = open_writer
        self._writer: RecordingWriter | None = None
        asked = session.options
        self._summary = SummaryBuilder(frozenset(asked.events), everyone=asked.pid is None and asked.comm is None)
        self._attached_ns: int | None = None
        self._stop = False
        self._had_calls = False
        self._lost_told = 0
        self._lost_events_told = 0
        self._compat_told: set[int] = set()
        self._oom = OomWatch(session.scope.hierarchy, session.decoder.processes, mmap.PAGESIZE)
        self._life = _Life(session.scope)
        self._names = _Names(session)
        self._linked = _Linked(session.scope)

    def run(self, ready: Callable[[], object]) -> Summary:
        """Trace until the container ends, the duration is over, or SIGINT or SIGTERM; then return the summary.

        `ready` is called when all is attached. Whatever ends it, the recording is finished.
        """
        stop_signals = on_stop_signals(self._on_signal)
        with stop_signals as wakeup_fd, contextlib.closing(self._oom), contextlib.closing(self._life):
            self._start()
            self._follow_memory()
            if self._oom.problem and "oom_kill" in self._session.options.events:
                self._notice(f"{self._oom.problem}: OOM reports will lack what only the kernel log says")
            ready()
            try:
                self._loop(wakeup_fd)
            finally:
                summary = self._finish()
            return summary

    @property
    def recorded(self) -> bool:
        """Say whether the recording is whole up to the end."""
        return self._writer is not None and not self._writer.stopped

    def _start(self) -> None:
        try:
            if self._open_writer is not None:  # only now, when a signal is met by us and leaves no file behind
                self._writer = self._session.recorder = self._open_writer()
            self._session.start()
        except BaseException:
            if self._writer is not None:
                self._writer.discard()
            raise
        self._attached_ns = time.time_ns()

    # --- the loop ---

    def _loop(self, wakeup_fd: int) -> None:
        poller = select.poll()
        for fd in (*self._session.wake_fds, self._oom.fileno(), wakeup_fd):
            if fd is not None:
                poller.register(fd, select.POLLIN)
        if self._options.reader_fd is not None:
            poller.register(self._options.reader_fd, 0)  # no event but that the other end was closed
        now_ns = time.monotonic_ns()
        end_ns = now_ns + int(self._options.duration_s * _S) if self._options.duration_s else None
        interval_ns = int(self._options.interval_s * _S)
        next_ns = now_ns + interval_ns
        while not self._stop:
            ready = poller.poll(self._timeout_ms(time.monotonic_ns(), end_ns, next_ns))
            if any(fd == self._options.reader_fd for fd, _ in ready):
                raise BrokenPipeError(errno.EPIPE, "the reader of the output is gone")
            now_ns = time.monotonic_ns()
            lines = self._drain(now_ns)
            if now_ns >= next_ns or self._session.aggregates_are_due():
                lines += self._session.aggregated()
            if now_ns >= next_ns:
                self._tell_news()
                self._session.keep_time()
                if self._options.tick is not None:
                    self._options.tick()
                next_ns = max(next_ns + interval_ns, now_ns)
            self._names.look(now_ns)
            self._linked.look(now_ns, alarm=any(line.event in _ALARMS for line in lines))
            self._show(lines)
            if end_ns is not None and now_ns >= end_ns:
                return
            if self._life.is_over(now_ns) and not self._wait_for_restart(now_ns):
                return

    def _timeout_ms(self, now_ns: int, end_ns: int | None, next_ns: int) -> float:
        if self._session.calls_waiting_share() > _FULL_SHARE:
            return 0
        idle_ns = _IDLE_NS
        if self._session.options.every_call:
            idle_ns = _CALLS_NS if self._had_calls else _NO_CALLS_NS
        times_ns = [now_ns + idle_ns, next_ns, end_ns, self._oom.due_ns, self._life.due_ns(now_ns)]
        return max(0, min(when for when in times_ns if when is not None) - now_ns) / _MS

    def _drain(self, now_ns: int) -> list[EventLine]:
        self._had_calls = self._session.calls_waiting_share() > 0
        # the kernel's own oom_kill record gives way to the joined report
        lines = [line for line in self._session.drain() if line.event != "oom_kill"]
        reports: list[OomReport] = []
        for kill in self._session.kills:
            reports += self._oom.add_kill(kill, now_ns)
        self._session.kills.clear()
        reports += self._oom.advance(now_ns)
        return lines + self._report_lines(reports)

    def _report_lines(self, reports: Sequence[OomReport]) -> list[EventLine]:
        lines = [report.to_line(self._session.decoder.clock_offset_ns) for report in reports]
        if self._writer is not None:
            self._writer.entries(map(line_entry, lines))
        return lines

    def _show(self, lines: list[EventLine]) -> None:
        for line in self._session.summary_calls:
            self._summary.add(line)
        self._session.summary_calls.clear()
        for line in lines:
            self._summary.add(line)
        for start in range(0, len(lines), _LINES_AT_ONCE):
            if self._sink is None:
                return
            try:
                self._sink.lines(lines[start : start + _LINES_AT_ONCE])
            except OSError:
                self._sink = None  # whatever else is to be shown: it would fail again, and there is a recording to end
                raise

    def _tell_news(self) -> None:
        lost = self._session.lost()
        total = sum(lost.values())
        if total > self._lost_told:
            if self._writer is not None:
                self._writer.lost(lost)
            events = lost_events(lost)
            detail = ", ".join(f"{count} {event}" for event, count in sorted(lost.items()) if event in EVENTS)
            if events > self._lost_events_told:
                more = events - self._lost_events_told
                self._notice(f"{more} events lost, {events} in all ({detail}): the buffer was full")
                self._lost_events_told = events
            else:
                self._notice(f"{total - self._lost_told} process records lost: names of processes may be missing")
            self._lost_told = total
            self._session.forget_the_gone()
        for pid in self._session.compat_pids - self._compat_told:
            self._compat_told.add(pid)
            self._notice(f"process {pid} runs a 32-bit program: its system calls are not decoded")

    # --- the container's life ---

    def _follow_memory(self) -> None:
        container = self._session.scope.container
        if container is not None and container.cgroup is not None:
            self._oom.follow(container.cgroup)
            self._oom.advance(time.monotonic_ns())

    def _wait_for_restart(self, now_ns: int) -> bool:
        """Go on with the same container started again; False when the trace is not to wait for it."""
        if self._options.follow is None:
            return False
        if not self._life.may_look(now_ns):
            return True
        ended = self._session.scope.container
        if ended is not None and self._life.is_news:
            self._life.is_news = False
            self._notice(f"{ended.name or ended.id} has ended: waiting for it to be started again")
        container = self._options.follow()
        if container is None:
            return True
        self._notice(f"{container.name or container.id} was started again: tracing goes on")
        self._session.follow(container)
        self._life.close()
        self._life = _Life(self._session.scope)
        self._linked = _Linked(self._session.scope)
        self._follow_memory()
        return True

    # --- the end ---

    def _finish(self) -> Summary:
        """Detach, take what is left, finish the recording, add up."""
        self._session.detach()
        now_ns = time.monotonic_ns()
        broken: OSError | None = None
        for lines in self._last_lines(now_ns):
            try:
                self._show(lines)
            except OSError as error:
                broken = error
        self._tell_news()
        lost = self._session.lost()
        # who has exited has nothing mapped; a pid that lives again has its new owner's
        mapped = dict.fromkeys(self._session.exited_pids, 0) | still_mapped_bytes(self._session.first_vm_bytes)
        linked = still_linked(self._session.scope.container, self._session.scope.all)
        last_sizes = self._linked.last
        ended_ns = time.time_ns()
        if self._writer is not None:
            self._writer.lost(lost)
            self._writer.end(End(ended_ns, lost, mapped, linked, last_sizes, attached_ns=self._attached_ns))
            self._writer.close()
        if broken is not None:
            raise broken
        attached_ns = self._attached_ns or ended_ns
        return self._summary.finish(attached_ns, ended_ns, lost_events(lost), mapped, linked, last_sizes)

    def _last_lines(self, now_ns: int) -> Iterator[list[EventLine]]:
        while lines := self._drain(now_ns):
            yield lines
        yield self._session.aggregated() + self._report_lines(self._oom.finish(now_ns))

    def _on_signal(self) -> None:
        """End the trace properly, but at once while it starts, or the second time."""
        if self._stop or self._attached_ns is None:
            raise KeyboardInterrupt
        self._stop = True


class _Names:
    """The whole host is traced: a child asks the runtimes for new containers, for one of them may be slow.

    A cgroup is made before its runtime says anything of the container, so there is a second look later. A host
    where cgroups come and go all the time is asked seldom: a look takes a twentieth of the time at most.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._child: Child[tuple[Container, ...]] | None = None
        self._began_ns = 0
        self._next_ns = 0
        self._looks = 0

    def look(self, now_ns: int) -> None:
        """Begin a look if one is due, or take its answer."""
        if self._session.has_new_cgroups:
            self._session.has_new_cgroups = False
            self._looks = 2
        if self._child is not None and self._child.is_done():
            with contextlib.suppress(RtdebugError):
                self._session.name_owners(owners(self._child.result()))
            self._child = None
            self._next_ns = now_ns + max(_S, 20 * (now_ns - self._began_ns))
        if self._child is None and self._looks and now_ns >= self._next_ns:
            self._looks -= 1
            self._began_ns = now_ns
            self._child = Child(known_containers)


class _Linked:
    """The shared memory a container had when last seen: what it wrote into files, no event tells."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._next_ns = 0
        self._alarm_ns = 0
        self.last: dict[SharedKey, int | None] = {}

    def look(self, now_ns: int, alarm: bool) -> None:
        """Look from time to time, and when something went wrong: the container may end of it."""
        if self._scope.all or now_ns < (self._alarm_ns if alarm else self._next_ns):
            return
        self._next_ns, self._alarm_ns = now_ns + _LINKED_NS, now_ns + _ALARM_NS
        self.last = still_linked(self._scope.container, False) or self.last


class _Life:
    """Whether the container still lives: its init process, or for a bare cgroup the cgroup itself."""

    def __init__(self, scope: Scope) -> None:
        self._folder: Path | None = scope.folder
        self._over_since_ns: int | None = None
        self.is_news = True
        """Nobody was told yet that it ended."""
        self._next_look_ns = 0
        self._pidfd: int | None = None
        self._pid = scope.container.pid if scope.container else None
        self._endless = scope.all
        if self._pid is not None:
            with contextlib.suppress(OSError):
                self._pidfd = os.pidfd_open(self._pid)

    def close(self) -> None:
        """Close the pidfd."""
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None

    def is_over(self, now_ns: int) -> bool:
        """Say whether it ended, and what it left behind had its time."""
        if self._endless or self._lives():
            return False
        if self._over_since_ns is None:
            self._over_since_ns = now_ns
        return now_ns - self._over_since_ns >= _GRACE_NS

    def due_ns(self, now_ns: int) -> int | None:
        """When to ask again at the latest."""
        if self._over_since_ns is not None and now_ns - self._over_since_ns < _GRACE_NS:
            return self._over_since_ns + _GRACE_NS
        return None

    def may_look(self, now_ns: int) -> bool:
        """Say whether it is time to look for it again."""
        if now_ns < self._next_look_ns:
            return False
        self._next_look_ns = now_ns + _LOOK_NS
        return True

    def _lives(self) -> bool:
        if self._pidfd is not None:
            return not select.select([self._pidfd], [], [], 0)[0]
        if self._pid is not None:
            return is_running(self._pid)
        return self._folder is not None and self._folder.exists()


def known_containers() -> tuple[Container, ...]:
    """Return the containers of this host: call it in a child."""
    from rtdebug.containers.inventory import list_containers

    return list_containers().containers


def wait_for(find: Callable[[], Container], notice: Callable[[str], object]) -> Container:
    """Return the container that `find` finds, as soon as it runs. Raises TargetError when there is none such at all."""
    told = False
    while True:
        try:
            return find()
        except NotRunning as error:
            if not told:
                notice(f"{error.message}: waiting for it to start")
                told = True
            time.sleep(_LOOK_NS / _S)


def find_again(find: Callable[[], Container]) -> Callable[[], Container | None]:
    """Return a `follow`: gives the container that `find` finds, None while it finds none that runs."""

    def look() -> Container | None:
        try:
            container = find()
        except RtdebugError:
            return None
        return container if container.is_running else None

    return look
