"""Lines that tell the memory of a process or container: of docker, kubectl, ps, top, pidstat, and of programs' logs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from rtdebug.leaks.quantities import factor_of

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
_POD = re.compile(r"((?:[a-z0-9][\w.-]*\s+){1,3})\d+m?\s+(\d+)([KMGT]i)\s*$")
_SAID = re.compile(
    r"\b(rss|vmrss|heap[ _]?used|heap|mem(?:ory)?[ _]?(?:usage|used)?)\b[\"')]?\s*[=:]\s*[\"']?\s*"
    r"(\d[\d.]*)\s*([kKMGT]i?[bB]|bytes)\b",
    re.IGNORECASE,
)
_MPROF = re.compile(r"MEM ([\d.]+) 1\d{9}\.\d+\s*")
_LABEL = re.compile(r"(?:cpu|mem|memory|usage|name|container|id|pids?)|[\d.]+ ?%?|[-:]*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Row:
    """What a line tells of one process or container."""

    name: str
    id: str | None
    """Of a container, or a process: another one is a restart."""
    used: float
    """Bytes."""
    limit: float | None = None
    kind: str = "usage"


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
    if match := _MPROF.fullmatch(line):
        yield from _row("memory", None, match[1], "MiB", "anon")
        return
    if match := _POD.match(line.strip()):
        yield from _row("/".join(match[1].split()), None, match[2], match[3])
        return
    for match in _SAID.finditer(line):
        kind = "usage" if match[1].lower().startswith("mem") else "anon"
        yield from _row(match[1].lower().replace("vmrss", "rss"), None, match[2], match[3], kind)


def _row(name: str, ident: str | None, size: str, unit: str, kind: str = "usage") -> Iterator[Row]:
    # the kernel's kB are of 1024 bytes; so are those of ps and top, which write none
    try:
        yield Row(name, ident, float(size) * factor_of("KiB" if unit in ("kB", "KB") else unit), None, kind)
    except ValueError:
        return


def _container(before: str, usage: re.Match[str]) -> Iterator[Row]:
    """Of `usage / limit`: an id and a name, or one of them, stand before it. 0 B / 0 B is of one that does not run."""
    words = [word.strip(":\"'") for word in re.split(r"[\s,;|=]+", before.strip(" ,;|[]\"'"))]
    words = [word for word in words if not _LABEL.fullmatch(word)]
    ident = next((word for word in words if _ID.fullmatch(word)), None)
    named = next((word for word in reversed(words) if not _ID.fullmatch(word)), ident)
    figures = figures_of(usage)
    if named and figures:
        yield Row(named, ident, *figures)


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
