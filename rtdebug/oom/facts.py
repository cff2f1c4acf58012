"""Facts: the figures of one OOM kill that a verdict rests on, whoever told them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rtdebug.oom.log_usage import counter_of, usage_of
from rtdebug.oom.record import Constraint, HostMemory, OomRecord, TaskRow, Victim
from rtdebug.oom.usage import UsageByKind

KINDS = ("anon", "shmem", "file", "kernel", "swap")


@dataclass(frozen=True, slots=True)
class Process:
    """A process that was there; `size` is its anon memory (all of its RSS where that is not known) and its swap."""

    pid: int
    comm: str | None
    size: int
    """In units that are alike for all processes of one kill: pages, or bytes."""
    size_bytes: int | None


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of one kill. Nothing is guessed: None, or an empty tuple."""

    scope: Constraint | None = None
    usage_bytes: int | None = None
    """Of the counter that had no room."""
    limit_bytes: int | None = None
    counter: str | None = None
    parts: UsageByKind | None = None
    """Of that usage, from memory.stat."""
    stat: dict[str, int] | None = None
    """Parts of the kernel's memory: slab, page tables, ..."""
    processes: tuple[Process, ...] = ()
    """The largest first. From the task table, else from the kill lines."""
    is_whole_table: bool = False
    """`processes` are all there were."""
    victims: tuple[Victim, ...] = ()
    """The killed, with their swap where it is known."""
    host: HostMemory | None = None
    page_size_bytes: int | None = None
    order: int | None = None
    gfp_mask: str | None = None
    selected_score: int | None = None
    lowest_adj: int | None = None
    """The lowest oom_score_adj seen: below 0 it makes scores small, whatever their processes hold."""
    slab_failed_memcgs: tuple[str, ...] = ()
    oom_memcg: str | None = None
    cpuset: str | None = None
    mems_allowed: str | None = None
    nodemask: str | None = None

    @property
    def total_bytes(self) -> int | None:
        """What the kinds are shares of: the usage, else the sum of what is known."""
        known = sum(self.kinds.values())
        if self.usage_bytes is not None:
            return max(self.usage_bytes, known)
        return known or None

    @property
    def kinds(self) -> dict[str, int]:
        """The known parts by their names."""
        if self.parts is None:
            return {}
        sizes = {kind: getattr(self.parts, f"{kind}_bytes") for kind in KINDS}
        return {kind: size for kind, size in sizes.items() if size is not None}

    @property
    def dominant(self) -> tuple[str, int] | None:
        """The largest kind and its bytes, by memory.stat, else by the victim's own RSS."""
        sizes = self.kinds or self.victim_kinds
        if not any(sizes.values()):
            return None
        if sizes.get("swap"):  # what was swapped out was anon, nearly always
            sizes = {**sizes, "anon": sizes.get("anon", 0) + sizes.pop("swap")}
        return max(sizes.items(), key=lambda item: item[1])

    @property
    def victim_kinds(self) -> dict[str, int]:
        """The RSS of the killed by kind, and their swap."""
        names = {kind: f"{kind}_rss_bytes" for kind in ("anon", "shmem", "file")} | {"swap": "swap_bytes"}
        known = {
            kind: [size for victim in self.victims if (size := getattr(victim, name)) is not None]
            for kind, name in names.items()
        }
        return {kind: sum(sizes) for kind, sizes in known.items() if sizes}

    @property
    def largest_share(self) -> float | None:
        """The largest process's part of the anon memory of all; of the usage, when only the victim is known."""
        if not self.processes:
            return None
        largest, total = self.processes[0], sum(process.size for process in self.processes)
        if self.parts is not None and self.parts.anon_bytes and largest.size_bytes is not None:
            in_bytes = sum(process.size_bytes or 0 for process in self.processes)
            return _share(largest.size_bytes, max(in_bytes, self.parts.anon_bytes + (self.parts.swap_bytes or 0)))
        if not self.is_whole_table and len(self.processes) == 1:
            if largest.size_bytes is None or not self.usage_bytes:
                return None
            return _share(largest.size_bytes, max(largest.size_bytes, self.usage_bytes))
        return _share(largest.size, total)

    @property
    def free_bytes(self) -> int | None:
        """Free memory of the host."""
        free = self.host.free_pages if self.host else None
        return None if free is None or self.page_size_bytes is None else free * self.page_size_bytes

    @property
    def free_share(self) -> float | None:
        """The free part of the host's RAM."""
        if self.host is None or self.host.free_pages is None or not self.host.ram_pages:
            return None
        return self.host.free_pages / self.host.ram_pages

    @property
    def killed(self) -> int:
        """How many."""
        return len(self.victims)

    def most_frequent_comm(self) -> tuple[str, tuple[Process, ...]] | None:
        """The name that most processes have, and those processes."""
        names = Counter(process.comm for process in self.processes if process.comm)
        if not names:
            return None
        ((name, _),) = names.most_common(1)
        return name, tuple(process for process in self.processes if process.comm == name)


def facts_of(record: OomRecord) -> Facts:
    """The facts of a kill that a log tells."""
    counter = counter_of(record)
    page = record.page_size_bytes
    killed = record.victims or ((record.chosen,) if record.chosen else ())
    victims = tuple(replace(victim, swap_bytes=record.swap_bytes(victim)) for victim in killed)
    names = {victim.pid: victim.comm for victim in killed}
    processes = _processes(record.tasks, page, names)
    return Facts(
        scope=record.constraint,
        usage_bytes=counter.usage_bytes if counter else None,
        limit_bytes=counter.limit_bytes if counter else None,
        counter=record.limiting_counter,
        parts=usage_of(record),
        stat=dict(record.memory_stat) if record.memory_stat else None,
        processes=processes or _of_victims(record.victims),
        is_whole_table=bool(processes) and not record.cut,
        victims=victims,
        host=record.host,
        page_size_bytes=page,
        order=record.trigger.order if record.trigger else None,
        gfp_mask=record.trigger.gfp_mask if record.trigger else None,
        selected_score=record.selected.score if record.selected else None,
        lowest_adj=min(_adjustments(record), default=None),
        slab_failed_memcgs=record.slab_failed_memcgs,
        oom_memcg=record.oom_memcg,
        cpuset=record.cpuset,
        mems_allowed=record.mems_allowed,
        nodemask=record.nodemask,
    )


def _adjustments(record: OomRecord) -> Iterator[int]:
    of = (*record.tasks, *record.victims, *([record.trigger] if record.trigger else ()))
    yield from (each.oom_score_adj for each in of if each.oom_score_adj is not None)


def _processes(
    rows: Sequence[TaskRow], page: int | None, names: Mapping[int, str | None]
) -> tuple[Process, ...]:
    """`names`: from other lines, for rows whose end is cut off."""
    return _ordered(
        Process(row.pid, row.comm or names.get(row.pid), pages, None if page is None else pages * page)
        for row in rows
        if (pages := _pages(row)) is not None
    )


def _pages(row: TaskRow) -> int | None:
    resident = row.rss_pages if row.rss_anon_pages is None else row.rss_anon_pages
    return None if resident is None else resident + (row.swapents or 0)


def _of_victims(victims: Iterable[Victim]) -> tuple[Process, ...]:
    sizes = ((victim, victim.anon_rss_bytes) for victim in victims)
    return _ordered(
        Process(victim.pid, victim.comm, size + (victim.swap_bytes or 0), size + (victim.swap_bytes or 0))
        for victim, size in sizes
        if size is not None
    )


def _ordered(processes: Iterable[Process]) -> tuple[Process, ...]:
    return tuple(sorted(processes, key=lambda process: process.size, reverse=True))


def _share(part: int, total: int) -> float | None:
    return part / total if total else None
