"""The kernel's text about OOM kills, read as it comes: messages in, OomRecords out.

Parts may be missing: the dump of a kill is rate-limited (`oom_kill_process: N callbacks suppressed`), pastes
are cut, and the log may have turned round. Whatever part comes first opens a record.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import ClassVar

from rtdebug.oom.draft import OomDraft
from rtdebug.oom.dressing import ELLIPSES, LogLine
from rtdebug.oom.lines import (
    CONSTRAINTS,
    PATTERNS,
    SYSTEMD_UNIT,
    WITH_COMM,
    add_host,
    before_cut,
    kinds_of,
    parse_counter,
    parse_inline_stat,
    parse_killed,
    parse_reaped,
    parse_summary,
    parse_task_row,
    parse_trigger,
)
from rtdebug.oom.record import HostMemory, OomRecord, Selected, Trigger, Victim
from rtdebug.oom.undress import undress

_LINGER_NS = 2_000_000_000
_STALE_NS = 30_000_000_000
_OPEN_AT_MOST = 8
_SLAB_MEMCGS_AT_MOST = 16
_SEEN_AT_MOST = 1024


def read_oom_log(lines: Iterable[str]) -> list[OomRecord]:
    """All OOM kills in the text of a log, dressed in whatever way, in the order they began."""
    reader = OomLogReader()
    records = [record for line in undress(lines) for record in reader.feed(line)]
    return records + reader.flush()


class OomLogReader:
    """Takes kernel messages one by one and gives each OOM kill, in order, when no more can belong to it.

    A kill is over when its victims are reaped and the next one begins, or after `linger_ns`; one whose dump
    never comes to an end is given up after `stale_ns`. Times are those passed to `feed` and `flush`, else the
    lines' own; without any, the end of the input ends it.
    """

    def __init__(self, linger_ns: int = _LINGER_NS, stale_ns: int = _STALE_NS) -> None:
        self._linger_ns = linger_ns
        self._stale_ns = stale_ns
        self._now_ns: int | None = None
        self._open: list[OomDraft] = []
        self._past_victims: deque[int] = deque(maxlen=64)
        self._cpu_line: tuple[LogLine, Trigger] | None = None
        self._suppressed: int | None = None
        self._host: HostMemory | None = None
        self._slab_memcgs: dict[str, None] = {}
        self._by_hand = False
        self._seen: dict[tuple[str | None, int, str], None] = {}

    def feed(self, line: LogLine, now_ns: int | None = None) -> list[OomRecord]:
        """Take one message; gives the kills that are over because of it."""
        self._now_ns = now_ns if now_ns is not None else line.time_ns
        stale = self._pop_while(self._is_stale)  # before they take a line that is of another kill
        if line.from_kernel and not self._is_repeated(line):
            self._take(line)
        elif (
            line.source == "systemd"
            and (match := SYSTEMD_UNIT.match(line.message))
            and (episode := self._newest(line))
        ):
            episode.unit = match["unit"]
        return stale + self._finish()

    def flush(self, now_ns: int | None = None) -> list[OomRecord]:
        """The kills that are over by `now_ns`; without it all, as they are."""
        self._now_ns = now_ns
        return self._finish(everything=now_ns is None)

    def peek(self, *pids: int) -> OomRecord | None:
        """The kill of one of `pids` as far as it is known, if it is not over yet."""
        for episode in reversed(self._open):
            chosen = {episode.chosen.pid} if episode.chosen else set()
            if not (episode.victims.keys() | chosen).isdisjoint(pids):
                return replace(episode.record(), cut=True)
        return None

    @property
    def due_ns(self) -> int | None:
        """When the first of the kills whose outcome is known will be over, if no more lines come."""
        due = [e.touched_ns + self._linger_ns for e in self._open if e.over and e.touched_ns is not None]
        return min(due, default=None)

    def _is_repeated(self, line: LogLine) -> bool:
        """The same words at the same microsecond: from two logs, or pasted twice."""
        if line.time_ns is None:
            return False
        key = line.host, line.time_ns, line.message
        if key in self._seen:
            return True
        self._seen[key] = None
        if len(self._seen) > _SEEN_AT_MOST:
            del self._seen[next(iter(self._seen))]
        return False

    def _take(self, line: LogLine) -> None:
        message = line.message
        cut = message.endswith(ELLIPSES) and not message.endswith("no killable processes...")
        if cut:
            message = before_cut(message)
            line = replace(line, message=message)
        for kind in WITH_COMM if "\n" in message else kinds_of(message):
            if match := PATTERNS[kind].match(message):
                episode = self._handlers[kind](self, match, line, cut)
                break
        else:
            episode = None
            if "\n" in message:
                for part in message.split("\n"):
                    self._take(replace(line, message=part.strip()))
        if cut and (episode := episode or self._dumping(line)):
            episode.cut = True

    # Which record a line belongs to. The kernel dumps one OOM at a time (oom_lock); v1 kernels before 4.x did
    # not, there printk's caller id tells two CPUs apart, or that a record has such a line already.

    def _newest(
        self, line: LogLine, wanted: Callable[[OomDraft], bool] = lambda _: True, caller: str | None = None
    ) -> OomDraft | None:
        for episode in reversed(self._open):
            elsewhere = line.host is not None and episode.first.host not in (None, line.host)
            if not elsewhere and (caller is None or episode.first.caller in (None, caller)) and wanted(episode):
                episode.touched_ns = self._now_ns
                return episode
        return None

    def _dumping(self, line: LogLine, lacks: Callable[[OomDraft], bool] = lambda _: True) -> OomDraft | None:
        return self._newest(line, lambda episode: not episode.over and lacks(episode), line.caller)

    def _start(self, line: LogLine) -> OomDraft:
        episode = OomDraft(
            line,
            self._now_ns,
            suppressed=self._suppressed,
            slab_memcgs=tuple(self._slab_memcgs),
            by_hand=self._by_hand,
        )
        self._cpu_line = self._suppressed = self._host = None
        self._by_hand = False
        self._slab_memcgs.clear()
        self._open.append(episode)
        return episode

    def _finish(self, everything: bool = False) -> list[OomRecord]:
        return self._pop_while(lambda episode: everything or self._is_done(episode))

    def _pop_while(self, is_done: Callable[[OomDraft], bool]) -> list[OomRecord]:
        records = []
        while self._open and is_done(self._open[0]):
            episode = self._open.pop(0)
            self._past_victims.extend(episode.victims)
            records.append(episode.record())
        return records

    def _is_done(self, episode: OomDraft) -> bool:
        if len(self._open) > _OPEN_AT_MOST or (len(self._open) > 1 and episode.over and episode.reaped_all):
            return True
        return self._untouched_ns(episode) >= self._linger_ns if episode.over else self._is_stale(episode)

    def _is_stale(self, episode: OomDraft) -> bool:
        return self._untouched_ns(episode) >= self._stale_ns

    def _untouched_ns(self, episode: OomDraft) -> int:
        """For how long. A clock that goes back is another boot's, or another machine's."""
        if self._now_ns is None or episode.touched_ns is None:
            return 0
        elapsed = self._now_ns - episode.touched_ns
        return elapsed if elapsed > -self._linger_ns else max(-elapsed, self._stale_ns)

    def _on_trigger(self, match: re.Match[str], line: LogLine, cut: bool) -> OomDraft:
        episode = self._start(line)
        episode.trigger = parse_trigger(match)
        return episode

    def _on_cpu(self, match: re.Match[str], line: LogLine, cut: bool) -> OomDraft | None:
        tid, comm = int(match["tid"]), match["comm"]
        episode = self._dumping(line, lambda e: e.trigger is not None and e.trigger.tid is None)
        if episode and episode.trigger and (cut or episode.trigger.comm == comm):
            episode.trigger = replace(episode.trigger, tid=tid)
            return episode
        if episode := self._newest(line, lambda e: e.panicked, line.caller):
            return episode  # a panic has a stack of its own
        # Every stack dump begins so; the stack that follows says whether this one is of an OOM.
        self._cpu_line = line, Trigger(comm, tid, None, None, None)
        return None

    def _on_stack(self, match: re.Match[str], line: LogLine, cut: bool) -> OomDraft | None:
        if self._cpu_line is None:
            return None
        first, trigger = self._cpu_line
        if (first.caller, first.host) != (line.caller, line.host):
            return None
        episode = self._start(first)
        episode.trigger = trigger
        return episode

    def _on_cpuset(self, match: re.Match[str], line: LogLine, cut: bool) -> OomDraft | None:
        episode = self._dumping(line, lambda e: e.cpuset is None and e.trigger is not None)
        if episode:
            episode.cpuset, episode.mems_allowed = match["cpuset"], match["mems"]
        return episode

    def _on_task_in(self, match: re.Match[str], line: LogLine, cut: bool) -> OomDraft:
        episode = self._dumping(line, lambda e: e.oom_memcg is None) or self._start(line)
        episode.task_memcg, episode.oom_memcg = match["task"], None if cut else match["oom"]
        episode.constraint = "memcg"
        return episode

    def _on_reached(self, match: re.Match[str], line: LogLine, cut: bool) -> OomDraft:
        episode = self._dumping(line, lambda e: e.oom_memcg is None) or self._start(line)
        episode.oom_memcg = None if cut else match["oom"]
        episode.constraint = "memcg"
        return episode

    def _on_counter(self, match: re.Match[str], line: LogLine, cut: bool) -> OomDraft:
        name = match["name"]
        episode = self._dumping(line, lambda e: name not in e.counters) or self._start(line)
        usage, limit, failcnt = (int(match[key]) for key in ("usage", "limit", "failcnt"))
        episode.counters[name] = parse_counter(usage, limit, failcnt)
        return episode

    def _on_stats(self, match: re.Match[str], line: LogLine, cut: bool) -> OomDraft:
        path = match["path"] or ""
        episode = self._dumping(line, lambda e: path not in e.stats and e.columns is None) or self._start(
            line
        )
        episode.open_stat = episode.stats[path] = parse_inline_stat(match["inline"])
        return episode

    def _on_more_stats(self, match: re.Match[str], line: LogLine, cut: bool) -> OomDraft | None:
        episode = self._dumping(line, lambda e: e.open_stat is not None and e.columns is None)
        if episode and episode.open_stat is not None:
            episode.open_stat.update(parse_inline_stat(match[0]))
        return episode

    def _on_stat(self, match: re.Match[str], line: LogLine, cut: bool) -> OomDraft | None:
        episode = self._dumping(line, lambda e: e.open_stat is not None and e.columns is None)
        if episode and episode.open_stat is not None:
            episode.open_stat.setdefault(match["key"], int(match["value"]))
        return episode

    def _on_table(self, match: re.Match[str], line: LogLine, cut: bool) -> OomDraft:
        host = self._host
        episode = self._dumping(line, lambda e: e.columns is None)
        if episode is None:
            episode = self._start(line)
            episode.host = host  # of the same dump, whose head is missing
        episode.columns = match[0].partition("]")[2].split()
        return episode

    def _on_row(self, match: re.Match[str], line: LogLine, cut: bool) -> OomDraft | None:
        episode = self._dumping(line, lambda e: e.columns is not None and e.constraint is None)
        episode = episode or self._dumping(line, lambda e: e.columns is not None)
        if episode and episode.columns is not None:
            row = parse_task_row(episode.columns, int(match["pid"]), match["cells"], cut)
            if row is None:
                episode.cut = True
            else:
                episode.tasks.append(row)
        return episode

    def _on_summary(self, match: re.Match[str], line: LogLine, cut: bool) -> OomDraft:
        parts = parse_summary(match["rest"])
        pid = int(parts.get("pid", 0))
        episode = (
            self._newest(line, lambda e: e.chosen is None and pid in e.victims, line.caller)  # logs change the order
            or self._dumping(line, lambda e: e.constraint is None)
            or self._start(line)
        )
        # 5.0 and 5.1 say CONSTRAINT_NONE of a cgroup's limit too, but then no `global_oom`
        episode.constraint = "memcg" if "oom_memcg" in parts else CONSTRAINTS.get(match["constraint"])
        for name in ("nodemask", "cpuset", "mems_allowed", "oom_memcg", "task_memcg"):
            setattr(episode, name, parts.get(name) or getattr(episode, name))
        if episode.nodemask == "(null)":
            episode.nodemask = None
        episode.cut = episode.cut or any(dots in match["rest"] for dots in ELLIPSES)
        if "pid" in parts:
            uid = int(parts["uid"]) if "uid" in parts else None
            episode.chosen = Victim(pid, parts.get("task"), uid)
            if pid in episode.victims:
                episode.victims[pid] = _with_uid(episode.victims[pid], episode.chosen)
        else:
            episode.cut = True
        return episode

    def _on_selected(self, match: re.Match[str], line: LogLine, cut: bool) -> OomDraft:
        episode = self._dumping(line, lambda e: e.selected is None) or self._start(line)
        episode.selected = Selected(int(match["pid"]), match["comm"], int(match["score"]))
        episode.scope = match["scope"]
        return episode

    def _on_killed(self, match: re.Match[str], line: LogLine, cut: bool) -> OomDraft:
        victim = parse_killed(int(match["pid"]), match["rest"])
        episode = (
            self._newest(line, lambda e: victim.pid in e.victims, line.caller)
            or self._dumping(
                line, lambda e: e.selected is not None or e.chosen is None or e.chosen.pid == victim.pid
            )
            or self._newest(line, lambda e: e.group_memcg is not None and e is self._open[-1], line.caller)
            or self._start(line)
        )
        episode.victims.setdefault(victim.pid, _with_uid(victim, episode.chosen))
        episode.kill_lines += 1
        episode.scope = match["scope"] or episode.scope
        return episode

    def _on_skipped(self, match: re.Match[str], line: LogLine, cut: bool) -> OomDraft | None:
        episode = self._newest(line, lambda e: e.group_memcg is not None, line.caller)
        if episode:
            episode.skipped.append(int(match["pid"]))
        return episode

    def _on_unkillable(self, match: re.Match[str], line: LogLine, cut: bool) -> OomDraft:
        episode = self._dumping(line) or self._start(line)
        episode.unkillable = True
        if match["scope"] != "Out":  # which newer kernels print for a cgroup too
            episode.scope = match["scope"]
        return episode

    def _on_panic(self, match: re.Match[str], line: LogLine, cut: bool) -> OomDraft:
        episode = (
            self._newest(line, lambda e: e.unkillable, line.caller) or self._dumping(line) or self._start(line)
        )
        episode.panicked = True
        if match["how"] != "compulsory":  # panic_on_oom=2, which is for cgroups too
            episode.scope = "Out"
        return episode

    def _on_group(self, match: re.Match[str], line: LogLine, cut: bool) -> OomDraft:
        episode = self._newest(
            line, lambda e: e.group_memcg is None and not e.unkillable, line.caller
        ) or self._start(line)
        episode.group_memcg = match["path"]
        return episode

    def _on_reaped(self, match: re.Match[str], line: LogLine, cut: bool) -> OomDraft | None:
        pid = int(match["pid"])
        # The reaper is a kernel thread: its caller id is never that of the dump.
        episode = self._newest(line, lambda e: pid in e.victims)
        if episode is None and pid in self._past_victims:
            return None
        episode = episode or self._newest(line) or self._start(line)
        episode.reaped.append(parse_reaped(match))
        return episode

    def _on_suppressed(self, match: re.Match[str], line: LogLine, cut: bool) -> None:
        self._suppressed = int(match["count"])

    def _on_sysrq(self, match: re.Match[str], line: LogLine, cut: bool) -> None:
        self._by_hand = True

    def _on_slab(self, match: re.Match[str], line: LogLine, cut: bool) -> None:
        if len(self._slab_memcgs) < _SLAB_MEMCGS_AT_MOST:
            self._slab_memcgs[match["memcg"]] = None

    def _on_host(self, match: re.Match[str], line: LogLine, cut: bool) -> OomDraft | None:
        episode = self._dumping(line)
        if episode:
            episode.host = add_host(episode.host or HostMemory(), match)
        else:
            self._host = add_host(self._host or HostMemory(), match)
        return episode

    _handlers: ClassVar[
        dict[str, Callable[[OomLogReader, re.Match[str], LogLine, bool], OomDraft | None]]
    ] = {
        "trigger": _on_trigger,
        "summary": _on_summary,
        "selected": _on_selected,
        "killed": _on_killed,
        "skipped": _on_skipped,
        "unkillable": _on_unkillable,
        "panic": _on_panic,
        "group": _on_group,
        "reaped": _on_reaped,
        "task_in": _on_task_in,
        "reached": _on_reached,
        "counter": _on_counter,
        "stats": _on_stats,
        "more_stats": _on_more_stats,
        "table": _on_table,
        "row": _on_row,
        "cpu": _on_cpu,
        "cpuset": _on_cpuset,
        "stack": _on_stack,
        "suppressed": _on_suppressed,
        "sysrq": _on_sysrq,
        "slab": _on_slab,
        "stat": _on_stat,
        "mem_info": _on_host,
        "zone": _on_host,
        "ram": _on_host,
        "reserved": _on_host,
        "host_swap": _on_host,
    }


def _with_uid(victim: Victim, chosen: Victim | None) -> Victim:
    if victim.uid is None and chosen is not None and chosen.pid == victim.pid:
        return replace(victim, uid=chosen.uid)
    return victim
