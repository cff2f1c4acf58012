"""Command line of the benchmarks; benchmarks/run starts it."""

from __future__ import annotations

import importlib
import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click

from benchmarks.figure import Result
from rtdebug.errors import RtdebugError
from rtdebug.host.bcc import find_bcc, read_version

BENCHMARKS = (
    "help",
    "start",
    "memory",
    "overhead",
    "bystander",
    "storm",
    "shm",
    "snapshot",
    "oom_log",
    "madvise_list",
    "madvise_inject",
    "madvise_run",
    "leaks_record",
    "leaks.evidence",
    "leaks.scale",
    "export",
)
"""Each is a module of this folder with a function measure()."""


@click.command()
@click.argument("names", metavar="[NAME]...", nargs=-1, type=click.Choice(BENCHMARKS))
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def main(names: tuple[str, ...], output: str) -> None:
    """Measure the figures that rtdebug has to reach, beside bpftrace and bcc; exit status 1 when one is missed.

    Without NAME: all of them. Times are compared by the least of all rounds, the rest by the median; medians are shown
    with the least and the largest in brackets.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # cgroups and processes are removed on the way out
    machine = _machine()
    results = {}
    if output == "table":
        click.echo("; ".join(f"{key} {value}" for key, value in machine.items()))
    for name in dict.fromkeys(names or BENCHMARKS):
        measure: Callable[[], Result] = importlib.import_module(f"benchmarks.{name}").measure
        results[name] = measure()
        if output == "table":
            _show(results[name])
    figures = [figure for result in results.values() for figure in result.figures]
    if output == "json":
        document = {"machine": machine, "figures": [figure.as_dict() for figure in figures]}
        document["samples"] = {
            name: {sample.name: sample.values for sample in result.samples} for name, result in results.items()
        }
        click.echo(json.dumps(document, indent=2))
    sys.exit(not all(figure.met for figure in figures))


def _show(result: Result) -> None:
    click.echo()
    for figure in result.figures:
        click.echo(figure)
    for sample in result.samples:
        click.echo(f"    {sample.name:<54} {sample} {result.unit}")


def _machine() -> dict[str, str]:
    """What the figures were measured on."""
    bpftrace = subprocess.run(["bpftrace", "--version"], capture_output=True, text=True, check=True).stdout
    cpus = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    model = next((line.partition(":")[2].strip() for line in cpus if line.startswith("model name")), "unknown")
    return {
        "kernel": platform.release(),
        "cpu": f"{os.cpu_count()} x {model}",
        "python": platform.python_version(),
        "bpftrace": bpftrace.split()[-1],
        "bcc": read_version(find_bcc()) or "unknown",
    }


if __name__ == "__main__":
    try:
        main()
    except RtdebugError as error:
        sys.exit(f"benchmarks: {error.message}\n{error.hint}")
