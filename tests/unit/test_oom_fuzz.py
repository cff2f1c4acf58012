"""Logs that were cut, interleaved and corrupted: nothing crashes, and no figure comes out that did not go in."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

pytest.importorskip("hypothesis")
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rtdebug.oom.cluster import find_clusters
from rtdebug.oom.episode import make_episode
from rtdebug.oom.record import OomRecord
from rtdebug.oom.scan import scan_log
from rtdebug.render.oom_json import oom_json
from rtdebug.render.oom_page import oom_page
from rtdebug.render.oom_table import OomTable
from tests.unit.oom_dumps import MIB, Task, global_dump, memcg_dump

FIXTURES = Path(__file__).parent / "fixtures" / "oom"
TASKS = [Task(71011, "java", 15013), Task(71023, "a b: (c) [d]", 4099), Task(71039, "x", 17)]
DRESSINGS = ("", "[ 1234.567891] ", "Mar 11 10:16:36 node-7 kernel: ", "Mar 11 10:16:36 node-7 kernel: [ 1234.567891] ")
LOGS = [
    *(path.read_text(encoding="utf-8").splitlines() for path in sorted(FIXTURES.iterdir())),
    *(
        [dressing + line for line in dump]
        for dressing in DRESSINGS
        for dump in (
            memcg_dump({"anon": 61 * MIB, "file": 3 * MIB, "shmem": 1 * MIB, "kernel": 2 * MIB}, TASKS),
            global_dump(TASKS),
        )
    ),
]
_COMPUTED = frozenset({"time_ns", "kill_lines"})


def figures(value: object, name: str = "") -> list[int]:
    """All numbers of a record as they were printed: kB where we have bytes."""
    if isinstance(value, bool) or name in _COMPUTED:
        return []
    if isinstance(value, int):
        return [value // 1024 if name.endswith("_bytes") and name != "pgtables_bytes" else value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [
            number for each in dataclasses.fields(value) for number in figures(getattr(value, each.name), each.name)
        ]
    if isinstance(value, dict):
        return [number for each in value.values() for number in figures(each, name)]
    if isinstance(value, tuple | list):
        return [number for each in value for number in figures(each, name)]
    return []


def occurs(number: int, text: str) -> bool:
    """memory.stat of v1 is in kB, of v2 in bytes."""
    return any(str(each) in text for each in (abs(number), abs(number) // 1024))


def check(data: bytes, block_bytes: int) -> None:
    text = data.decode("utf-8", "surrogateescape")
    text += text.replace("\n", "").replace("\r", "")  # what a terminal wrapped is joined
    records = list(scan_log(data[at : at + block_bytes] for at in range(0, len(data), block_bytes)))
    episodes = [make_episode(record, "x") for record in records]
    for record, episode in zip(records, episodes, strict=True):
        assert isinstance(record, OomRecord)
        for number in figures(record):
            assert occurs(number, text), number
        for victim in record.victims:
            assert victim.comm is None or victim.comm in text
        fields = json.loads(oom_json(episode))
        assert "\x1b" not in oom_page(episode)
        assert fields["complete"] in (True, False)
    if episodes:
        table = OomTable()
        for episode in episodes:
            table.add(episode)
        assert "\x1b" not in table.text()
        find_clusters(episodes[:1])


@st.composite
def mangled(draw: st.DrawFn) -> bytes:
    """One to three logs, interleaved, with lines cut, dropped, doubled and corrupted."""
    logs = [list(log) for log in draw(st.lists(st.sampled_from(LOGS), min_size=1, max_size=3))]
    lines: list[str] = []
    while any(logs):
        source = draw(st.sampled_from([log for log in logs if log]))
        run = draw(st.integers(1, 40))
        lines += source[:run]
        del source[:run]
    for _ in range(draw(st.integers(0, 8))):
        at = draw(st.integers(0, len(lines) - 1))
        line = lines[at]
        match draw(st.integers(0, 5)):
            case 0:
                lines[at] = line[: draw(st.integers(0, len(line)))]
            case 1:
                lines[at] = line[: draw(st.integers(0, len(line)))] + draw(
                    st.sampled_from(["...", "…", "\r", "#012", "\\n"])
                )
            case 2:
                lines[at] = ""
            case 3:
                lines.insert(at, line)
            case 4:
                position = draw(st.integers(0, len(line)))
                lines[at] = line[:position] + draw(st.text(max_size=3)) + line[position + 1 :]
            case _:
                lines[at] = draw(st.sampled_from(LOGS[0])) + line
    end = draw(st.sampled_from(["\n", "\r\n"]))
    raw = end.join(lines).encode("utf-8", "surrogatepass")
    start = draw(st.integers(0, min(500, len(raw))))
    return raw[start : len(raw) - draw(st.integers(0, min(500, len(raw) - start)))]


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(mangled(), st.sampled_from([37, 4096, 1 << 20]))
def test_no_crash_and_no_invented_figure(data: bytes, block_bytes: int) -> None:
    check(data, block_bytes)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.binary(max_size=400), st.sampled_from(LOGS))
def test_bytes_of_any_kind_in_a_dump(noise: bytes, log: list[str]) -> None:
    middle = len(log) // 2
    check("\n".join(log[:middle]).encode() + noise + "\n".join(log[middle:]).encode(), 4096)
