"""The answer of a madvise experiment, for people and for programs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rtdebug.errors import UsageProblem
from rtdebug.madvise.answer import answers
from rtdebug.madvise.plan_text import parse_toml, shipped_plans
from rtdebug.madvise.recommendation import recommend
from rtdebug.render.madvise_picture import check_picture, write_picture
from rtdebug.render.madvise_raw import check_raw, run_frame, write_raw
from rtdebug.render.madvise_run import run_json, run_table
from tests.unit.madvise_outcome import MIB, NO_SWAP, outcome

ADVICE = {
    "HUGEPAGE": {"total_ns": 4e6, "populate_ns": 3e6, "advice_ns": 1e4, "thp_bytes": 64 * MIB},
    "DONTNEED": {"access_ns": 12e6, "total_ns": 2e7, "returned_bytes": 64 * MIB, "return_ns": 3e6, "rss_bytes": 0,
                 "advice_ns": 3e6},
    "FREE": {"returned_bytes": 0, "lazyfree_bytes": 64 * MIB},
    "REMOVE": {"errno": "EINVAL"},
    "PAGEOUT": {"returned_bytes": 0},
}


def table(result) -> str:
    found = answers(result)
    return run_table(result, found, recommend(found, result.settings))


def row(text: str, advice: str) -> str:
    (line,) = [line for line in text.splitlines() if line.startswith(f"  {advice} ") and "not compared" not in line]
    return line


def test_table() -> None:
    text = table(outcome(ADVICE, NO_SWAP))
    assert "anon, 64 MiB, random read" in text
    assert "4.0 ms -60 % (-60..-60)" in row(text, "HUGEPAGE") and "3.0 ms <" in row(text, "HUGEPAGE")
    assert row(text, "DONTNEED").endswith("12.1 ms >     0 B     0 B  64 MiB")
    assert "10.1 ms ~" in row(text, "FREE") and row(text, "FREE").endswith("at need")
    assert "REMOVE: madvise(2) refused it, EINVAL" in text
    assert "PAGEOUT is not compared: no swap" in text
    assert not {"~", "<", ">", "?"} & set(row(text, "PAGEOUT").split())
    assert "MADV_HUGEPAGE takes 60% off" in text and "MADV_DONTNEED gives 64 MiB back" in text


@pytest.mark.parametrize("scale", [1, 13.7, 999])
@pytest.mark.parametrize("plan", sorted(shipped_plans()))
def test_shipped_plans_fit_a_terminal_of_100_columns(plan: str, scale: float) -> None:
    slow = {"total_ns": 1.23e8 * scale, "populate_ns": 3.33e6 * scale, "advice_ns": 4.44e6 * scale, "cpu_ns": 1.4e8}
    given = {"access_ns": 5e7, "returned_bytes": 62.3 * MIB, "return_ns": 4.44e6 * scale, "rss_bytes": 0}
    for case in parse_toml(shipped_plans()[plan], plan).cases:
        advice = {each: slow | (given if each in ("DONTNEED", "REMOVE") else {}) for each in case.advice}
        if "COLLAPSE" in advice:
            advice["COLLAPSE"] = advice["COLLAPSE"] | {"thp_bytes": 64 * MIB}
        lines = table(outcome(advice, memory=case.memory)).splitlines()
        assert max(map(len, lines)) <= 100, max(lines, key=len)


def test_what_cannot_be_told_is_no_same() -> None:
    """A median that is far off, and runs that differ so much among themselves that it may be chance."""
    result = outcome({"FREE": {}})
    noisy = [
        replace(run, total_ns=(5 + 20 * (run.round % 2)) * 10**6) if run.advice == "FREE" else run
        for run in result.runs
    ]
    result = replace(result, runs=tuple(noisy))
    line = row(table(result), "FREE").split()
    assert "?" in line and "~" in line, "in all, and the CPU time"
    assert "FREE: unclear" in table(result)


def test_stopped_and_not_measured_is_said() -> None:
    result = replace(outcome(ADVICE), stopped="the container ended", unable={0: "/dev/shm is\x1b[2J full"})
    text = table(result)
    assert "STOPPED: the container ended. Only 90 runs are counted below." in text
    assert "not measured: /dev/shm is" in text and "\x1b" not in text


def test_hostile_names_reach_no_terminal() -> None:
    result = outcome(ADVICE)
    result = replace(result, container=replace(result.container, name="\x1b]0;x\x07\u202eweb"))
    assert "\x1b" not in table(result) and "\u202e" not in table(result)


def test_json() -> None:
    result = outcome(ADVICE, NO_SWAP)
    found = answers(result)
    document = json.loads(run_json(result, found, recommend(found, result.settings)))
    assert {"baseline", "results", "recommendation", "seed", "stopped", "not_measured"} <= document.keys()
    (total,) = [
        each for each in document["results"] if (each["advice"], each["measure"]) == ("MADV_HUGEPAGE", "total_ns")
    ]
    assert total["memory"] == "anon" and total["runs"] == 15 and total["verdict"] == "less"
    assert total["effect"] == pytest.approx(-0.6) and total["interval"][0] <= total["median"] <= total["interval"][1]
    assert {each["advice"] for each in document["baseline"]} == {None}
    (pageout,) = [
        each for each in document["results"] if (each["advice"], each["measure"]) == ("MADV_PAGEOUT", "total_ns")
    ]
    assert "no swap" in pageout["hindrance"] and pageout["errno"] is None
    assert [each["advice"] for each in document["recommendation"]] == ["MADV_HUGEPAGE", "MADV_DONTNEED"]


def test_frame_has_a_row_for_each_run_and_unknown_is_null() -> None:
    frame = run_frame(outcome(ADVICE))
    assert len(frame) == 16 * 6
    assert frame["warm_up"].sum() == 6
    assert str(frame["total_ns"].dtype) == "Int64"
    assert frame["access_dtlb_misses"].isna().all()


@pytest.mark.parametrize("name", ["runs.parquet", "runs.json", "runs.jsonl"])
def test_raw_comes_back_as_it_was(tmp_path: Path, name: str) -> None:
    import pandas as pd

    result = outcome(ADVICE)
    path = tmp_path / name
    write_raw(path, result)
    read = {".parquet": pd.read_parquet, ".json": pd.read_json, ".jsonl": lambda file: pd.read_json(file, lines=True)}
    back = read[path.suffix](path)
    assert back["total_ns"].tolist() == [run.total_ns for run in result.runs]
    assert back["advice"].tolist() == [run.advice for run in result.runs]


@pytest.mark.parametrize(("name", "begin"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.html", b"<!doctype")])
def test_picture(tmp_path: Path, name: str, begin: bytes) -> None:
    result = outcome(ADVICE)
    result = replace(result, container=replace(result.container, name="$\\frac{$ <script>"))
    path = tmp_path / name
    write_picture(path, result)
    content = path.read_bytes()
    assert content.startswith(begin) and b"<script>" not in content


def test_forms_are_checked_before_anything_is_run() -> None:
    with pytest.raises(UsageProblem, match="--picture: no form"):
        check_picture(Path("a.gif"))
    with pytest.raises(UsageProblem, match="--raw: no form"):
        check_raw(Path("a.csv"))
    check_picture(None)
    check_raw(None)


@pytest.mark.parametrize("place", ["absent/runs", "file/runs"])
def test_a_place_where_nothing_can_be_is_refused_before_anything_is_run(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageProblem, match=r"--raw: .* cannot be written"):
        check_raw(tmp_path / f"{place}.json")
    with pytest.raises(UsageProblem, match=r"--picture: .* cannot be written"):
        check_picture(tmp_path / f"{place}.png")
    check_raw(tmp_path / "runs.json")
