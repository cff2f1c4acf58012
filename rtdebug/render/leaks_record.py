"""What `rtdebug leaks record` says: the line when it begins, the status line, and the summary."""

from __future__ import annotations

from pathlib import Path

from rtdebug.leaks.recorder import Progress
from rtdebug.render.jsonl import encode_object
from rtdebug.render.units import format_bytes, format_count, format_duration


def ready_line(store: Path, interval_s: float, targets: tuple[str, ...], sources: tuple[str, ...]) -> str:
    """One line that begins with `Recording`. Not escaped."""
    who = ", ".join(targets) if targets else "all containers of this host"
    what = f" and allocation sites ({', '.join(sources)})" if sources else ""
    return f"Recording {who}{what} every {interval_s:g} s into {store}. Ctrl-C to stop."


def status_line(progress: Progress) -> str:
    """One line of at most 100 columns."""
    share = progress.cpu_ns / progress.elapsed_ns if progress.elapsed_ns else 0.0
    return (
        f"{_who(progress)}: "
        f"{_count(progress.samples, 'sample')} in {format_duration(progress.elapsed_ns)}, "
        f"{format_bytes(progress.size_bytes)}, {share:.1%} of a CPU"
    )


def summary_text(progress: Progress, store: Path) -> str:
    """The last lines, escaped by the caller."""
    lines = [status_line(progress)]
    if progress.missed:
        lines.append(f"{_count(progress.missed, 'sample')} missed: sampling took longer than the interval")
    if progress.lost_rows:
        lines.append(f"{_count(progress.lost_rows, 'row')} lost: the store could not be written")
    lines.append(f"Recorded to {store}; see `rtdebug leaks report {store}`.")
    return "\n".join(lines)


def summary_json(progress: Progress, store: Path) -> str:
    """The summary as one JSON document."""
    fields = {name: getattr(progress, name) for name in Progress.__slots__}
    return encode_object({"store": str(store), **fields}) + "\n"


def _who(progress: Progress) -> str:
    processes = _count(progress.processes, "process")
    if not progress.containers and progress.processes:  # targets that are no containers
        return processes
    return f"{_count(progress.containers, 'container')}, {processes}"


def _count(count: int, thing: str) -> str:
    plural = thing + ("es" if thing.endswith("s") else "s")
    return f"{format_count(count)} {thing if count == 1 else plural}"
