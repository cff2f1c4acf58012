"""One sample of a memory cgroup: the figures of tables.FIGURES but for processes and threads.

Unlike host.memcg it reads only what a series needs, and that fast. Sources: Documentation/admin-guide/cgroup-v2.rst and
cgroup-v1/memory.rst, Documentation/accounting/psi.rst.
"""

from __future__ import annotations

from collections.abc import Mapping

from rtdebug.host.cgroup import Version
from rtdebug.host.memcg import parse_limit
from rtdebug.leaks.quick import keyed, read_bytes, read_number

Figure = int | None
_LIMIT_FILE: Mapping[Version, str] = {1: "memory.limit_in_bytes", 2: "memory.max"}


class Limits:
    """The lowest limit of a cgroup and all above it; each folder is asked once a pass."""

    def __init__(self, version: Version, mount_point: str) -> None:
        self._file = _LIMIT_FILE[version]
        self._known: dict[str, Figure] = {}
        self._top = mount_point.rstrip("/")

    def of(self, folder: str) -> Figure:
        """In bytes; None: there is none. On v1 all above count, as since Linux 5.11 (and docker, and systemd)."""
        if folder in self._known:
            return self._known[folder]
        text = read_bytes(f"{folder}/{self._file}")
        own = parse_limit(text.decode("ascii", "replace")) if text is not None else None
        above = self.of(folder.rpartition("/")[0]) if len(folder) > len(self._top) else None
        both = [limit for limit in (own, above) if limit is not None]
        self._known[folder] = min(both, default=None)
        return self._known[folder]


def read_figures(folder: str, version: Version, limits: Limits) -> tuple[Figure, ...] | None:
    """usage_bytes up to psi_full_us; None if the cgroup has gone or counts no memory."""
    content = read_bytes(f"{folder}/memory.stat")
    return None if content is None else figures_of(folder, version, keyed(content), limits)


def figures_of(folder: str, version: Version, stat: Mapping[bytes, int], limits: Limits) -> tuple[Figure, ...]:
    """The same for a cgroup whose memory.stat has been read."""
    return (_read_v1 if version == 1 else _read_v2)(folder, stat, limits.of(folder))


def _read_v1(folder: str, stat: Mapping[bytes, int], limit_bytes: Figure) -> tuple[Figure, ...]:
    get = stat.get
    refaults = _sum(get(b"total_workingset_refault_anon"), get(b"total_workingset_refault_file"))
    control = keyed(read_bytes(f"{folder}/memory.oom_control"))
    return (
        read_number(f"{folder}/memory.usage_in_bytes"),
        get(b"total_rss"),
        get(b"total_cache"),
        get(b"total_shmem"),
        read_number(f"{folder}/memory.kmem.usage_in_bytes"),
        None,  # v1 does not tell the kernel's memory apart
        None,
        None,
        read_number(f"{folder}/memory.kmem.tcp.usage_in_bytes"),
        get(b"total_swap"),
        limit_bytes,
        refaults if refaults is not None else get(b"total_workingset_refault"),  # before v5.9
        get(b"total_pgfault"),
        get(b"total_pgmajfault"),
        None,
        None,
        read_number(f"{folder}/memory.failcnt"),
        None,
        control.get(b"oom_kill"),
        *read_pressure(folder),
    )


def _read_v2(folder: str, stat: Mapping[bytes, int], limit_bytes: Figure) -> tuple[Figure, ...]:
    get = stat.get
    events = keyed(read_bytes(f"{folder}/memory.events"))
    refaults = _sum(get(b"workingset_refault_anon"), get(b"workingset_refault_file"))
    return (
        read_number(f"{folder}/memory.current"),
        get(b"anon"),
        get(b"file"),
        get(b"shmem"),
        get(b"kernel"),  # since v5.18
        get(b"slab"),
        get(b"kernel_stack"),
        get(b"pagetables"),
        get(b"sock"),
        read_number(f"{folder}/memory.swap.current"),
        limit_bytes,
        refaults if refaults is not None else get(b"workingset_refault"),  # before v5.9
        get(b"pgfault"),
        get(b"pgmajfault"),
        events.get(b"low"),
        events.get(b"high"),
        events.get(b"max"),
        events.get(b"oom"),
        events.get(b"oom_kill"),
        *read_pressure(folder),
    )


def read_pressure(folder: str) -> tuple[Figure, Figure]:
    """Microseconds in which some, and all, of the cgroup waited for memory; None where it is not counted (v1)."""
    content = read_bytes(f"{folder}/memory.pressure")
    totals = {}
    for line in (content or b"").splitlines():
        name, _, rest = line.partition(b" ")
        total = rest.rpartition(b"total=")[2]
        if total.isdigit():
            totals[name] = int(total)
    return totals.get(b"some"), totals.get(b"full")


def _sum(one: Figure, other: Figure) -> Figure:
    return None if one is None or other is None else one + other
