"""The answer of a madvise experiment, for people and for programs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rtdebug.errors import UsageProblem
from rtdebug.madvise.answer import answers
from rtdebug.madvise.recommendation import recommend
from rtdebug.render.madvise_picture import check_picture, write_picture
from rtdebug.render.madvise_raw import check_raw, run_frame, write_raw
from rtdebug.render.madvise_run import run_json, run_table
from tests.unit.madvise_outcome import MIB, NO_SWAP, outcome

ADVICE = {
    "HUGEPAGE": {"total_ns": 4e6, "populate_ns": 3e6, "advice_ns": 1e4, "thp_bytes": 64 * MIB},
    "DONTNEED": {"access_ns": 12e6, "total_ns": 2e7, "returned_bytes": 64 * MIB, "return_ns": 3e6, "rss_bytes": 0},
    "FREE": {"returned_bytes": 0, "lazyfree_bytes": 64 * MIB},
    "REMOVE": {"errno": "EINVAL"},
    "PAGEOUT": {"returned_bytes": 0},
}


def table(result) -> str:
    found = answers(result)
    return run_table(result, found, recommend(found, result.settings))


def row(text: str, advice: str) -> str:
    (line,) = [line for line in text.splitlines() if line.startswith(f"  {advice} ") and "could not" not in line]
    return line


def test_table() -> None:
    text = table(outcome(ADVICE, NO_SWAP))
    assert "anon, 64 MiB, random read" in text
    assert "4.0 ms -60 % (-60 to -60)" in row(text, "HUGEPAGE") and "3.0 ms -67 %" in row(text, "HUGEPAGE")
    assert "64 MiB in 3.0 ms" in row(text, "DONTNEED") and "12.1 ms x 12" in row(text, "DONTNEED")
    assert "no difference" in row(text, "FREE") and "only under pressure" in row(text, "FREE")
    assert "REMOVE: madvise(2) refused it, EINVAL" in text
    assert "PAGEOUT could not act: no swap" in text and "no difference" not in row(text, "PAGEOUT")
    assert "MADV_HUGEPAGE takes 60% off" in text and "MADV_DONTNEED gives 64 MiB back" in text
    assert max(map(len, text.splitlines())) <= 140


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
