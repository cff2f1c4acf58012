"""The list of containers, as a table and as one JSON document."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rtdebug.containers.usage import ContainerUsage
from rtdebug.render.columns import align
from rtdebug.render.escape import escape
from rtdebug.render.jsonl import encode_object
from rtdebug.render.units import UNKNOWN, format_bytes, short_id
from rtdebug.tracing.line import Value

NONE_RUNNING = """\
No running container found.
If there is one: rtdebug must run as root, and be given the --root of a runc that keeps its state elsewhere:
  rtdebug ps --runc-root DIR
"""

_HEADER = ("ID", "NAME", "RUNTIME", "PID", "STATUS", "MEMORY", "LIMIT", "SHM", "SHM SIZE")
_NUMBERS = frozenset({3, 5, 6, 7, 8})
_WIDEST = 28


def ps_table(usages: Sequence[ContainerUsage]) -> str:
    """The table for people, and below it the limits that a cgroup above the container's sets."""
    if not usages:
        return NONE_RUNNING
    has_pods = any(usage.container.pod for usage in usages)
    header = (*_HEADER, "POD") if has_pods else _HEADER
    rows = [_row(usage, has_pods) for usage in usages]
    lines = [*align([header, *rows], right=_NUMBERS, limit=_WIDEST), *_limits_from_above(usages)]
    return "\n".join(lines) + "\n"


def ps_json(usages: Iterable[ContainerUsage], notes: Iterable[str]) -> str:
    """The document `{"containers": [...], "notes": [...]}`; null for what is not known."""
    return encode_object({"containers": [_record(usage) for usage in usages], "notes": list(notes)}) + "\n"


def _row(usage: ContainerUsage, has_pods: bool) -> tuple[str, ...]:
    container = usage.container
    limit = format_bytes(usage.memory_limit_bytes)
    row = (
        short_id(container.id),
        container.name or ("(sandbox)" if container.sandbox else UNKNOWN),
        container.runtime or UNKNOWN,
        str(container.pid),
        container.status,
        format_bytes(usage.memory_usage_bytes),
        f"{limit} *" if _is_from_above(usage) else limit,
        format_bytes(usage.shm_used_bytes),
        format_bytes(usage.shm_size_bytes),
    )
    pod = f"{container.namespace}/{container.pod}" if container.pod else UNKNOWN
    return (*row, pod) if has_pods else row


def _record(usage: ContainerUsage) -> dict[str, Value]:
    container = usage.container
    return {
        "id": container.id,
        "name": container.name,
        "runtime": container.runtime,
        "pid": container.pid,
        "status": container.status,
        "cgroup": container.cgroup,
        "memory_usage_bytes": usage.memory_usage_bytes,
        "memory_limit_bytes": usage.memory_limit_bytes,
        "memory_limit_cgroup": usage.memory_limit_cgroup,
        "shm_used_bytes": usage.shm_used_bytes,
        "shm_size_bytes": usage.shm_size_bytes,
        "image": container.image,
        "pod": container.pod,
        "namespace": container.namespace,
    }


def _is_from_above(usage: ContainerUsage) -> bool:
    return usage.memory_limit_bytes is not None and usage.memory_limit_cgroup != usage.container.cgroup


def _limits_from_above(usages: Iterable[ContainerUsage]) -> Iterator[str]:
    for usage in filter(_is_from_above, usages):
        setter = usage.memory_limit_cgroup
        where = "a cgroup that is not visible here" if setter is None else f"cgroup {escape(setter)}"
        yield f"* {escape(short_id(usage.container.id))}: the limit is that of {where}"
