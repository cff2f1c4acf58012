"""The list of containers, as a table and as one JSON document."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

from rtdebug.containers.model import Container
from rtdebug.containers.usage import ContainerUsage
from rtdebug.render.escape import display_width, escape
from rtdebug.render.units import UNKNOWN, format_bytes

NONE_RUNNING = """\
No running container found.
If there is one, run rtdebug as root, and give the --root of a runc that keeps its state elsewhere:
  rtdebug ps --runc-root DIR
"""

_HEADER = ("ID", "NAME", "RUNTIME", "PID", "STATUS", "MEMORY", "LIMIT", "SHM", "SHM SIZE", "POD")
_IS_NUMBER = (False, False, False, True, False, True, True, True, True, False)
_SHORT_ID = 12
_WIDEST_NAME = 24
_WIDEST_POD = 40
_WIDEST_WORD = 10


def ps_table(usages: Sequence[ContainerUsage]) -> str:
    """The table for people, 80 to 120 columns wide, and below it the limits that are not a container's own."""
    if not usages:
        return NONE_RUNNING
    rows = [_HEADER, *map(_row, usages)]
    widths = [max(map(display_width, column)) for column in zip(*rows, strict=True)]
    if not any(usage.container.pod for usage in usages):
        rows, widths = [row[:-1] for row in rows], widths[:-1]
    lines = ["  ".join(map(_padded, row, widths, _IS_NUMBER)).rstrip() for row in rows]
    return "\n".join([*lines, *_limits_from_above(usages)]) + "\n"


def ps_json(usages: Iterable[ContainerUsage], notes: Iterable[str]) -> str:
    """The document `{"containers": [...], "notes": [...]}`: texts as they are, null for what is not known."""
    return json.dumps({"containers": list(map(_record, usages)), "notes": list(notes)}, indent=2) + "\n"


def _row(usage: ContainerUsage) -> tuple[str, ...]:
    container = usage.container
    limit = format_bytes(usage.memory_limit_bytes)
    return (
        _short_id(container),
        escape(container.name or ("(sandbox)" if container.sandbox else UNKNOWN), _WIDEST_NAME),
        escape(container.runtime or UNKNOWN, _WIDEST_WORD),
        str(container.pid),
        escape(container.status, _WIDEST_WORD),
        format_bytes(usage.memory_usage_bytes),
        f"{limit} *" if _is_from_above(usage) else limit,
        format_bytes(usage.shm_used_bytes),
        format_bytes(usage.shm_size_bytes),
        escape(f"{container.namespace}/{container.pod}", _WIDEST_POD) if container.pod else UNKNOWN,
    )


def _record(usage: ContainerUsage) -> dict[str, object]:
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
        yield f"* {_short_id(usage.container)}: the limit is that of {where}"


def _short_id(container: Container) -> str:
    """Random ids by their beginning, as docker shows them; chosen ones whole, while they fit."""
    is_random = len(container.id) == 64
    return escape(container.id[:_SHORT_ID]) if is_random else escape(container.id, _WIDEST_NAME)


def _padded(text: str, width: int, is_number: bool) -> str:
    blanks = " " * (width - display_width(text))
    return blanks + text if is_number else text + blanks
