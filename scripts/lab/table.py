"""The table event x kernel x way of attaching, of the lines that tests/kernel/test_attach_kinds.py leaves."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

HEAD = """# What each way of attaching gives on each kernel

Written by `scripts/vm-test --all --table docs/kernels.md`, not by hand: how often each event came when the programs of
`tests/kernel/test_attach_kinds.py` ran, with the tracepoints attached in one way, and what the program on
`out_of_memory()` said of an OOM kill, attached in one way, where the kernel log could not be read. How many mappings a
leak makes before it is killed differs from run to run; all other numbers must be the same. See [lab.md](lab.md).

"""

Row = tuple[str, str, str, str]
"""Kernel release, way, event, count."""


def parse_rows(text: str) -> list[Row]:
    """The lines of a run."""
    rows = (line.split("\t") for line in text.splitlines())
    return [(row[0], row[1], row[2], row[3]) for row in rows if len(row) == 4]


def render(rows: Iterable[Row]) -> str:
    """Markdown. A way that a kernel does not offer has no column; an event that a way did not give is `-`."""
    counts = {(release, way, event): count for release, way, event, count in rows}
    columns = sorted({(release, way) for release, way, _ in counts}, key=lambda each: (_numbers(each[0]), each[1]))
    lines = [["event", *(f"{release} {way}" for release, way in columns)], ["---"] * (len(columns) + 1)]
    for event in sorted({event for _, _, event in counts}):
        lines.append([f"`{event}`", *(counts.get((*column, event), "-") for column in columns)])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def write_table(rows: Iterable[Row], path: Path) -> None:
    """Replace the document."""
    path.write_text(HEAD + render(rows), encoding="utf-8")


def _numbers(release: str) -> list[int]:
    return [int(part) for part in release.partition("-")[0].partition("+")[0].split(".") if part.isdigit()]
