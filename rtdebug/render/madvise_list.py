"""The mappings worth advising, as a table and as one JSON document."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from rtdebug.host.thp import ThpSettings
from rtdebug.madvise.candidates import Candidate, Candidates
from rtdebug.madvise.target import label
from rtdebug.render.columns import align, cut_middle, wrap
from rtdebug.render.escape import escape
from rtdebug.render.jsonl import encode_object
from rtdebug.render.units import UNKNOWN, format_bytes, format_count
from rtdebug.tracing.line import Value

_HEADER = ("GAIN", "ADVICE", "PID", "COMM", "ADDRESS", "SIZE", "RESIDENT", "HUGE", "IDLE", "WHY", "MAPPING")
_NUMBERS = frozenset({0, 2, 4, 5, 6, 7, 8, 9})
_IDLE = _HEADER.index("IDLE")
_NAME_COLUMNS = 28
_WIDTH = 100
_NOTHING = "no mapping has {least} or more resident; mappings: {mappings}, processes: {processes}\n"


def list_table(
    found: Candidates, thp: ThpSettings | None, least_bytes: int, idle_s: float | None, target: str = "TARGET"
) -> str:
    """What the host allows, the mappings, and what the figures mean. `target`: as its user calls it."""
    lines = [_settings(thp)]
    if found.found:
        reasons = list(dict.fromkeys(each.eligibility.why for each in found.found))
        rows = [_HEADER, *(_row(each, reasons) for each in found.found)]
        has_idle = idle_s is not None or _has_idle(found)
        lines += align(rows if has_idle else [_without_idle(row) for row in rows], right=_numbers(has_idle))
        for number, reason in enumerate(reasons, 1):
            lines += wrap(f"WHY {number}: {reason}", _WIDTH)
    else:
        lines.append(
            _NOTHING.format(
                least=format_bytes(least_bytes),
                mappings=format_count(found.mappings),
                processes=format_count(found.processes),
            ).rstrip("\n")
        )
    lines += _footnotes(found, least_bytes, idle_s, target)
    return "\n".join(lines) + "\n"


def list_json(found: Candidates, thp: ThpSettings | None, idle_s: float | None) -> str:
    """`{"mappings": [...], "total": {...}, "host": {...}}`."""
    document: dict[str, Value] = {
        "mappings": [_record(each) for each in found.found],
        "total": {
            "mappings": found.mappings,
            "processes": found.processes,
            "rss_bytes": found.rss_bytes,
            "below_least_size": found.left_out,
            "processes_not_read": found.gone,
            "idle_seconds": idle_s,
        },
        "host": None
        if thp is None
        else {
            "enabled": thp.enabled,
            "defrag": thp.defrag,
            "shmem_enabled": thp.shmem_enabled,
            "huge_page_bytes": thp.pmd_size_bytes,
            "sizes": [
                {"size_bytes": size, "enabled": each.enabled, "shmem_enabled": each.shmem_enabled}
                for size, each in sorted(thp.sizes.items())
            ],
        },
    }
    return encode_object(document) + "\n"


def _settings(thp: ThpSettings | None) -> str:
    if thp is None:
        return "this kernel has no transparent huge pages"
    used = [(size, each) for size, each in sorted(thp.sizes.items()) if each.enabled not in (None, "never")]
    sizes = [f"{size >> 10} KiB {each.enabled}" for size, each in used]
    return (
        f"transparent huge pages of {format_bytes(thp.pmd_size_bytes)}: enabled={thp.enabled or UNKNOWN}, "
        f"defrag={thp.defrag or UNKNOWN}, shmem_enabled={thp.shmem_enabled or UNKNOWN}"
        + (f"; sizes: {', '.join(sizes)}" if sizes else "")
    )


def _has_idle(found: Candidates) -> bool:
    return any(each.advice == "MADV_PAGEOUT" for each in found.found)


def _without_idle(row: tuple[str, ...]) -> tuple[str, ...]:
    return row[:_IDLE] + row[_IDLE + 1 :]


def _numbers(has_idle: bool) -> frozenset[int]:
    return _NUMBERS if has_idle else frozenset(number for number in _NUMBERS if number < max(_NUMBERS))


def _row(each: Candidate, reasons: list[str]) -> tuple[str, ...]:
    shared = f" (in {each.processes} processes)" if each.processes > 1 else ""
    return (
        format_bytes(each.gain_bytes) if each.gain_bytes else UNKNOWN,
        (each.advice or UNKNOWN).removeprefix("MADV_"),
        str(each.pid),
        each.comm,
        f"{each.mapping.start:#x}",
        format_bytes(each.mapping.length_bytes),
        format_bytes(each.rss_bytes),
        format_bytes(each.huge_bytes),
        format_bytes(each.idle_bytes),
        str(reasons.index(each.eligibility.why) + 1),
        cut_middle(label(each.mapping), _NAME_COLUMNS) + shared,
    )


def _footnotes(found: Candidates, least_bytes: int, idle_s: float | None, target: str) -> Iterator[str]:
    if found.left_out:
        least = format_bytes(least_bytes)
        yield f"{format_count(found.left_out)} mappings with less than {least} resident are left out"
    if found.gone:
        yield f"{format_count(found.gone)} processes are the kernel's, ended meanwhile, or may not be read"
    if not found.found:
        return
    if idle_s is None:
        known = "IDLE: since the kernel last looked, mostly too little"
        yield f"{known if _has_idle(found) else 'what is idle is not known'}; --idle 30s measures it"
    else:
        yield f"IDLE: not accessed for {idle_s:g} s"
    best = found.found[0]
    if best.advice:
        where = f"{escape(shlex.quote(target))} --pid {best.pid} --mapping {best.mapping.start:#x}"
        yield f"try it: rtdebug madvise apply {where} --advice {best.advice.removeprefix('MADV_')} --dry-run"


def _record(each: Candidate) -> dict[str, Value]:
    mapping = each.mapping
    return {
        "pid": each.pid,
        "comm": each.comm,
        "start_address": mapping.start,
        "end_address": mapping.end,
        "perms": mapping.perms,
        "path": mapping.path or None,
        "memory": str(each.memory) if each.memory else None,
        "size_bytes": mapping.length_bytes,
        "rss_bytes": each.rss_bytes,
        "huge_bytes": each.huge_bytes,
        "idle_bytes": each.idle_bytes,
        "thp_eligible": each.thp_eligible,
        "huge_by_fault": each.eligibility.faults,
        "huge_by_collapse": each.eligibility.collapse,
        "why": each.eligibility.why,
        "advice": each.advice,
        "gain_bytes": each.gain_bytes,
        "processes": each.processes,
    }
