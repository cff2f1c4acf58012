"""Where a container's memory is: by kind and by process, adding up to what its cgroup counts.

The cgroup's counter is what the limit acts on; its kinds (memory.stat) and the processes (PSS) are counted in other
places and at other moments. So there is always a difference, and it is named. Sources:
Documentation/admin-guide/cgroup-v1/memory.rst, cgroup-v2.rst ("memory.stat"), mm/memcontrol.c.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from rtdebug.host.maps import MappingKind, MemoryUse
from rtdebug.host.memcg import MemoryState
from rtdebug.snapshot.model import ProcessRecord, SharedMemory, Snapshot

STOCK_PAGES = 64
"""MEMCG_CHARGE_BATCH: each CPU may hold so many pages that are charged and not yet used."""
_SHMEM = frozenset(
    (MappingKind.SHM, MappingKind.MEMFD, MappingKind.SYSV, MappingKind.DEV_ZERO, MappingKind.DRM)
)
_KERNEL = (
    *("slab_reclaimable", "slab_unreclaimable", "kernel_stack"),
    *("pagetables", "sec_pagetables", "percpu", "vmalloc"),
)


@dataclass(frozen=True, slots=True)
class Part:
    """Some of the memory. `parts` are what it is made of; they add up to it."""

    kind: str
    bytes: int
    """Negative: processes map so much that is charged to other cgroups."""
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True)
class Share:
    """What one owner has of the memory: a process (by PSS), or what belongs to none (then pid is None)."""

    kind: str
    """`process`, or the kind of the part that no process owns."""
    bytes: int
    pid: int | None = None
    comm: str | None = None


@dataclass(frozen=True, slots=True)
class Accounting:
    """The container's memory. None: the cgroup could not be read, or counts nothing (the root of cgroup v2)."""

    cgroup: str | None
    cgroup_bytes: int | None
    """memory.usage_in_bytes or memory.current."""
    parts: tuple[Part, ...]
    difference_bytes: int | None
    """cgroup_bytes less the parts."""
    slack_bytes: int
    """What of the difference is to be expected: pages that the CPUs have charged ahead."""
    shares: tuple[Share, ...]
    """The same memory by owner: they add up to what the parts add up to."""
    beside: tuple[Part, ...]
    """Counted apart: swap; on v1 TCP buffers; hugetlb pages."""
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Mapped:
    """What the processes map, by PSS: no page is counted twice, and one shared with the outside only in part."""

    anon_bytes: int
    file_bytes: int
    shmem_bytes: int


def account(snapshot: Snapshot) -> Accounting:
    """The accounting of a snapshot; pure, so that it can be made again from its file."""
    memory = snapshot.cgroups[0].memory if snapshot.cgroups else None
    if memory is None:
        return Accounting(None, None, (), None, 0, _process_shares(snapshot.processes), (), _notes(snapshot, None))
    mapped = _mapped(snapshot.processes)
    slack_bytes = STOCK_PAGES * snapshot.host.page_bytes * snapshot.host.cpus
    split = _parts_v2 if memory.version == 2 else _parts_v1
    parts = tuple(
        _with_objects(part, snapshot.shared, slack_bytes) for part in split(memory, mapped, snapshot.processes)
    )
    total = sum(part.bytes for part in parts)
    usage = memory.usage_bytes
    return Accounting(
        cgroup=snapshot.cgroups[0].path,
        cgroup_bytes=usage,
        parts=parts,
        difference_bytes=None if usage is None else usage - total,
        slack_bytes=slack_bytes,
        shares=(*_process_shares(snapshot.processes), *_unowned(parts)),
        beside=_beside(snapshot, memory),
        notes=_notes(snapshot, memory),
    )


def binding_limit(snapshot: Snapshot) -> tuple[int, str] | None:
    """The lowest memory limit of the container's cgroup and all above it, and whose it is; None: there is none."""
    limits = [
        (record.memory.limit_bytes, record.path)
        for record in snapshot.cgroups
        if record.memory is not None and record.memory.limit_bytes is not None
    ]
    return min(limits, key=lambda limit: limit[0], default=None)


def pss_by_kind(process: ProcessRecord) -> tuple[int, int, int]:
    """PSS of a process as anon, file and shmem. Before Linux 5.3 smaps_rollup does not tell: then by its mappings."""
    use = process.memory
    if use is not None and None not in (use.pss_anon_bytes, use.pss_file_bytes, use.pss_shmem_bytes):
        return use.pss_anon_bytes or 0, use.pss_file_bytes or 0, use.pss_shmem_bytes or 0
    anon = file = shmem = 0
    for group in process.mappings:
        pss = group.use.pss_bytes or 0
        if group.kind in _SHMEM:
            shmem += pss
        elif group.inode_id:
            private = min(pss, group.use.anonymous_bytes or 0)
            anon, file = anon + private, file + pss - private
        else:
            anon += pss
    return anon, file, shmem


def _mapped(processes: Iterable[ProcessRecord]) -> _Mapped:
    columns = list(zip(*map(pss_by_kind, processes), strict=True)) or [(0,)] * 3
    return _Mapped(*(sum(column) for column in columns))


def _parts_v1(memory: MemoryState, mapped: _Mapped, processes: Sequence[ProcessRecord]) -> tuple[Part, ...]:
    stat = memory.stat
    page_tables = sum(process.page_table_bytes or 0 for process in processes)
    kernel = memory.kmem_usage_bytes
    kernel_parts = () if kernel is None else _with_rest([Part("pagetables", page_tables)], kernel, "other_kernel")
    return (
        *_user_parts(memory, mapped, stat.get("total_mapped_file"), stat.get("total_swapcached", 0)),
        *(() if kernel is None else (Part("kernel", kernel, kernel_parts),)),
    )


def _parts_v2(memory: MemoryState, mapped: _Mapped, processes: Sequence[ProcessRecord]) -> tuple[Part, ...]:
    stat = memory.stat
    kernel = memory.kernel_bytes
    known = [Part(key, stat[key]) for key in _KERNEL if stat.get(key)]
    return (
        *_user_parts(memory, mapped, stat.get("file_mapped"), stat.get("swapcached", 0)),
        *(() if kernel is None else (Part("kernel", kernel, _with_rest(known, kernel, "other_kernel")),)),
        *(Part(key, stat[key]) for key in ("sock", "hugetlb") if stat.get(key)),
    )


def _user_parts(
    memory: MemoryState, mapped: _Mapped, file_mapped: int | None, swap_cache: int
) -> Iterable[Part]:
    """Anonymous memory, shmem and page cache.

    The kernel counts pages in the swap cache with the files (NR_FILE_PAGES); those that are mapped are in anon too.
    """
    if memory.anon_bytes is not None:
        yield Part("anon", memory.anon_bytes, _split(memory.anon_bytes, mapped.anon_bytes, "anon"))
    if memory.file_bytes is None:
        return
    shmem = memory.least_shmem_bytes
    if shmem is None:  # kernels before 4.x: the two in one figure
        both = mapped.shmem_bytes + mapped.file_bytes
        yield Part("page_cache_and_shmem", memory.file_bytes, _split(memory.file_bytes, both, "page_cache_and_shmem"))
        return
    yield Part("shmem", shmem, _split(shmem, mapped.shmem_bytes, "shmem"))
    cache = max(0, memory.file_bytes - shmem - swap_cache)
    yield Part("page_cache", cache, _cache_parts(cache, shmem, mapped, file_mapped))


def _with_objects(part: Part, shared: SharedMemory | None, slack_bytes: int) -> Part:
    """Shared memory that no process has mapped, by what made it, where that is known and fits."""
    if part.kind == "unmapped_shmem":
        return replace(part, parts=_unmapped_objects(shared, part.bytes, slack_bytes))
    return replace(part, parts=tuple(_with_objects(inner, shared, slack_bytes) for inner in part.parts))


def _unmapped_objects(shared: SharedMemory | None, total: int, slack_bytes: int) -> tuple[Part, ...]:
    """Not more than there is: an object may be in swap, or be charged to another cgroup."""
    found: dict[str, int] = {}
    for each in (*shared.shm, *shared.sysv) if shared else ():
        if not each.mappers and each.allocated_bytes:
            found[each.kind.value] = found.get(each.kind.value, 0) + each.allocated_bytes
    if not found or sum(found.values()) > total + slack_bytes:
        return ()
    parts = [Part(f"{kind}_objects", size) for kind, size in found.items()]
    return _with_rest(parts, total, "other_shmem" if sum(found.values()) <= total else "late_shmem")


def _split(total: int, in_processes: int, kind: str) -> tuple[Part, ...]:
    rest = total - in_processes
    return (Part(f"mapped_{kind}", in_processes), Part(f"unmapped_{kind}" if rest >= 0 else f"foreign_{kind}", rest))


def _cache_parts(cache: int, shmem: int, mapped: _Mapped, file_mapped: int | None) -> tuple[Part, ...]:
    """Of the files that processes map, many are charged to who read them first: another container, or the host.

    The cgroup's own count of mapped pages (shmem among them) tells the two apart.
    """
    if file_mapped is None:
        return _split(cache, mapped.file_bytes, "page_cache")
    own = min(cache, max(0, file_mapped - min(shmem, mapped.shmem_bytes)))
    foreign = min(0, own - mapped.file_bytes)
    return (
        Part("mapped_page_cache", mapped.file_bytes),
        *((Part("foreign_page_cache", foreign),) if foreign else ()),
        Part("unmapped_page_cache", cache - mapped.file_bytes - foreign),
    )


def _with_rest(parts: Sequence[Part], total: int, kind: str) -> tuple[Part, ...]:
    return (*parts, Part(kind, total - sum(part.bytes for part in parts)))


def _process_shares(processes: Iterable[ProcessRecord]) -> tuple[Share, ...]:
    shares = [Share("process", sum(pss_by_kind(each)), each.pid, each.comm) for each in processes]
    return tuple(sorted(shares, key=lambda share: -share.bytes))


def _unowned(parts: Iterable[Part]) -> Iterable[Share]:
    for part in parts:
        mapped = [inner for inner in part.parts if inner.kind.startswith("mapped_")]
        if not mapped:
            yield Share(part.kind, part.bytes)
            continue
        yield from (Share(inner.kind, inner.bytes) for inner in part.parts if inner not in mapped and inner.bytes)


def _beside(snapshot: Snapshot, memory: MemoryState) -> tuple[Part, ...]:
    tcp = _number(snapshot.cgroups[0].files, "memory.kmem.tcp.usage_in_bytes")
    uses = [process.memory for process in snapshot.processes if process.memory is not None]
    found = {
        "swap": memory.swap_usage_bytes,
        "tcp_buffers": tcp,
        "hugetlb": _hugetlb(uses) if not memory.stat.get("hugetlb") else None,
    }
    return tuple(Part(kind, count) for kind, count in found.items() if count)


def _hugetlb(uses: Iterable[MemoryUse]) -> int:
    return sum((use.shared_hugetlb_bytes or 0) + (use.private_hugetlb_bytes or 0) for use in uses)


def _number(files: Mapping[str, str], name: str) -> int | None:
    text = files.get(name, "").strip()
    return int(text) if text.isdecimal() else None


def _notes(snapshot: Snapshot, memory: MemoryState | None) -> tuple[str, ...]:
    notes = []
    if memory is None:
        notes.append("the memory cgroup could not be read: there is nothing that the processes could add up to")
    elif memory.usage_bytes is None or snapshot.cgroups[0].path == "/":
        notes.append("this is the root cgroup: it counts the host, not this target")
    elif snapshot.container.id.startswith("pid:"):
        notes.append("the cgroup counts all of its processes, the target is one of them")
    if any(process.memory is None and process.state not in "ZX" for process in snapshot.processes):
        notes.append("the memory of some processes could not be read: their part counts as unmapped")
    return tuple(notes)
