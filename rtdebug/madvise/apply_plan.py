"""Advice on one mapping of a live process, planned: what can be refused is refused here, and nothing is changed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rtdebug.errors import HostUnable, TargetError, UsageProblem
from rtdebug.host.maps import Mapping, SmapsEntry, read_maps, read_smaps
from rtdebug.host.meminfo import read_meminfo
from rtdebug.host.process import is_running, read_stat
from rtdebug.host.text import read_text
from rtdebug.host.thp import ThpSettings, read_thp
from rtdebug.madvise.advice import ADVICE, Advice, Memory, Way, applicable
from rtdebug.madvise.eligible import aligned_bytes, eligibility
from rtdebug.madvise.fitness import thp_disabled
from rtdebug.madvise.inject import examine
from rtdebug.madvise.process_madvise import is_taken
from rtdebug.madvise.target import find_mapping, label, memory_of

_ON_PRIVATE_ONLY = frozenset({"MADV_DONTNEED", "MADV_DONTNEED_LOCKED", "MADV_FREE"})
"""On a shared mapping these drop what the process has mapped; the data stay in the file or segment."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done; making one changes nothing."""

    pid: int
    start_ticks: int
    comm: str
    mapping: Mapping
    advice: Advice
    undo: Advice | None
    """What takes it back; None: nothing does, or nothing is to be taken back."""
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Host:
    """What the plan depends on beside the process."""

    thp: ThpSettings | None
    has_swap: bool
    ksm_runs: bool
    not_taken: frozenset[str] = frozenset()
    """Advice that this kernel does not have, or not by the way it would be given."""

    @property
    def collapses(self) -> bool:
        """Whether it has MADV_COLLAPSE."""
        return "MADV_COLLAPSE" not in self.not_taken


def read_host(proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> Host:
    """Read it."""
    return Host(
        thp=read_thp(sys),
        has_swap=bool(read_meminfo(proc).get("SwapTotal")),
        ksm_runs=(read_text(sys / "kernel/mm/ksm/run") or "").strip() == "1",
        not_taken=frozenset(advice.name for advice in applicable() if not is_taken(advice)),
    )


def make_plan(
    pid: int, mapping: str, advice: Advice, *, undo: bool, destroy: bool, host: Host, proc: Path = Path("/proc")
) -> Plan:
    """Find the mapping, and refuse what cannot or must not be.

    `undo`: it is to be taken back later. `destroy`: the user has said that data may be lost. Raises UsageProblem,
    TargetError, and for an advice that the process must give itself what examine() raises.
    """
    if advice.way is Way.NONE:
        names = ", ".join(each.short_name for each in applicable())
        raise UsageProblem(f"{advice.name} cannot be given to a live process", f"these can: {names}")
    _check_kernel(advice, host)
    stat = read_stat(pid, proc)
    mappings = read_maps(pid, proc)
    if stat is None or not is_running(pid, proc):
        raise TargetError(f"process {pid} has exited", "rtdebug madvise list TARGET shows what there is now")
    found = find_mapping(mappings, mapping)
    memory = _check_kind(found, advice)
    _check_swap(advice, memory, host)
    _check_data(found, advice, destroy)
    entry = _entry_of(pid, found, proc)
    back = _undo_of(advice, entry.vm_flags or (), host.thp) if undo else None
    if back is not None:
        _check_kernel(back, host)
    _check_collapse(entry, advice, memory, host, pid, proc)
    if advice.way is Way.INJECT:
        examine(pid, proc)
    return Plan(pid, stat.start_ticks, stat.comm, found, advice, back, tuple(_notes(entry, advice, back, host)))


def _check_kernel(advice: Advice, host: Host) -> None:
    if advice.name in host.not_taken:
        call = "process_madvise(2)" if advice.way is Way.PROCESS_MADVISE else "madvise(2)"
        raise HostUnable(
            f"{call} of this kernel takes no {advice.name}", f"Linux {advice.since} and newer do, if built with it"
        )


def _entry_of(pid: int, mapping: Mapping, proc: Path) -> SmapsEntry:
    for entry in read_smaps(pid, proc):
        if entry.mapping.start <= mapping.start < entry.mapping.end:
            return entry
    raise TargetError(f"nothing is mapped at {mapping.start:#x} in process {pid} any more", "see /proc/PID/maps")


def _check_kind(mapping: Mapping, advice: Advice) -> Memory:
    memory = memory_of(mapping)
    if memory is None:
        raise UsageProblem(f"{label(mapping)!r} is no memory that can be advised on", "it belongs to the kernel")
    if memory not in advice.acts_on:
        kinds = ", ".join(sorted(advice.acts_on))
        raise UsageProblem(f"{advice.name} acts on {kinds} memory, and {label(mapping)!r} is {memory}", advice.does)
    return memory


def _check_swap(advice: Advice, memory: Memory, host: Host) -> None:
    if advice.name == "MADV_PAGEOUT" and memory is not Memory.FILE and not host.has_swap:
        raise HostUnable(
            "MADV_PAGEOUT can do no good here: this host has no swap",
            f"{memory} memory would stay where it is, and its huge pages would be split; files can be dropped",
        )


def _check_collapse(entry: SmapsEntry, advice: Advice, memory: Memory, host: Host, pid: int, proc: Path) -> None:
    """A file of a disk may do (CONFIG_READ_ONLY_THP_FOR_FS); that is for the kernel to say."""
    if advice.name != "MADV_COLLAPSE" or memory is Memory.FILE:
        return
    may = eligibility(entry, memory, host.thp, thp_disabled(pid, proc), host.collapses)
    if not may.collapse:
        hint = "MADV_HUGEPAGE takes that back" if "nh" in (entry.vm_flags or ()) else "see rtdebug madvise list"
        raise UsageProblem(f"this mapping cannot have huge pages: {may.why}", hint)


def _check_data(mapping: Mapping, advice: Advice, destroy: bool) -> None:
    if not advice.destroys or (advice.name in _ON_PRIVATE_ONLY and mapping.perms[3] == "s"):
        return
    if mapping.perms[2] == "x" or mapping.path in ("[stack]", "[heap]"):
        raise UsageProblem(
            f"{advice.name} on {label(mapping)!r} would crash the process", "it is not done, whatever options are given"
        )
    if not destroy:
        raise UsageProblem(
            f"{advice.name} can destroy data: {advice.does}",
            "if the process can do without what is in this very mapping, say so with --destroy-data",
        )


def _undo_of(advice: Advice, flags: tuple[str, ...], thp: ThpSettings | None) -> Advice | None:
    """The advice that brings back what was; None if it was so before. Raises UsageProblem if nothing does."""
    if advice.undo is None:
        raise UsageProblem(f"{advice.name} cannot be undone", f"leave out --for: it {advice.does}")
    undo = ADVICE[advice.undo]
    if advice.sets_flag in flags or (
        advice.sets_flag is None and advice.clears_flag and advice.clears_flag not in flags
    ):
        return None
    if advice.sets_flag in ("hg", "nh") and undo.sets_flag not in flags:
        # neither was set, and the kernel knows no way back to that: the opposite must mean the same here
        enabled = thp.enabled if thp else None
        same = enabled != "always" if advice.sets_flag == "hg" else enabled == "always"
        if not same:
            raise UsageProblem(
                f"{advice.name} cannot be undone here: the mapping has no advice on huge pages now, and with "
                f"transparent_hugepage/enabled={enabled} {undo.name} would not be the same",
                "leave out --for: it is for the rest of the process's life, or of the mapping's",
            )
    return undo


def _notes(entry: SmapsEntry, advice: Advice, undo: Advice | None, host: Host) -> Iterable[str]:
    mapping, name = entry.mapping, advice.short_name
    if undo and undo.sets_flag in ("hg", "nh") and undo.sets_flag not in (entry.vm_flags or ()):
        yield f"afterwards it has {undo.name}, which it has not now: the kernel knows no way back to neither"
    pmd = host.thp.pmd_size_bytes if host.thp else None
    if name == "HUGEPAGE" and not pmd:
        yield "this kernel has no transparent huge pages"
    elif name == "HUGEPAGE" and pmd and not aligned_bytes(mapping.start, mapping.end, pmd):
        yield f"no aligned huge page of {pmd // 1024:,} KiB fits into this mapping"
    if name == "HUGEPAGE":
        collapse = "; COLLAPSE makes them of what is there" if host.collapses else ""
        yield f"huge pages come with the next faults and from khugepaged{collapse}"
        if host.thp and host.thp.enabled == "never":
            only = "only COLLAPSE makes" if host.collapses else "nothing makes"
            yield f"transparent_hugepage/enabled=never: {only} huge pages here"
    if name == "COLLAPSE" and entry.use.rss_bytes is not None:
        more = mapping.length_bytes - entry.use.rss_bytes
        if more > mapping.length_bytes // 10:
            yield f"pages that were never touched come with it: up to {more // 1024:,} KiB more memory"
    if name == "MERGEABLE" and not host.ksm_runs:
        yield "KSM does not run on this host (/sys/kernel/mm/ksm/run): nothing is merged until it does"
