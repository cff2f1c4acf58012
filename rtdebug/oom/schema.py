"""The keys of an OOM episode, one JSON object each. docs/oom.md describes them; unknown is None."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from rtdebug.oom.episode import OomEpisode
from rtdebug.oom.log_usage import counter_of, hierarchical_stat
from rtdebug.oom.record import HostMemory, MemoryCounter, OomRecord, TaskRow, Victim
from rtdebug.tracing.line import Value


def episode_fields(episode: OomEpisode) -> dict[str, Value]:
    """All keys but `verdict`, which is put into words by who shows it."""
    record = episode.record
    return {
        "time": episode.when.text,
        "event": "oom",
        **_where(episode),
        "complete": record.complete,
        "missing": list(record.missing),
        "scope": record.constraint,
        **_owner(episode),
        **_processes(record),
        **_limit(episode),
        **_host(record),
    }


def _where(episode: OomEpisode) -> dict[str, Value]:
    return {
        "time_kind": episode.when.kind,
        "time_text": episode.record.time_text,
        "time_ns": episode.when.epoch_ns,
        "uptime_ns": episode.record.time_ns,
        "host": episode.record.machine,
        "file": episode.file,
    }


def _owner(episode: OomEpisode) -> dict[str, Value]:
    record, path, container = episode.record, episode.victim_path, episode.container
    return {
        "oom_memcg": record.oom_memcg,
        "task_memcg": record.task_memcg,
        "limit_level": episode.limit_level,
        "container_id": path.container_id if path else None,
        "outer_container_id": path.outer_container_id if path else None,
        "container_name": (container.name if container else None) or (path.lxc_name if path else None),
        "runtime": (path.runtime if path else None) or (container.runtime if container else None),
        "image": container.image if container else None,
        "pod": container.pod if container else None,
        "namespace": container.namespace if container else None,
        "pod_uid": path.pod_uid if path else None,
        "qos": path.qos if path else None,
        "lxc_name": path.lxc_name if path else None,
        "unit": episode.unit,
        "owner_uid": episode.owner_uid,
        "cpuset": record.cpuset,
        "cpuset_container_id": episode.cpuset_container_id,
        "mems_allowed": record.mems_allowed,
        "nodemask": record.nodemask,
    }


def _processes(record: OomRecord) -> dict[str, Value]:
    trigger, selected = record.trigger, record.selected
    chosen: dict[str, Value] | None = None
    if selected is not None:
        chosen = {"pid": selected.pid, "comm": selected.comm, "score": selected.score}
    elif record.chosen is not None:
        chosen = {"pid": record.chosen.pid, "comm": record.chosen.comm, "score": None}
    return {
        "trigger": None
        if trigger is None
        else {
            "pid": trigger.tid,
            "comm": trigger.comm,
            "gfp_mask": trigger.gfp_mask,
            "order": trigger.order,
            "oom_score_adj": trigger.oom_score_adj,
        },
        "selected": chosen,
        "killed": [_killed(record, victim) for victim in killed_of(record)],
        "kill_lines": record.kill_lines,
        "group_kill": _group_kill(record),
        "group_memcg": record.group_memcg,
        "skipped_pids": list(record.skipped_pids),
        "no_killable_process": record.no_killable_process,
        "panicked": record.panicked,
        "reaped": [asdict(reaped) for reaped in record.reaped],
        "tasks": [_task(row, record.page_size_bytes) for row in record.tasks],
    }


def killed_of(record: OomRecord) -> tuple[Victim, ...]:
    """The killed; where the kill line is missing, the victim that the summary line names."""
    return record.victims or ((record.chosen,) if record.chosen else ())


def _killed(record: OomRecord, victim: Victim) -> dict[str, Value]:
    row = record.task(victim.pid)
    return {
        "pid": victim.pid,
        "tgid": row.tgid if row else None,
        "comm": victim.comm,
        "uid": victim.uid,
        "total_vm_bytes": victim.total_vm_bytes,
        "anon_rss_bytes": victim.anon_rss_bytes,
        "file_rss_bytes": victim.file_rss_bytes,
        "shmem_rss_bytes": victim.shmem_rss_bytes,
        "pgtables_bytes": victim.page_table_bytes,
        "swap_bytes": record.swap_bytes(victim),
        "oom_score_adj": victim.oom_score_adj,
    }


def _group_kill(record: OomRecord) -> bool | None:
    if record.group_memcg is not None:
        return True
    return False if record.complete else None


def _task(row: TaskRow, page_size_bytes: int | None) -> dict[str, Value]:
    return {
        **asdict(row),
        "rss_bytes": _bytes(row.rss_pages, page_size_bytes),
        "swap_bytes": _bytes(row.swapents, page_size_bytes),
    }


def _bytes(pages: int | None, page_size_bytes: int | None) -> int | None:
    return None if pages is None or page_size_bytes is None else pages * page_size_bytes


def _limit(episode: OomEpisode) -> dict[str, Value]:
    record, facts = episode.record, episode.facts
    memory, short = record.memory, counter_of(record)
    dominant = facts.dominant
    stat = hierarchical_stat(record)
    return {
        "usage_bytes": memory.usage_bytes if memory else None,
        "limit_bytes": memory.limit_bytes if memory else None,
        "failcnt": memory.failcnt if memory else None,
        "binding_limit": record.limiting_counter,
        "headroom_bytes": short.headroom_bytes if short else None,
        "counters": {
            "memory": _counter(memory),
            "memory+swap": _counter(record.memory_swap),
            "kmem": _counter(record.kmem),
            "swap": _counter(record.swap),
        },
        "memory_stat": dict(stat) or None,
        "children_memory_stat": _stats(record.child_memory_stats) or None,
        "usage_by_kind": asdict(facts.parts) if facts.parts else None,
        "dominant_kind": dominant[0] if dominant else None,
        "page_size_bytes": record.page_size_bytes,
    }


def _counter(counter: MemoryCounter | None) -> dict[str, Value] | None:
    if counter is None:
        return None
    return {**asdict(counter), "unlimited": counter.unlimited}


def _stats(stats: Mapping[str, Mapping[str, int]]) -> dict[str, Value]:
    return {path: dict(stat) for path, stat in stats.items()}


def _host(record: OomRecord) -> dict[str, Value]:
    return {
        "host_memory": _host_memory(record.host, record.page_size_bytes) if record.host else None,
        "suppressed_dumps": record.suppressed_dumps,
        "slab_failed_memcgs": list(record.slab_failed_memcgs),
    }


def _host_memory(host: HostMemory, page_size_bytes: int | None) -> dict[str, Value]:
    return {
        "ram_pages": host.ram_pages,
        "free_pages": host.free_pages,
        "ram_bytes": _bytes(host.ram_pages, page_size_bytes),
        "free_bytes": _bytes(host.free_pages, page_size_bytes),
        "swap_total_bytes": host.swap_total_bytes,
        "swap_free_bytes": host.swap_free_bytes,
        "pages": dict(host.pages),
        "zones": [asdict(zone) for zone in host.zones],
    }
