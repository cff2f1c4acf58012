"""Lines that tell the memory of a process or container: of docker, kubectl, ps, top, pidstat, and of programs' logs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rtdebug.leaks.foreign.quantities import factor_of

_SIZE = r"([\d.]+) ?((?:[kKMGTP]i?)?B)"
_USAGE = re.compile(rf"(?<![\w.]){_SIZE} ?/ ?{_SIZE}\b")
_ID = re.compile(r"[0-9a-f]{12}|[0-9a-f]{64}")
_PROCESSES = tuple(
    re.compile(pattern)
    for pattern in (
        # ps aux: USER PID %CPU %MEM VSZ RSS TTY STAT START TIME COMMAND
        r"(?:^|\s)\S+\s+(?P<pid>\d+)\s+[\d.]+\s+[\d.]+\s+\d+\s+(?P<rss>\d+)\s+\S+\s+[RSDTZIWXt]\S*\s+\S+\s+[\d:.-]+\s+(?P<name>\S+)",
        # top: PID USER PR NI VIRT RES SHR S %CPU %MEM TIME+ COMMAND
        r"(?P<pid>\d+)\s+\S+\s+(?:-?\d+|rt)\s+-?\d+\s+[\d.]+[mgtp]?\s+(?P<rss>[\d.]+[mgtp]?)\s+[\d.]+[mgtp]?\s+[A-Z]\s+"
        r"[\d.]+\s+[\d.]+\s+[\d:.]+\s+(?P<name>\S+)",
        # pidstat -r: UID PID minflt/s majflt/s VSZ RSS %MEM Command
        r"\d+\s+(?P<pid>\d+)\s+\d+\.\d+\s+\d+\.\d+\s+\d+\s+(?P<rss>\d+)\s+\d+\.\d+\s+(?P<name>\S+)\s*$",
    )
)
_POD = re.compile(r"((?:[a-z0-9][\w.-]*\s+){1,3})\d+m?(?:\s+\d+%)?\s+(\d+)([KMGT]i)(?:\s+\d+%)?\s*$")
# systemd-cgtop: Control Group, Tasks, %CPU, Memory; crictl stats: CONTAINER, NAME, CPU %, MEM, DISK, INODES
_CGTOP = re.compile(r"(?P<name>/\S*)\s+(?:\d+|-)\s+(?:[\d.]+|-)\s+(?P<size>[\d.]+)(?P<unit>[KMGT])\s+\S+\s+\S+\s*$")
_CRICTL = re.compile(
    r"(?P<id>[0-9a-f]{13})\s+(?:(?P<name>[a-z]\S*)\s+)?[\d.]+\s+(?P<size>[\d.]+)(?P<unit>[kMGT]?B)\s+[\d.]+[kMGT]?B\s+\d+\s*$"
)
_AFTER_COLLECTION = tuple(
    re.compile(pattern)
    for pattern in (
        # Go: gc 18 @2014.334s 0%: ..., 2->2->1 MB, 4 MB goal, 8 P
        r"\bgc \d+ @(?P<at>[\d.]+)s .*?\d+->\d+->(?P<size>\d+) (?P<unit>M)B",
        # Java: [12.345s][info][gc] GC(5) Pause Young 123M->45M(256M) 3.2ms; 12.345: [GC (...) 5248K->1234K(2010K), ...]
        r"(?:^\[(?P<at>\d+[.,]\d+)s\]|\b(?P<at_old>\d+[.,]\d+): \[).*?"
        r"\b\d+[KMG]->(?P<size>\d+)(?P<unit>[KMG])\(\d+[KMG]\)",
        r"GC.*?\b\d+[KMG]->(?P<size>\d+)(?P<unit>[KMG])\(\d+[KMG]\)",
        # Node: [41:0x5f6e]   245 ms: Mark-sweep 2.6 (5.0) -> 2.5 (6.0) MB
        r"(?P<at_ms>\d+) ms: \S+.*? [\d.]+ \([\d.]+\) -> (?P<size>[\d.]+) \([\d.]+\) (?P<unit>M)B",
    )
)
_SAID = re.compile(
    r"\b(rss|vmrss|heap[ _]?used|heap|mem(?:ory)?[ _]?(?:usage|used|use)?)\b(?: \(current\))?[\"')]?\s*[=:]\s*[\"']?\s*"
    r"(\d[\d.]*)\s*([kKMGT]i?[bB]|bytes)\b",
    re.IGNORECASE,
)
_MPROF = re.compile(r"MEM ([\d.]+) 1\d{9}\.\d+\s*")
_LABEL = re.compile(r"(?:cpu|mem|memory|usage|name|container|id|pids?)|[\d.]+ ?%?|[-:]*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Row:
    """What a line tells of one process or container."""

    name: str
    """Empty: the line does not say."""
    id: str | None
    """Of a container, or a process: another one is a restart."""
    used: float
    """Bytes."""
    limit: float | None = None
    kind: str = "usage"
    at_s: float | None = None
    """Of a line whose time counts from a start: seconds."""


def rows_of(line: str) -> Iterator[Row]:
    """Give what a line tells; nothing of one that tells nothing."""
    if usage := _USAGE.search(line):
        yield from _container(line[: usage.start()], usage)
        return
    for pattern in _PROCESSES:
        if match := pattern.search(line):
            size, unit = re.fullmatch(r"([\d.]+)([mgtp]?)", match["rss"]).groups()  # type: ignore[union-attr]
            command = match["name"].rsplit("/", 1)[-1].strip(":")
            yield from _row(command or match["name"], match["pid"], size, f"{unit or 'k'}", "anon")
            return
    if match := _CGTOP.match(line.strip()) or _CRICTL.match(line.strip()):
        told = match.groupdict()
        yield from _row(told["name"] or told["id"], told.get("id"), told["size"], told["unit"])
        return
    for pattern in _AFTER_COLLECTION:
        if match := pattern.search(line):
            yield from _collected(match.groupdict())
            return
    if match := _MPROF.fullmatch(line):
        yield from _row("memory", None, match[1], "MiB", "anon")
        return
    if match := _POD.match(line.strip()):
        yield from _row("/".join(match[1].split()), None, match[2], match[3])
        return
    for match in _SAID.finditer(line):
        kind = "usage" if match[1].lower().startswith("mem") else "anon"
        yield from _row(match[1].lower().replace("vmrss", "rss"), None, match[2], match[3], kind)


def columned(line: str, columns: Sequence[str]) -> Iterator[Row]:
    """Give what a line of `ps -o` tells, below a header of PID, RSS and whatever else was asked for."""
    words = line.split(None, max(0, len(columns) - 1))
    told = dict(zip(columns, words, strict=False))
    if len(words) == len(columns) and told.get("PID", "").isdigit() and told.get("RSS", "").isdigit():
        command = told.get("COMMAND") or told.get("CMD") or told["PID"]
        name = command.split()[0].rsplit("/", 1)[-1] or command
        yield from _row(name, told["PID"], told["RSS"], "kB", "anon")


def _row(name: str, ident: str | None, size: str, unit: str, kind: str = "usage") -> Iterator[Row]:
    # the kernel's kB are of 1024 bytes; so are those of ps and top, which write none
    try:
        yield Row(name, ident, float(size) * factor_of("KiB" if unit in ("kB", "KB") else unit), None, kind)
    except ValueError:
        return


def _collected(told: dict[str, str | None]) -> Iterator[Row]:
    """What a heap holds after a collection of garbage."""
    seconds = told.get("at") or told.get("at_old")
    at_s = float(seconds.replace(",", ".")) if seconds else None
    if milliseconds := told.get("at_ms"):
        at_s = float(milliseconds) / 1000
    for row in _row("heap", None, told["size"] or "", told["unit"] or "", "anon"):
        yield replace(row, at_s=at_s)


def _container(before: str, usage: re.Match[str]) -> Iterator[Row]:
    """Of `usage / limit`: an id and a name, or one of them, stand before it. 0 B / 0 B is of one that does not run."""
    words = [word.strip(":\"'") for word in re.split(r"[\s,;|=]+", before.strip(" ,;|[]\"'"))]
    words = [word for word in words if not _LABEL.fullmatch(word)]
    ident = next((word for word in words if _ID.fullmatch(word)), None)
    named = next((word for word in reversed(words) if not _ID.fullmatch(word)), ident)
    figures = figures_of(usage)
    if figures:
        yield Row(named or "", ident, *figures)


def figures_of(usage: re.Match[str]) -> tuple[float, float] | None:
    """Return the bytes of `usage / limit`; None if it does not run."""
    try:
        used, limit = float(usage[1]) * factor_of(usage[2]), float(usage[3]) * factor_of(usage[4])
    except ValueError:
        return None
    return (used, limit) if limit else None


def usage_in(text: str) -> tuple[float, float] | None:
    """Return the bytes of `usage / limit` in a text."""
    usage = _USAGE.search(text)
    return figures_of(usage) if usage else None
