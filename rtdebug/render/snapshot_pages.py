"""The pages of a snapshot behind its overview: one function for each section, and the JSON document."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from rtdebug.host.memcg import MemoryState
from rtdebug.host.meminfo import BuddyZone
from rtdebug.render.columns import align
from rtdebug.render.escape import escape
from rtdebug.render.jsonl import encode_object
from rtdebug.render.shm import shm_table
from rtdebug.render.snapshot import MOST_ROWS, command_of, render_overview
from rtdebug.render.terminal import Style, paint
from rtdebug.render.units import UNKNOWN, format_bytes, format_count, format_duration, format_value, short_path
from rtdebug.snapshot.accounting import account
from rtdebug.snapshot.codec import to_plain
from rtdebug.snapshot.model import MappingGroup, NamespaceRecord, ProcessRecord, Snapshot
from rtdebug.snapshot.shared import report_of

Row = tuple[str, ...]
_WIDEST = 60
_HUGE_ORDER = 9
_DEEPEST = 10


def render_pages(
    snapshot: Snapshot, sections: Sequence[str], width: int, colour: bool, most_rows: int | None = MOST_ROWS
) -> Iterator[str]:
    """The named sections in order, each with its title. `most_rows` of each table, None: all."""
    for index, name in enumerate(sections):
        if index:
            yield ""
        if name == OVERVIEW:
            yield from render_overview(snapshot, width, colour, most_rows)
            continue
        yield paint(_TITLES[name], Style.TITLE, colour)
        lines = list(_PAGES[name](snapshot, most_rows))
        yield from (f"  {line}".rstrip() for line in lines or ["none"])


def snapshot_json(snapshot: Snapshot) -> str:
    """The whole snapshot with its accounting, as one JSON document on one line."""
    plain = to_plain(snapshot)
    shared = plain.pop("shared") or {}
    parts = {key: shared.get(key) for key in ("tmpfs", "shm", "sysv", "dev_shm_fstype")}
    return encode_object({**plain, **parts, "accounting": to_plain(account(snapshot))}) + "\n"


def _processes(snapshot: Snapshot, most_rows: int | None) -> Iterator[str]:
    header = ("PID", "IN IT", "PPID", "UID", "STATE", "THREADS", "OOM", "ADJ", "FDS", "AGE", "CGROUP", "COMMAND")
    rows = [
        (
            str(each.pid), str(each.ns_pids[-1]) if each.ns_pids else UNKNOWN, str(each.ppid), str(each.uid),
            each.state, format_count(each.threads), _number(each.oom_score), _number(each.oom_score_adj),
            format_count(each.fd_count),
            format_duration(None if each.start_time_ns is None else max(0, snapshot.time_ns - each.start_time_ns)),
            short_path(each.cgroup or UNKNOWN), "  " * min(depth, _DEEPEST) + command_of(each),
        )
        for depth, each in _as_tree(snapshot.processes)
    ]  # fmt: skip
    yield from _table(header, rows, range(10), most_rows)


def _mappings(snapshot: Snapshot, most_rows: int | None) -> Iterator[str]:
    header = ("RSS", "PSS", "SWAP", "LENGTH", "COUNT", "HUGE", "PERMS", "THP", "KIND", "PID", "WHAT")
    found = [(group, process) for process in snapshot.processes for group in process.mappings]
    found.sort(key=lambda pair: -(pair[0].use.pss_bytes or 0))
    rows = [
        (
            format_bytes(group.use.rss_bytes), format_bytes(group.use.pss_bytes), format_bytes(group.use.swap_bytes),
            format_bytes(group.length_bytes), format_count(group.count), format_bytes(_huge(group)), group.perms,
            _yes(group.thp_eligible), group.kind.value, str(process.pid), name_of(group),
        )
        for group, process in found
    ]  # fmt: skip
    yield from _table(header, rows, range(6), most_rows)


def name_of(group: MappingGroup) -> str:
    """What is mapped, for people. Not escaped."""
    if group.is_rest:
        return "(more mappings of this kind)"
    return (group.path or "(unnamed)") + (" (deleted)" if group.deleted else "")


def _fds(snapshot: Snapshot, most_rows: int | None) -> Iterator[str]:
    header = ("COUNT", "SIZE", "HOLDS", "KIND", "PID", "COMM", "WHAT")
    found = [(group, process) for process in snapshot.processes for group in process.fds]
    found.sort(key=lambda pair: (-(pair[0].allocated_bytes or 0), -pair[0].count))
    rows = [
        (
            format_count(group.count), format_bytes(group.size_bytes), format_bytes(group.allocated_bytes),
            group.kind.value, str(process.pid), process.comm, group.name + (" (deleted)" if group.deleted else ""),
        )
        for group, process in found
    ]  # fmt: skip
    yield from _table(header, rows, range(3), most_rows)


def _shm(snapshot: Snapshot, most_rows: int | None) -> Iterator[str]:
    report = report_of(snapshot)
    if report is not None:
        yield from shm_table(report).rstrip().splitlines()[2:]


def _cgroups(snapshot: Snapshot, most_rows: int | None) -> Iterator[str]:
    header = ("USAGE", "LIMIT", "HIGH", "PEAK", "HITS", "SWAP", "PIDS", "STALLED", "CGROUP")
    rows = [
        (*_cgroup_figures(record.memory), record.files.get("pids.current", UNKNOWN).strip(),
         _stalled(record.memory), short_path(record.path))
        for record in snapshot.cgroups
    ]  # fmt: skip
    yield from _table(header, rows, range(8), most_rows)


def _cgroup_figures(memory: MemoryState | None) -> Row:
    if memory is None:
        return (UNKNOWN,) * 6
    hits = memory.events.get("max") if memory.version == 2 else memory.failcnt
    return (
        format_bytes(memory.usage_bytes),
        format_bytes(memory.limit_bytes),
        format_bytes(memory.high_bytes),
        format_bytes(memory.peak_bytes),
        format_count(hits),
        format_bytes(memory.swap_usage_bytes),
    )


def _stalled(memory: MemoryState | None) -> str:
    """Since the cgroup was made: all of it waited for memory."""
    if memory is None or memory.pressure is None or memory.pressure.full is None:
        return UNKNOWN
    return format_duration(memory.pressure.full.total_us * 1000)


def _namespaces(snapshot: Snapshot, most_rows: int | None) -> Iterator[str]:
    rows = [
        (each.kind, str(each.inode_id), _whose(each), format_count(len(each.pids)))
        for each in snapshot.namespaces
    ]
    yield from _table(("KIND", "INODE", "WHOSE", "PROCESSES"), rows, {1, 3}, most_rows)


def _whose(namespace: NamespaceRecord) -> str:
    if namespace.is_host is None:
        return UNKNOWN
    if namespace.is_host:
        return "the host's"
    return "shared with " + ", ".join(map(short_path, namespace.shared_with)) if namespace.shared_with else "its own"


def _network(snapshot: Snapshot, most_rows: int | None) -> Iterator[str]:
    network = snapshot.network
    if network is None:
        return
    whose = {None: UNKNOWN, True: "the host's", False: "its own"}[network.is_host]
    yield (
        f"{whose}; {format_count(network.socket_count)} IP sockets hold {format_bytes(network.socket_rmem_bytes)} "
        f"received and {format_bytes(network.socket_wmem_bytes)} to send"
    )
    rows = [
        (link.name, link.kind or UNKNOWN, link.state or UNKNOWN, format_bytes(link.rx_bytes),
         format_bytes(link.tx_bytes), ", ".join(link.addresses) or UNKNOWN)
        for link in network.links
    ]  # fmt: skip
    yield from _table(("LINK", "KIND", "STATE", "RECEIVED", "SENT", "ADDRESSES"), rows, {3, 4}, most_rows)
    yield from (f"route {escape(route)}" for route in network.routes)


def _host(snapshot: Snapshot, most_rows: int | None) -> Iterator[str]:
    host = snapshot.host
    memory = host.meminfo
    system = escape(f"{host.kernel} {host.machine}")
    yield f"Linux {system}, {host.cpus} CPUs, pages of {format_bytes(host.page_bytes)}"
    yield "  ".join(
        f"{label} {format_bytes(memory.get(key))}"
        for label, key in (("memory", "MemTotal"), ("available", "MemAvailable"), ("swap free", "SwapFree"))
    )
    if host.thp is not None:
        thp = host.thp
        yield f"THP {thp.enabled or UNKNOWN}, for shmem {thp.shmem_enabled or UNKNOWN}, defrag {thp.defrag or UNKNOWN}"
    for zone in host.buddyinfo:
        free, huge = (format_bytes(_free_pages(zone, order) * host.page_bytes) for order in (0, _HUGE_ORDER))
        yield f"node {zone.node} {escape(zone.zone)}: free {free}, of it in blocks of 512 pages and more {huge}"


def _free_pages(zone: BuddyZone, from_order: int) -> int:
    return sum(count << order for order, count in enumerate(zone.free_blocks) if order >= from_order)


def _runtime(snapshot: Snapshot, most_rows: int | None) -> Iterator[str]:
    container, config = snapshot.container, snapshot.runtime.config
    shown: Mapping[str, object] = {
        "id": container.id,
        "name": container.name,
        "runtime": container.runtime,
        "status": container.status,
        "pid": container.pid,
        "image": container.image,
        "pod": container.pod and f"{container.namespace}/{container.pod}",
        "cgroup": container.cgroup,
        "bundle": container.bundle,
    }
    yield from align([(key, str(value)) for key, value in shown.items() if value is not None])
    linux = config.get("linux") if config else None
    if isinstance(linux, Mapping):
        yield escape(f"resources {encode_object({'': to_plain(linux.get('resources'))})[4:-1]}")
    mounts = config.get("mounts") if config else None
    listed = mounts if isinstance(mounts, (list, tuple)) else ()
    rows = [_mount_row(mount) for mount in listed if isinstance(mount, Mapping)]
    yield from _table(("MOUNT", "TYPE", "SOURCE", "OPTIONS"), rows, (), most_rows)


def _mount_row(mount: Mapping[str, object]) -> Row:
    options = mount.get("options")
    listed = ",".join(map(str, options)) if isinstance(options, (list, tuple)) else UNKNOWN
    return (*(str(mount.get(key) or UNKNOWN) for key in ("destination", "type", "source")), listed)


def _inside(snapshot: Snapshot, most_rows: int | None) -> Iterator[str]:
    inside = snapshot.inside
    if inside is None:
        yield "not looked: rtdebug snapshot --exec"
        return
    works = [name for name, error in inside.calls.items() if error is None]
    yield escape(f"works: {', '.join(works)}")
    yield from (escape(f"refused: {name} ({error})") for name, error in inside.calls.items() if error is not None)
    yield from align([(name, format_value(name, value)) for name, value in inside.figures.items()], right={1})
    rows = [(name, _limit(each.soft), _limit(each.hard)) for name, each in inside.limits.items()]
    yield from _table(("LIMIT", "SOFT", "HARD"), rows, {1, 2}, most_rows)


def _limit(value: int | None) -> str:
    return "unlimited" if value is None else format_count(value)


def _table(header: Row, rows: Sequence[Row], right: Iterable[int], most_rows: int | None) -> Iterator[str]:
    if not rows:
        return
    shown = rows if most_rows is None else rows[:most_rows]
    yield from align([header, *shown], right=frozenset(right), limit=_WIDEST)
    if len(rows) > len(shown):
        yield f"... and {len(rows) - len(shown):,} more: --all"


def _as_tree(processes: Sequence[ProcessRecord]) -> Iterator[tuple[int, ProcessRecord]]:
    """Depth and process: parents before their children, as `ps f` does; whose parent is outside comes first.

    With pids that were used again meanwhile, two can seem to be each other's parents: those come last.
    """
    known = {process.pid for process in processes}
    children: dict[int | None, list[ProcessRecord]] = {}
    for process in processes:
        children.setdefault(process.ppid if process.ppid in known else None, []).append(process)
    queue = [(0, process) for process in reversed(children.get(None, ()))]
    shown = set()
    while queue:
        depth, process = queue.pop()
        if process.pid not in shown:
            shown.add(process.pid)
            yield depth, process
            queue += [(depth + 1, child) for child in reversed(children.get(process.pid, ()))]
    yield from ((0, process) for process in processes if process.pid not in shown)


def _huge(group: MappingGroup) -> int | None:
    use = group.use
    thp = (use.anonhugepages_bytes, use.shmempmdmapped_bytes, use.filepmdmapped_bytes)
    known = [each for each in thp if each is not None]
    hugetlb = (use.shared_hugetlb_bytes or 0) + (use.private_hugetlb_bytes or 0)
    return sum(known) + hugetlb if known else None


def _number(value: int | None) -> str:
    return UNKNOWN if value is None else str(value)


def _yes(value: bool | None) -> str:
    return UNKNOWN if value is None else "yes" if value else "no"


OVERVIEW = "overview"
_Page = Callable[[Snapshot, int | None], Iterator[str]]
_PAGES: Mapping[str, _Page] = {
    "processes": _processes,
    "mappings": _mappings,
    "fds": _fds,
    "shm": _shm,
    "cgroups": _cgroups,
    "namespaces": _namespaces,
    "network": _network,
    "runtime": _runtime,
    "inside": _inside,
    "host": _host,
}
_TITLES = {
    "processes": "Processes",
    "mappings": "Mappings, alike ones of a process added up, the largest by PSS first",
    "fds": "Open files, those that hold memory first",
    "shm": "Shared memory: tmpfs and what lies in them, memfds, SysV segments",
    "cgroups": "Cgroups, from the container's up to the root",
    "namespaces": "Namespaces",
    "network": "Network namespace",
    "runtime": "Runtime",
    "inside": "Inside: what a new process of the container may do with memory",
    "host": "Host",
}
SECTIONS = (OVERVIEW, *_PAGES)
"""Names of the sections, in the order in which they are shown."""
