"""Rules on OOM kills that have happened, by the kernel log and by the cgroup's own counters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rtdebug.diagnose.facts import Facts
from rtdebug.diagnose.finding import Finding, Severity
from rtdebug.limits.settings import Level
from rtdebug.oom.episode import OomEpisode
from rtdebug.oom.schema import killed_of
from rtdebug.shm.advice import times


def oom_killed(facts: Facts) -> Iterator[Finding]:
    """The kernel log has its kills: the last one's verdict is the cause."""
    if not facts.episodes:
        return
    last = facts.episodes[-1]
    evidence = dict(last.verdict.evidence)
    yield Finding(
        "oom-killed",
        Severity.CRITICAL,
        _sentence(last, len(facts.episodes)),
        {
            **evidence,
            "kills": len(facts.episodes),
            "last": last.when.to_the_second,
            "victim": _victim(last),
            "limit_of": last.record.oom_memcg,
            "verdict": last.verdict.kind,
        },
        _change(facts, last),
    )


def oom_killed_by_counter(facts: Facts) -> Iterator[Finding]:
    """The log has turned over, or is not readable; the counters stay as long as the cgroup."""
    memory = facts.memory
    kills = memory.events.get("oom_kill", 0) if memory else 0
    if memory is None or not kills or facts.episodes or not facts.limits:
        return
    yield Finding(
        "oom-killed-before",
        Severity.CRITICAL,
        f"its processes were OOM-killed {times(kills)} since its cgroup was made; the kernel log no longer says how",
        {"oom_kills": kills, "limit_bytes": facts.limits.limit_bytes, "peak_bytes": memory.peak_bytes},
        ("rtdebug: rtdebug oom --watch --keep 20 keeps the next one in full", "rtdebug: rtdebug oom --journal"),
    )


def limit_of_a_parent_hit(facts: Facts) -> Iterator[Finding]:
    """A cgroup above has reached its limit: its kills hit whoever is below."""
    for level in facts.limits.binding[1:] if facts.limits else ():
        hits = _hits(level)
        limit = level.value("max")
        if hits and limit is not None and level.cgroup != "/" and not _own_limit_is_lower(facts, limit):
            yield Finding(
                "parent-limit-hit",
                Severity.WARNING,
                "the limit of {parent} above it ({limit_bytes}) was hit {hits} times: raising its own does not help",
                {"parent": level.cgroup, "limit_bytes": limit, "hits": hits, "usage_bytes": level.memory.usage_bytes},
                (f"host: raise the limit of {level.cgroup}, or move something out of it",),
            )
            return


def hung_at_the_limit(facts: Facts) -> Iterator[Finding]:
    """v1 --oom-kill-disable: its processes wait for memory that does not come."""
    memory = facts.memory
    if memory is None or not memory.under_oom:
        return
    yield Finding(
        "hung-at-limit",
        Severity.CRITICAL,
        "it is at its limit with the OOM killer disabled: its processes hang until memory is freed",
        {"usage_bytes": memory.usage_bytes, "limit_bytes": memory.limit_bytes, "under_oom": 1},
        (
            "docker run: leave out --oom-kill-disable",
            f"host: raise the limit now: rtdebug limits {facts.target} shows the line",
        ),
    )


def _sentence(episode: OomEpisode, kills: int) -> str:
    counted = "{kills} kills" if kills > 1 else "the only kill of it"
    owner = "the host" if episode.record.constraint == "global" else "the limit of {limit_of}"
    return f"{{victim}} was OOM-killed ({counted} in the log), {owner} was reached: {episode.verdict.text}"


def _victim(episode: OomEpisode) -> str | None:
    killed = killed_of(episode.record)
    return ", ".join(f"{victim.comm or '?'} (pid {victim.pid})" for victim in killed[:3]) or None


def _change(facts: Facts, episode: OomEpisode) -> tuple[str, ...]:
    advice = (f"advice: {episode.verdict.advice}",) if episode.verdict.advice else ()
    if episode.verdict.kind in ("limit_too_small", "anon_one_process", "many_processes", "anon"):
        runs = facts.container is not None and facts.container.is_running
        line = f"rtdebug limits {facts.target or 'NAME'} proposes a limit, and the line that sets it"
        return (*advice, f"rtdebug: {line}" if runs else f"rtdebug: when it runs again, {line}")
    return advice


def _hits(level: Level) -> int:
    memory = level.memory
    return memory.failcnt or 0 if memory.version == 1 else _local(memory.events_local, memory.events)


def _local(local: Mapping[str, int], events: Mapping[str, int]) -> int:
    """memory.events.local counts the limit itself; without it (before 5.2) the hierarchy's counter."""
    return local.get("max", 0) if local else events.get("max", 0)


def _own_limit_is_lower(facts: Facts, limit: int) -> bool:
    own = facts.limits.own.value("max") if facts.limits else None
    return own is not None and own <= limit
