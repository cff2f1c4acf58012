"""The overview of a snapshot: where the container's memory is, by kind and by process, adding up to its cgroup's."""

from __future__ import annotations

from collections.abc import Iterator

from rtdebug.host.memcg import MemoryState
from rtdebug.render.columns import align, wrap
from rtdebug.render.escape import escape
from rtdebug.render.jsonl import format_time_utc
from rtdebug.render.terminal import Style, paint
from rtdebug.render.units import UNKNOWN, format_bytes, format_count, format_duration, short_id, short_path
from rtdebug.snapshot.accounting import Accounting, Part, Share, account, binding_limit, pss_by_kind
from rtdebug.snapshot.model import ProcessRecord, Snapshot

MOST_ROWS = 12
_BAR_COLUMNS = 20
_MUCH = 0.1
LABELS = {
    "anon": "anonymous memory",
    "mapped_anon": "in live processes",
    "unmapped_anon": "in none: just exited, moved to another cgroup, or being freed",
    "foreign_anon": "in processes here, but charged to other cgroups",
    "shmem": "shared memory (/dev/shm and other tmpfs, memfd, SysV)",
    "mapped_shmem": "mapped by live processes",
    "unmapped_shmem": "in files and segments that no process has mapped",
    "posix_objects": "files in /dev/shm",
    "file_objects": "files in other tmpfs",
    "deleted_objects": "deleted files that are still open",
    "memfd_objects": "memfds",
    "sysv_objects": "SysV segments",
    "anonymous_objects": "shared anonymous memory",
    "other_shmem": "other: swapped in part, or not found",
    "late_shmem": "not yet in the cgroup's figures, which the CPUs bring up to date now and then",
    "foreign_shmem": "mapped by processes here, but charged to other cgroups",
    "page_cache": "page cache",
    "mapped_page_cache": "files mapped by live processes",
    "unmapped_page_cache": "files read or written, mapped by none",
    "foreign_page_cache": "of these, charged to other cgroups that read them first",
    "page_cache_and_shmem": "page cache and shared memory",
    "mapped_page_cache_and_shmem": "mapped by live processes",
    "unmapped_page_cache_and_shmem": "mapped by none",
    "foreign_page_cache_and_shmem": "mapped by processes here, but charged to other cgroups",
    "kernel": "kernel memory on its behalf",
    "slab_reclaimable": "slab, reclaimable: directory entries, inodes",
    "slab_unreclaimable": "slab, not reclaimable",
    "kernel_stack": "stacks of its threads",
    "pagetables": "page tables",
    "sec_pagetables": "page tables of virtual machines and devices",
    "percpu": "per-CPU",
    "vmalloc": "vmalloc",
    "other_kernel": "other",
    "sock": "socket buffers",
    "hugetlb": "hugetlb pages",
    "swap": "swap",
    "tcp_buffers": "TCP buffers",
    "difference": "difference: charged ahead by the CPUs, and figures not of one instant",
}
"""Of the parts of an accounting, in words."""
_UNOWNED = {
    "unmapped_anon": "anonymous, of no live process",
    "unmapped_shmem": "shared memory that nobody has mapped",
    "unmapped_page_cache": "page cache that nobody has mapped",
    "foreign_page_cache": "mapped files charged to other cgroups",
    "kernel": "kernel memory",
    "sock": "socket buffers",
    "hugetlb": "hugetlb pages",
}


def render_overview(snapshot: Snapshot, width: int, colour: bool, most_rows: int | None = MOST_ROWS) -> Iterator[str]:
    """The first page: what is to be known at once. At most `most_rows` processes, None: all."""
    accounting = account(snapshot)
    yield paint(_title(snapshot), Style.TITLE, colour)
    yield from _usage_lines(snapshot, accounting)
    yield ""
    yield paint("Where it is", Style.TITLE, colour)
    yield from _part_lines(accounting)
    yield ""
    yield paint("Whose it is (each process by PSS: its part of what it shares)", Style.TITLE, colour)
    yield from _share_lines(snapshot, accounting, most_rows)
    notes = [*accounting.notes, *snapshot.notes, *_further(accounting)]
    if notes:
        yield ""
    for note in notes:
        yield from wrap(f"note: {note}", width)


def _further(accounting: Accounting) -> Iterator[str]:
    """Where to read on, if much lies in files that no process shows."""
    inner = (each for part in accounting.parts for each in part.parts)
    unmapped = sum(each.bytes for each in inner if each.kind == "unmapped_shmem")
    if unmapped > max(accounting.slack_bytes, _MUCH * (accounting.cgroup_bytes or 0)):
        yield (
            f"{format_bytes(unmapped)} of shared memory are mapped by no process; in which files, whose, and which are "
            "orphans: rtdebug show FILE --section shm"
        )


def describe(snapshot: Snapshot) -> str:
    """Which container and when, on one line. Escaped."""
    container = snapshot.container
    name = container.name or short_id(container.id)
    runtime = f" ({container.runtime} {short_id(container.id)})" if container.runtime else ""
    return escape(f"{name}{runtime}") + f", {format_time_utc(snapshot.time_ns)[:19]}Z"


def _title(snapshot: Snapshot) -> str:
    held = "" if snapshot.frozen_ns is None else f" for {format_duration(snapshot.frozen_ns)}"
    how = f", frozen{held}" if snapshot.frozen else ""
    return f"Snapshot of {describe(snapshot)}, took {format_duration(snapshot.took_ns)}{how}"


def _usage_lines(snapshot: Snapshot, accounting: Accounting) -> Iterator[str]:
    memory = snapshot.cgroups[0].memory if snapshot.cgroups else None
    if memory is None:
        yield "  memory of its cgroup not known"
        return
    limit = binding_limit(snapshot)
    usage = format_bytes(accounting.cgroup_bytes)
    if limit is None:
        yield f"  memory {usage}, no limit"
    else:
        whose = "" if limit[1] == accounting.cgroup else f", the limit of cgroup {escape(short_path(limit[1]))}"
        yield f"  memory {usage} of {format_bytes(limit[0])}{_percent(accounting.cgroup_bytes, limit[0])}{whose}"
    yield f"  {', '.join(_history(memory))}; {_population(snapshot)}"


def _history(memory: MemoryState) -> Iterator[str]:
    yield f"peak {format_bytes(memory.peak_bytes)}"
    hits = memory.events.get("max") if memory.version == 2 else memory.failcnt
    yield f"limit hit {format_count(hits)} times"
    if "oom_kill" in memory.events:
        yield f"OOM kills {format_count(memory.events['oom_kill'])}"
    if memory.swap_usage_bytes is not None:
        yield f"swap {format_bytes(memory.swap_usage_bytes)}"


def _population(snapshot: Snapshot) -> str:
    processes = snapshot.processes
    threads = sum(process.threads or 0 for process in processes)
    mappings = sum(process.mapping_count or 0 for process in processes)
    return f"processes {len(processes)}, threads {threads}, mappings {mappings:,}"


def _part_lines(accounting: Accounting) -> Iterator[str]:
    rows: list[tuple[str, ...]] = []
    total = accounting.cgroup_bytes
    for part in accounting.parts:
        rows.append((format_bytes(part.bytes), _share(part.bytes, total), _bar(part.bytes, total), _label(part)))
        rows += _inner_rows(part, 1)
    if accounting.difference_bytes is not None:
        rows.append((format_bytes(accounting.difference_bytes), _share(accounting.difference_bytes, total), "",
                     f"difference: {_difference(accounting)}"))  # fmt: skip
    rows.append((format_bytes(total), "", "", f"= what cgroup {short_path(accounting.cgroup or UNKNOWN)} counts"))
    rows += [(format_bytes(part.bytes), "", "", f"beside it: {_label(part)}") for part in accounting.beside]
    yield from (f"  {line}" for line in align(rows, right={0, 1}))


def _inner_rows(part: Part, depth: int) -> Iterator[tuple[str, ...]]:
    for inner in part.parts:
        if inner.bytes:
            yield (format_bytes(inner.bytes), "", "", "  " * depth + _label(inner))
            yield from _inner_rows(inner, depth + 1)


def _difference(accounting: Accounting) -> str:
    difference = accounting.difference_bytes or 0
    slack = format_bytes(accounting.slack_bytes)
    if abs(difference) <= accounting.slack_bytes:
        return f"charged ahead by the CPUs (up to {slack}), and figures not of one instant"
    if difference < 0:
        return "the kinds were read at another moment than the sum, or memory is being freed"
    return f"memory that the kernel tells no kind of; {slack} of it at most is charged ahead by the CPUs"


def _share_lines(snapshot: Snapshot, accounting: Accounting, most_rows: int | None) -> Iterator[str]:
    by_pid = {process.pid: process for process in snapshot.processes}
    owned = [share for share in accounting.shares if share.pid is not None]
    shown = owned if most_rows is None else owned[:most_rows]
    rows: list[tuple[str, ...]] = [("PSS", "ANON", "FILE", "SHMEM", "SWAP", "RSS", "PID", "IN IT", "ADJ", "COMMAND")]
    rows += [_process_row(share, by_pid[share.pid]) for share in shown if share.pid is not None]
    if len(owned) > len(shown):
        rest = sum(share.bytes for share in owned[len(shown) :])
        rows.append((format_bytes(rest), "", "", "", "", "", "", "", "", f"{len(owned) - len(shown)} more processes"))
    rows += [_unowned_row(share) for share in accounting.shares if share.pid is None and share.bytes]
    if accounting.difference_bytes is not None:
        rows.append((format_bytes(accounting.difference_bytes), *[""] * 8, "difference, as above"))
    rows.append((format_bytes(accounting.cgroup_bytes), *[""] * 8, "= what the cgroup counts"))
    yield from (f"  {line}" for line in align(rows, right=range(9)))


def _process_row(share: Share, process: ProcessRecord) -> tuple[str, ...]:
    use = process.memory
    if use is None:
        figures = [UNKNOWN] * 6
    else:
        kinds = map(format_bytes, pss_by_kind(process))
        figures = [format_bytes(share.bytes), *kinds, format_bytes(use.swap_bytes), format_bytes(use.rss_bytes)]
    inside = str(process.ns_pids[-1]) if process.ns_pids else UNKNOWN
    adj = UNKNOWN if process.oom_score_adj is None else str(process.oom_score_adj)
    return (*figures, str(process.pid), inside, adj, command_of(process))


def command_of(process: ProcessRecord, limit: int = 60) -> str:
    """The command line, cut; of a process that has none its comm. Escaped."""
    if not process.cmdline:
        return escape(f"[{process.comm}]" + (" (zombie)" if process.state in "ZX" else ""))
    return escape(" ".join(process.cmdline), limit)


def _unowned_row(share: Share) -> tuple[str, ...]:
    return (format_bytes(share.bytes), *[""] * 8, _UNOWNED.get(share.kind, LABELS.get(share.kind, share.kind)))


def _label(part: Part) -> str:
    return LABELS.get(part.kind, part.kind)


def _share(count: int, total: int | None) -> str:
    return f"{count / total:.1%}" if total else ""


def _percent(count: int | None, total: int) -> str:
    return "" if count is None or not total else f" ({count / total:.0%})"


def _bar(count: int, total: int | None) -> str:
    return "#" * round(_BAR_COLUMNS * min(1, max(0, count) / total)) if total else ""
