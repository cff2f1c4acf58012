"""OomJoiner: OOM kills as the tracepoint gives them, joined with the kernel log, in whatever order they come.

A state machine: time is passed in, nothing is read and nothing waits.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from rtdebug.host.kmsg import KmsgRecord
from rtdebug.oom.dressing import LogLine
from rtdebug.oom.kernel_log import OomLogReader
from rtdebug.oom.kill import OomKill
from rtdebug.oom.record import OomRecord
from rtdebug.oom.report import OomReport, Surroundings, build_report

_KEEP_NS = 10_000_000_000
"""A kill is read from its ring within that time; later the pid may be another process."""
_KEPT_RECORDS = 64


@dataclass(frozen=True, slots=True)
class _Waiting:
    kill: OomKill
    around: Surroundings
    until_ns: int


class OomJoiner:
    """Joins by the victim's pid. Each kill gives one report: when its log is complete, or after `wait_ns`.

    With `wait_ns` 0 (no access to the kernel log) a kill is reported at once. Kills that only the log knows
    are not reported: the tracepoint's filter left them out.
    """

    def __init__(self, wait_ns: int = 300_000_000, linger_ns: int = 50_000_000) -> None:
        self._wait_ns = wait_ns
        self._reader = OomLogReader(linger_ns=linger_ns)
        self._waiting: list[_Waiting] = []
        self._records: deque[tuple[OomRecord, int]] = deque(maxlen=_KEPT_RECORDS)

    def add_kill(self, kill: OomKill, around: Surroundings, now_ns: int) -> list[OomReport]:
        """Take a kill from the tracepoint; gives the reports that are ready."""
        self._waiting.append(_Waiting(kill, around, now_ns + self._wait_ns))
        return self.advance(now_ns)

    def add_message(self, record: KmsgRecord, now_ns: int) -> list[OomReport]:
        """Take a record of the kernel log; gives the reports that are ready."""
        if record.from_kernel:
            line = LogLine(record.message, time_ns=record.time_us * 1000, source="kernel", caller=record.caller)
            self._keep(self._reader.feed(line, now_ns), now_ns)
        return self.advance(now_ns)

    def advance(self, now_ns: int) -> list[OomReport]:
        """The reports that are ready by `now_ns`, in the order of their kills."""
        self._keep(self._reader.flush(now_ns), now_ns)
        reports, waiting = [], []
        for each in self._waiting:
            log = self._log_of(each.kill)
            if log is None and now_ns >= each.until_ns:
                log = self._peek(each.kill)
            elif log is None:
                waiting.append(each)
                continue
            reports.append(build_report(each.kill, log, each.around))
        self._waiting = waiting
        return reports

    def finish(self) -> list[OomReport]:
        """What still waits, as it is: the trace ends."""
        reports = [
            build_report(each.kill, self._log_of(each.kill) or self._peek(each.kill), each.around)
            for each in self._waiting
        ]
        self._waiting = []
        return reports

    @property
    def due_ns(self) -> int | None:
        """When to call `advance` at the latest; None: nothing waits."""
        if not self._waiting:
            return None
        deadline_ns = min(each.until_ns for each in self._waiting)
        over_ns = self._reader.due_ns
        return deadline_ns if over_ns is None else min(deadline_ns, over_ns)

    def _peek(self, kill: OomKill) -> OomRecord | None:
        return self._reader.peek(kill.tid, kill.pid)

    def _log_of(self, kill: OomKill) -> OomRecord | None:
        return next((log for log, _ in reversed(self._records) if log.victim(kill.tid, kill.pid)), None)

    def _keep(self, records: list[OomRecord], now_ns: int) -> None:
        self._records.extend((record, now_ns) for record in records)
        while self._records and now_ns - self._records[0][1] > _KEEP_NS:
            self._records.popleft()
