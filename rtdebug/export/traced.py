"""The trace behind the counters: `rtdebug trace --all` in a helper process, which sends what it adds up."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rtdebug.errors import HostUnable, RtdebugError
from rtdebug.export.counters import Counters, Delta, Key, LastKill
from rtdebug.export.helper import Helper
from rtdebug.export.messages import Receiver, send
from rtdebug.tracing.line import EventLine, Value

EVENTS = ("madvise", "process_madvise", "shm_full", "sigbus", "oom_kill")
"""Those that are counted."""
_AGAIN_S = 60.0
_LONGEST_INTERVAL_S = 5.0
"""Between two messages."""
_REASONS = ("tmpfs_full", "beyond_end_of_file", "hwpoison")


@dataclass(frozen=True, slots=True)
class Ready:
    """The programs are attached."""


@dataclass(frozen=True, slots=True)
class Lost:
    """How many events were lost since the trace began."""

    events: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The trace cannot run, or ended."""

    message: str
    hint: str
    lasting: bool
    """This host, or this process, cannot trace at all: nobody tries again."""


@dataclass(slots=True)
class _Sum:
    line: EventLine
    counts: dict[Key, int] = field(default_factory=dict)
    last_kill: LastKill | None = None


class Adder:
    """A sink for the trace: adds up lines by container, and sends the sums."""

    def __init__(self, send_message: Callable[[object], object]) -> None:
        self._send = send_message
        self._sums: dict[tuple[str | None, str | None], _Sum] = {}
        """By container; of none that the trace knows: by cgroup."""

    def lines(self, lines: Sequence[EventLine]) -> None:
        """Add lines up. An OOM kill is sent at once."""
        for line in lines:
            key = line.container_id, line.cgroup if line.container_id is None else None
            found = self._sums.setdefault(key, _Sum(line))
            if line.container_name is not None:
                found.line = line
            for counter, count in keys_of(line).items():
                found.counts[counter] = found.counts.get(counter, 0) + count
            if line.event == "oom_kill":
                found.last_kill = LastKill(line.time_ns / 1e9, _rss_bytes(line.fields))
        if any(line.event == "oom_kill" for line in lines):
            self.flush()

    def flush(self) -> None:
        """Send what was added up."""
        sums, self._sums = self._sums, {}
        for found in sums.values():
            line = found.line
            who = line.container_id, line.container_name, line.runtime, line.cgroup
            self._send(Delta(*who, found.counts, found.last_kill))


def keys_of(line: EventLine) -> dict[Key, int]:
    """What a line adds to which counters."""
    fields = line.fields
    if line.event == "oom_kill":
        victim = (_text(fields.get("oom_memcg")), _text(fields.get("limit_owner")), line.comm or "")
        return {("oom_kills",): 1, ("oom_victims", *victim): 1}
    if line.event == "sigbus":
        reason = fields.get("reason")
        return {("sigbus", reason if isinstance(reason, str) and reason in _REASONS else "other"): 1}
    if line.event == "shm_full":
        return {("shm_full",): 1}
    if line.event in ("madvise", "process_madvise"):
        advice = _text(fields.get("advice"))
        advice = advice if advice.startswith("MADV_") else "other"  # numbers that mean nothing, by the million
        calls, failed = _number(fields.get("count")) or 1, _number(fields.get("failures")) or 0
        counts: dict[Key, int] = {}
        if calls > failed:
            counts["madvise_calls", line.event, advice, "ok"] = calls - failed
            counts["madvise_bytes", line.event, advice] = 0 if failed else _number(fields.get("length_bytes")) or 0
        if failed:
            counts["madvise_calls", line.event, advice, "failed"] = failed
        return counts
    return {}


class TraceProcess:
    """The trace's process. It is started again when it ends unexpectedly; its counters go to `counters`."""

    def __init__(
        self,
        counters: Counters,
        notice: Callable[[str], object],
        interval_s: float = _LONGEST_INTERVAL_S,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._counters = counters
        self._interval_s = min(interval_s, _LONGEST_INTERVAL_S)
        self._notice = notice
        self._now_s = now_s
        self._helper: Helper | None = None
        self._news: Receiver | None = None
        self._start_s: float | None = now_s()
        """When to start it; None: it runs, or never will."""
        self._lost_before = self._lost_now = 0
        self.is_up = False
        """It is attached."""

    @property
    def lost(self) -> int:
        """Events that were lost."""
        return self._lost_before + self._lost_now

    @property
    def wake_fds(self) -> tuple[int, ...]:
        """Readable when there is news."""
        return () if self._news is None else (self._news.fd,)

    def advance(self) -> None:
        """Start it if it is time, and take its news. Never waits."""
        if self._start_s is not None and self._now_s() >= self._start_s and self._is_gone():
            self._start()
        while self._news is not None and (messages := self._news.receive(0)):
            for message in messages:
                self._take(message)
        if self._news is not None and not self._news.is_open:
            self._ended()

    def close(self) -> None:
        """End it: it detaches when nobody reads what it sends."""
        if self._news is not None:
            self._news.close()
            self._news = None
        if self._helper is not None:
            self._helper.end(10.0)
        self._start_s = None

    def _start(self) -> None:
        read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
        self._helper = Helper(lambda: run_trace(write_fd, self._interval_s), (write_fd,))
        os.close(write_fd)
        self._news = Receiver(read_fd)
        self._start_s = None

    def _take(self, message: object) -> None:
        if isinstance(message, Delta):
            self._counters.add(message)
        elif isinstance(message, Lost):
            self._lost_now = message.events
        elif isinstance(message, Ready):
            self.is_up = True
        elif isinstance(message, Failed):
            self._notice(f"no trace: {message.message}" + (f" ({message.hint})" if message.hint else ""))
            self._start_s = None if message.lasting else self._now_s() + _AGAIN_S

    def _ended(self) -> None:
        assert self._news is not None
        self._news.close()
        self._news = None
        if self.is_up and self._start_s is None:
            self._notice(f"the trace has ended: it is started again in {_AGAIN_S:.0f} s")
            self._start_s = self._now_s() + _AGAIN_S
        self.is_up = False
        self._lost_before, self._lost_now = self.lost, 0

    def _is_gone(self) -> bool:
        return self._helper is None or self._helper.is_over()


def run_trace(fd: int, interval_s: float) -> None:
    """Trace the whole host until the other end of `fd` is closed. Runs in a process of its own."""
    try:
        _trace(fd, interval_s)
    except HostUnable as error:
        send(fd, Failed(error.message, error.hint.replace("\n", "; "), lasting=True))
    except RtdebugError as error:
        send(fd, Failed(error.message, error.hint.replace("\n", "; "), lasting=False))


def _trace(fd: int, interval_s: float) -> None:
    from rtdebug.containers.owners import owners
    from rtdebug.host.child import in_child
    from rtdebug.host.reasons import every_reason
    from rtdebug.live import LiveOptions, LiveTrace, known_containers
    from rtdebug.tracing.options import TraceOptions, lost_events
    from rtdebug.tracing.schema import load_schema
    from rtdebug.tracing.scope import make_scope
    from rtdebug.tracing.session import Session

    adder = Adder(lambda message: send(fd, message))
    with every_reason():
        owner = owners(in_child(known_containers))
        session = Session(make_scope(None), TraceOptions(EVENTS), load_schema(), owner)

        def tick() -> None:
            adder.flush()
            send(fd, Lost(lost_events(session.lost())))

        with session:
            options = LiveOptions(interval_s=interval_s, reader_fd=fd, tick=tick)
            LiveTrace(session, options, adder, lambda _text: None).run(lambda: send(fd, Ready()))


def _rss_bytes(fields: Mapping[str, Value]) -> int | None:
    parts = [_number(fields.get(f"{kind}_rss_bytes")) for kind in ("anon", "file", "shmem")]
    known = [part for part in parts if part is not None]
    return sum(known) if known else None


def _number(value: Value) -> int | None:
    return value if isinstance(value, int) else None


def _text(value: Value) -> str:
    return value if isinstance(value, str) else ""
