"""`rtdebug diagnose`: a page for people, and one JSON document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rtdebug.diagnose.facts import Facts
from rtdebug.diagnose.finding import Finding, Severity
from rtdebug.host.memcg import MemoryState
from rtdebug.render.columns import align, wrap
from rtdebug.render.escape import escape
from rtdebug.render.jsonl import encode_object
from rtdebug.render.oom_verdict import fill
from rtdebug.render.terminal import Style, paint
from rtdebug.render.units import format_bytes, format_share, format_value, short_id, short_path
from rtdebug.tracing.line import Value

_STYLES = {Severity.CRITICAL: Style.ALARM, Severity.WARNING: Style.FAILED, Severity.NOTE: Style.QUIET}
_INDENT = "    "
_KINDS = {"anon": "anon", "shmem": "shared memory and tmpfs", "file": "page cache", "kernel": "the kernel's own"}


def diagnosis_fields(target: str, facts: Facts, findings: Sequence[Finding]) -> dict[str, Value]:
    """The document, see docs/diagnose.md."""
    container = facts.container
    return {
        "target": target,
        "container_id": container.id if container else None,
        "container_name": container.name if container else None,
        "runtime": container.runtime if container else None,
        "cgroup": container.cgroup if container else None,
        "usage_by_kind": _by_kind(facts),
        "dominant_kind": facts.memory.dominant_kind if facts.memory else None,
        "findings": [
            {
                "rule": finding.rule,
                "severity": finding.severity.value,
                "cause": fill(finding.cause, finding.evidence),
                "evidence": dict(finding.evidence),
                "change": list(finding.change),
            }
            for finding in findings
        ],
        "notes": list(facts.notes),
    }


def diagnosis_json(target: str, facts: Facts, findings: Sequence[Finding]) -> str:
    """One line of JSON."""
    return encode_object(diagnosis_fields(target, facts, findings)) + "\n"


def diagnosis_page(
    target: str, facts: Facts, findings: Sequence[Finding], width: int = 100, colour: bool = False
) -> Iterator[str]:
    """The page: what is found, the worst first, and what was looked at."""
    yield paint(f"Diagnosis of {escape(_name(target, facts))}", Style.TITLE, colour)
    yield from wrap(_state(facts), width)
    for number, finding in enumerate(findings, 1):
        yield ""
        title = f"{number}. {finding.severity.value}: {finding.rule}"
        yield paint(title, _STYLES[finding.severity], colour)
        for row in wrap(short_path(fill(finding.cause, finding.evidence)), width - len(_INDENT)):
            yield _INDENT + row
        yield from _rows("seen", [_figures(finding)], width)
        yield from _rows("change", finding.change, width)
    if not findings:
        yield ""
        yield paint("Nothing wrong was found.", Style.GOOD, colour)
    for note in facts.notes:
        yield from wrap(f"note: {note}", width)


def summary_table(diagnoses: Sequence[tuple[Facts, Sequence[Finding]]]) -> str:
    """One line for each container that has findings, for --all."""
    rows = [("CONTAINER", "CRITICAL", "WARNINGS", "THE WORST")]
    for facts, findings in sorted(diagnoses, key=_worst_first):
        if findings:
            counts = [sum(each.severity is kind for each in findings) for kind in Severity]
            rows.append((_name("", facts), str(counts[0]), str(counts[1]), findings[0].rule))
    healthy = sum(not findings for _, findings in diagnoses)
    lines = align(rows, right={1, 2}) if len(rows) > 1 else []
    lines.append(f"{healthy} of {len(diagnoses)} containers: nothing found.")
    notes = Counter(note for facts, _ in diagnoses for note in facts.notes)
    lines += [f"note: of {count} not all could be looked at: {escape(note)}" for note, count in notes.most_common(3)]
    return "\n".join(lines) + "\n"


def _worst_first(diagnosis: tuple[Facts, Sequence[Finding]]) -> tuple[int, ...]:
    return tuple(-sum(each.severity is kind for each in diagnosis[1]) for kind in Severity)


def _name(target: str, facts: Facts) -> str:
    container = facts.container
    return target if container is None else container.name or short_id(container.id)


def _state(facts: Facts) -> str:
    if facts.container is None or (facts.container.status == "stopped" and facts.memory is None):
        return "It does not run now: only logs were looked at."
    memory, limits = facts.memory, facts.limits
    if memory is None or limits is None:
        return "It has no memory cgroup of its own."
    limit = "no limit" if limits.limit_bytes is None else f"a limit of {format_bytes(limits.limit_bytes)}"
    parts = [f"{format_bytes(memory.usage_bytes)} in use with {limit}{_dominant(memory)}"]
    if limits.unreclaimable_bytes is not None:
        parts.append(f"{format_bytes(limits.unreclaimable_bytes)} of it cannot be reclaimed")
    for mount in facts.shm.mounts if facts.shm else ():
        if mount.is_dev_shm:
            parts.append(f"/dev/shm {format_bytes(mount.used_bytes)} of {format_bytes(mount.size_bytes)}")
    if facts.shm and facts.shm.dev_shm_fstype is None:
        parts.append("no /dev/shm (shm_open fails there)")
    return ", ".join(parts) + "."


def _dominant(memory: MemoryState) -> str:
    kind, usage = memory.dominant_kind, memory.usage_bytes
    if kind is None or not usage:
        return ""
    return f" ({format_share(min(1.0, memory.by_kind_bytes[kind] / usage))} {_KINDS[kind]})"


def _by_kind(facts: Facts) -> Value:
    return {f"{kind}_bytes": count for kind, count in facts.memory.by_kind_bytes.items()} if facts.memory else None


def _figures(finding: Finding) -> str:
    known = [(name, value) for name, value in finding.evidence.items() if value is not None]
    return ", ".join(f"{_spoken(name)} {format_value(name, value)}" for name, value in known)


def _spoken(name: str) -> str:
    return name.removesuffix("_bytes").replace("_bytes_per_s", " per second").replace("_", " ")


def _rows(label: str, texts: Sequence[str], width: int) -> Iterator[str]:
    head = f"{_INDENT}{label:<8}"
    for text in texts:
        for row in wrap(short_path(text), width - len(head)):
            yield head + row
            head = " " * len(head)
