"""`rtdebug oom` on a kern.log of 1 GiB with 1,000 kills, beside `grep -c`; its memory there and on a small one."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.figure import Figure, Result, ratio, ratio_of_least, sampled
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
    """Both read a file that is in the page cache; times are of whole processes."""
    with TemporaryDirectory(dir="/var/tmp") as folder:
        large, small = Path(folder, "kern.log"), Path(folder, "small.log")
        write_log(large, LARGE_BYTES, KILLS)
        write_log(small, SMALL_BYTES, KILLS)
        assert _kills(large) == KILLS
        grep, rtdebug = sampled(
            ROUNDS,
            {
                "grep -c": lambda: _seconds(["grep", "-c", "Killed process", str(large)]),
                "rtdebug oom -o json": lambda: _seconds(_command(large)),
            },
        )
        peaks = sampled(2, {"1 GiB": lambda: _peak_bytes(large) / MIB, "64 MiB": lambda: _peak_bytes(small) / MIB})
    of_large, of_small = peaks
    return Result(
        (
            Figure("rtdebug oom / grep -c, 1 GiB with 1,000 kills", ratio_of_least("ratio", rtdebug, grep), "x", 10),
            Figure("peak memory on 1 GiB / on 64 MiB", ratio("memory", of_large, of_small), "x", 1.1),
            Figure("peak memory on 1 GiB", of_large, "MiB"),
        ),
        (grep, rtdebug),
        "s",
    )


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


def _kills(path: Path) -> int:
    done = subprocess.run(_command(path), cwd=ROOT, env=python_environment(), capture_output=True, check=True)
    return done.stdout.count(b"\n")


def _seconds(command: list[str]) -> float:
    started = time.perf_counter()
    # a pipe, for grep stops at the first line that it finds when it writes to /dev/null
    subprocess.run(command, cwd=ROOT, env=python_environment(), stdout=subprocess.PIPE, check=True)
    return time.perf_counter() - started


def _peak_bytes(path: Path) -> int:
    process = subprocess.Popen(_command(path), cwd=ROOT, env=python_environment(), stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_maxrss * 1024
