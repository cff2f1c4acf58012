"""The search for the neighbourhood of OOM kills gives the parser all that it needs, and little else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rtdebug.oom import scan
from rtdebug.oom.kernel_log import read_oom_log
from rtdebug.oom.scan import oom_lines, scan_log
from tests.unit.oom_dumps import MIB, Task, global_dump, memcg_dump

FIXTURES = sorted((Path(__file__).parent / "fixtures" / "oom").iterdir())
CASES = Path(os.environ.get("RTDEBUG_CASES", Path(__file__).parents[2].parent / "shared" / "cases"))
REAL = sorted(CASES.glob("*.log")) if CASES.is_dir() else []
TASKS = [Task(7001, "java", 15_000), Task(7002, "sh", 50)]
DUMP = "\n".join(f"[  100.000001] {line}" for line in memcg_dump({"anon": 60 * MIB}, TASKS)) + "\n"
OTHER = b"[   99.000001] eth0: link becomes ready\n"


def blocks(data, size):
    return [data[at : at + size] for at in range(0, len(data), size)]


@pytest.mark.parametrize("size", [1, 7, 4096, 1 << 20])
@pytest.mark.parametrize("path", [*FIXTURES, *REAL], ids=lambda path: path.name)
def test_the_same_as_a_reading_of_the_whole(path, size):
    data = path.read_bytes()
    whole = read_oom_log(data.decode("utf-8", "surrogateescape").split("\n"))
    assert list(scan_log(blocks(data, size))) == whole


@pytest.mark.parametrize("before", [0, 3, 3_000, 30_000])
def test_a_dump_among_others_is_whole(before):
    data = OTHER * before + DUMP.encode() + OTHER * 3_000
    (record,) = scan_log(blocks(data, scan.BLOCK_BYTES))
    assert record.missing == ()
    assert (record.trigger.tid, record.victims[0].pid) == (7001, 7001)
    assert len(record.tasks) == 2


def test_little_is_read_closely():
    data = OTHER * 50_000 + DUMP.encode() + OTHER * 50_000
    lines = [line for _, line in oom_lines(blocks(data, scan.BLOCK_BYTES))]
    assert len(lines) < 300


def test_a_table_longer_than_the_neighbourhood():
    tasks = [Task(7000 + index, "worker", 15 + index) for index in range(5_000)]
    data = "\n".join(global_dump(tasks)).encode()
    (record,) = scan_log(blocks(data, 4096))
    assert len(record.tasks) == 5_000
    assert record.victims[0].pid == 11_999


def test_a_summary_line_alone_is_found():
    summary = next(line for line in DUMP.splitlines() if "oom-kill:constraint" in line)
    (record,) = scan_log([f"{summary}\n".encode()])
    assert record.chosen.pid == 7001


def test_a_line_without_end_takes_no_memory():
    data = b"x" * (4 * scan.BLOCK_BYTES)
    (record,) = scan_log([data] * 20 + [b"\n", DUMP.encode()])
    assert record.victims[0].pid == 7001


def test_what_a_reboot_left_is_no_part_of_the_next_boots_kill():
    head = DUMP.splitlines()[:3]
    later = [line.replace("100.000001", "17.000001") for line in DUMP.splitlines()[-1:]]
    first, second = scan_log(["\n".join([*head, *later]).encode()])
    assert first.victims == ()
    assert second.trigger is None


def test_months_apart_without_uptime():
    lines = [line.partition("] ")[2] for line in DUMP.splitlines()]
    head = [f"Jan  3 10:00:00 node-7 kernel: {line}" for line in lines[:3]]
    kill = [f"Mar 11 10:00:00 node-7 kernel: {lines[-1]}"]
    first, second = scan_log(["\n".join([*head, *kill]).encode()])
    assert first.victims == ()
    assert second.trigger is None
