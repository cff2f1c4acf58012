"""OomEpisode: one OOM kill of a log with all that can be said of it: whose it was, when, and why."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rtdebug.containers.cgroup_path import CgroupPath, parse_cgroup_path
from rtdebug.containers.model import Container
from rtdebug.containers.owners import OwnerOf
from rtdebug.oom.facts import Facts, facts_of
from rtdebug.oom.judges import ALL_PODS
from rtdebug.oom.record import OomRecord
from rtdebug.oom.verdict import Verdict, judge
from rtdebug.oom.when import When, when

_USER = re.compile(r"/user-(\d+)\.slice/")


@dataclass(frozen=True, slots=True)
class OomEpisode:
    """A record of the kernel log and what follows from it."""

    record: OomRecord
    when: When
    file: str | None
    """Where it was read; None: this host's ring buffer or journal."""
    victim_path: CgroupPath | None
    """Of the victim's cgroup; where that is not known, of the limited one."""
    limit_level: str | None
    """Whose limit was hit: container, pod, node (of all pods), lxc, service, session, below (a container) or cgroup."""
    cpuset_container_id: str | None
    """The container of the cpuset: that of the process that asked for memory."""
    container: Container | None
    """As this host knows it, if it is one of its own."""
    facts: Facts
    verdict: Verdict

    @property
    def owner_uid(self) -> int | None:
        """The user whose slice it is in: a rootless container's owner."""
        match = _USER.search(self.victim_path.path) if self.victim_path else None
        return int(match[1]) if match else None

    @property
    def unit(self) -> str | None:
        """systemd unit of the victim."""
        return (self.victim_path.unit if self.victim_path else None) or self.record.unit


def make_episode(
    record: OomRecord, file: str | None = None, clock_offset_ns: int | None = None, owner: OwnerOf | None = None
) -> OomEpisode:
    """Join a record with what its paths, its time and its figures mean.

    `clock_offset_ns`: Unix time less uptime, when the log is of this very boot. `owner`: of this host's containers.
    """
    facts = facts_of(record)
    path = record.task_memcg or record.oom_memcg
    return OomEpisode(
        record=record,
        when=when(record.time_text, record.time_ns, clock_offset_ns),
        file=file,
        victim_path=parse_cgroup_path(path) if path else None,
        limit_level=_level(record.oom_memcg) if record.oom_memcg else None,
        cpuset_container_id=parse_cgroup_path(record.cpuset).container_id if record.cpuset else None,
        container=owner(path) if owner and path else None,
        facts=facts,
        verdict=judge(facts),
    )


def _level(path: str) -> str:
    if ALL_PODS.fullmatch(path):
        return "node"
    found = parse_cgroup_path(path)
    if found.kind == "pod":
        return "pod"
    if found.container_cgroup is not None:
        own = "lxc" if found.kind == "lxc" else "container"
        return own if found.sub_cgroup in (None, "container") else "below"  # crun makes `container` for the processes
    return found.kind if found.kind in ("service", "session") else "cgroup"
