"""`rtdebug oom` on a kern.log of 1 GiB with 1,000 kills, beside `grep -c`; its memory there and on a small one."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.figure import Figure, Result, Samples, interleave, ratio_of_least
from benchmarks.tracers import ROOT, python_environment

ROUNDS = 5
KILLS = 1_000
MIB = 1 << 20
LARGE_BYTES = 1024 * MIB
SMALL_BYTES = 64 * MIB
DUMP = ROOT / "tests" / "unit" / "fixtures" / "oom" / "memcg-v1-6.18.dmesg"

_OTHERS = (
    'audit: type=1400 audit(1764515002.123:{0}): apparmor="ALLOWED" operation="open" profile="snap.x" pid={0}',
    "IPv6: ADDRCONF(NETDEV_CHANGE): veth{0:07x}: link becomes ready",
    "docker0: port {0}(veth{0:07x}) entered blocking state",
    "[UFW BLOCK] IN=eth0 OUT= SRC=203.0.113.{0} DST=198.51.100.7 LEN=40 TOS=0x00 PREC=0x00 TTL=244 ID={0} PROTO=TCP",
    "nf_conntrack: nf_conntrack: table full, dropping packet {0}",
    "EXT4-fs (dm-{0}): mounted filesystem with ordered data mode. Opts: (null)",
    "usb 1-{0}: new high-speed USB device number {0} using xhci_hcd",
)


def measure() -> Result:
    """Both read a file that is in the page cache, whole processes from start to end: by the clock, and by the processor
    time that they took, which a busy machine disturbs less.
    """
    with TemporaryDirectory(dir="/var/tmp") as folder:
        large, small = Path(folder, "kern.log"), Path(folder, "small.log")
        write_log(large, LARGE_BYTES, KILLS)
        write_log(small, SMALL_BYTES, KILLS)
        subjects = {"grep -c": ["grep", "-c", "Killed process", str(large)], "rtdebug oom -o json": _command(large)}
        taken = interleave(ROUNDS, {name: partial(_run, command) for name, command in subjects.items()})
        peaks = [_run(_command(path)).peak_bytes / MIB for path in (large, small)]
    wall = [Samples(name, tuple(run.wall_s for run in runs)) for name, runs in taken.items()]
    processor = [Samples(f"{name}, processor", tuple(run.processor_s for run in runs)) for name, runs in taken.items()]
    of_wall, of_processor = (ratio_of_least("ratio", rtdebug, grep) for grep, rtdebug in (wall, processor))
    return Result(
        (
            Figure("oom / grep -c, processor time", of_processor, "x", 10),
            Figure("oom / grep -c, by the clock", of_wall, "x"),
            Figure("peak memory on 1 GiB / on 64 MiB", Samples("memory", (peaks[0] / peaks[1],)), "x", 1.1),
            Figure("peak memory on 1 GiB", Samples("memory", (peaks[0],)), "MiB"),
        ),
        (*wall, *processor),
        "s",
    )


@dataclass(frozen=True, slots=True)
class Run:
    """What one process took."""

    wall_s: float
    processor_s: float
    peak_bytes: int


def write_log(path: Path, size_bytes: int, kills: int) -> None:
    """A kern.log: `kills` dumps, evenly spread among other messages, each of another process."""
    dump = [line.partition("] ")[2] for line in DUMP.read_text(encoding="utf-8").splitlines()]
    others = "".join(_dressed(index, text.format(index)) for index, text in _endless(2000))
    with path.open("w", encoding="utf-8") as log:
        for kill in range(kills):
            log.write("".join(_dressed(kill, line) for line in dump))
            room = size_bytes * (kill + 1) // kills - log.tell()
            while room > 0:
                log.write(others)
                room -= len(others)


def _endless(count: int) -> Iterator[tuple[int, str]]:
    return ((index, _OTHERS[index % len(_OTHERS)]) for index in range(count))


def _dressed(second: int, message: str) -> str:
    clock = f"{second // 3600 % 24:02d}:{second // 60 % 60:02d}:{second % 60:02d}"
    uptime = f"{second * 60:6d}.{second % 1000:03d}000"
    return f"Nov {second // 86400 % 28 + 1:2d} {clock} node-7 kernel: [{uptime}] {message}\n"


def _command(path: Path) -> list[str]:
    return [sys.executable, "-m", "rtdebug", "oom", str(path), "-o", "json"]


def _run(command: list[str]) -> Run:
    started = time.perf_counter()
    # a pipe, for grep stops at the first line that it finds when it writes to /dev/null
    process = subprocess.Popen(command, cwd=ROOT, env=python_environment(), stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout as output:
        lines = output.read().splitlines()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    assert len(lines) == KILLS or lines == [str(KILLS).encode()]
    return Run(time.perf_counter() - started, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)
