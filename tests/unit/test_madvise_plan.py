"""Plans of madvise experiments: what is read, and what is said of a bad one."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from rtdebug.errors import RtdebugError, UsageProblem
from rtdebug.madvise.advice import ADVICE, PREFIX
from rtdebug.madvise.experiment import turns
from rtdebug.madvise.plan import AUTO_LARGEST_BYTES, MOMENT_OF, Case, Plan, sized
from rtdebug.madvise.plan_text import parse_line, parse_toml, read_plan, shipped_plans

MIB = 1 << 20

GOOD = """\
question = "Which?"
runs = 7
warm_up = 0
seed = 11

[[case]]
memory = ["anon", "memfd"]
size = "5 MiB"
access = "zipf"
mode = "write"
advice = ["MADV_HUGEPAGE", "dontneed"]

[[case]]
memory = "file"
file = "/models/a.bin"
advice = "WILLNEED"
when = "after"
accesses = 13
stride = "8 KiB"
"""


def test_file() -> None:
    plan = parse_toml(GOOD, "web.toml")
    assert (plan.name, plan.question, plan.runs, plan.warm_up, plan.seed) == ("web.toml", "Which?", 7, 0, 11)
    anon, memfd, file = plan.cases
    assert anon == replace(memfd, memory="anon")
    assert (anon.advice, anon.size_bytes, anon.access, anon.mode) == (
        ("HUGEPAGE", "DONTNEED"), 5 * MIB, "zipf", "write",
    )  # fmt: skip
    assert (anon.moment("HUGEPAGE"), anon.moment("DONTNEED")) == ("before", "after")
    assert (file.memory, file.file, file.size_bytes, file.access_count) == ("file", "/models/a.bin", None, 13)
    assert (file.moment("WILLNEED"), file.stride_bytes) == ("after", 8192)


@pytest.mark.parametrize("line", ["anon 64M random read HUGEPAGE,COLLAPSE runs=3", "runs=3 MADV_COLLAPSE"])
def test_line(line: str) -> None:
    if line.startswith("anon"):
        plan = parse_line(line)
        assert plan.runs == 3
        assert plan.cases == (Case("anon", ("HUGEPAGE", "COLLAPSE"), 64 * MIB, where="plan"),)
    else:
        with pytest.raises(UsageProblem, match="'memory' is missing"):
            parse_line(line)


def test_line_in_any_order() -> None:
    first = parse_line("anon,shm 64M stride write after HUGEPAGE,FREE stride=128 seed=3")
    assert parse_line("seed=3 write huGEPAGE,free after stride anon,shm stride=128 64 MiB") == first
    assert [case.memory for case in first.cases] == ["anon", "shm"]
    assert first.cases[0].stride_bytes == 128


@pytest.mark.parametrize(
    ("old", "new", "line", "said", "allowed"),
    [
        ('"dontneed"', '"DONTNED"', 11, "no advice 'DONTNED', did you mean 'DONTNEED'?", "POPULATE_WRITE"),
        ('"memfd"', '"heap"', 7, "no memory 'heap'", "anon, shared-anon, memfd, shm, sysv, file"),
        ('"5 MiB"', '"5 Mb/s"', 8, "'5 Mb/s' is no size", "2 GiB"),
        ('"5 MiB"', "0", 8, "size 0 is nothing", "64 KiB"),
        ('"zipf"', '"zip"', 9, "no access 'zip', did you mean 'zipf'?", "sequential, stride, random, zipf"),
        ('"write"', '"rw"', 10, "no mode 'rw'", "read, write"),
        ("runs = 7", "runs = 0", 2, "runs is 0", "1 to 1000"),
        ("runs = 7", "runs = true", 2, "runs is True", "1 to 1000"),
        ("warm_up = 0", "warm_up = -1", 3, "warm_up is -1", "0 to 1000"),
        ("seed = 11", 'seed = "x"', 4, "seed is 'x'", "0 to"),
        ("seed = 11", "seeed = 11", 4, "no key 'seeed', did you mean 'seed'?", "question, runs"),
        ('when = "after"', 'when = "during"', 17, "no when 'during'", "before, after"),
        ("accesses = 13", "accesses = 0", 18, "accesses is 0", "1 to"),
        ('"8 KiB"', '"7"', 19, "stride 7", "multiple of 8"),
        ("accesses = 13", "acesses = 13", 18, "no key 'acesses', did you mean 'accesses'?", "stride"),
        ('advice = "WILLNEED"', "advice = []", 16, "'advice' is []", "one or a list"),
        ('advice = "WILLNEED"', 'advice = "REMOVE"', 15, "REMOVE would change '/models/a.bin'", "only read"),
        ('advice = "WILLNEED"', 'advice = "WILLNEED"\nmode = "write"', 15, "mode write would change", "only read"),
        ('memory = "file"', 'memory = "shm"', 15, "'file' with memory 'shm'", "memory: file"),
    ],
)
def test_a_bad_file_names_the_line_and_what_is_allowed(old: str, new: str, line: int, said: str, allowed: str) -> None:
    assert old in GOOD
    with pytest.raises(UsageProblem) as caught:
        parse_toml(GOOD.replace(old, new), "web.toml")
    assert f"web.toml, line {line}: " in caught.value.message
    assert said in caught.value.message
    assert allowed in caught.value.hint


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("runs = x\n[[case]]", "no TOML.*line 1"),
        ("runs = 3", "has no case"),
        ("case = 3", "line 1: 'case' is not a list"),
        ('[case]\nmemory = "anon"', "'case' is not a list"),
        ('[[case]]\nadvice = "FREE"', "line 1: 'memory' is missing"),
        ('[[case]]\nmemory = ["anon"]\nadvice = "FREE"\n' * 65, "has 65 cases"),
    ],
)
def test_a_file_that_is_no_plan(text: str, said: str) -> None:
    with pytest.raises(UsageProblem, match=said):
        parse_toml(text, "web.toml")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("anon HUGPAGE", "no advice 'HUGPAGE', did you mean 'HUGEPAGE'?"),
        ("anon pillow HUGEPAGE", "'pillow' means nothing"),
        ("anon memfd HUGEPAGE", "'memfd' is a second memory"),
        ("anon 3Q HUGEPAGE", "'3Q' is no size"),
        ("anon HUGEPAGE runs=0", "runs is 0"),
        ("anon HUGEPAGE runs=many", "runs is 'many'"),
        ("anon HUGEPAGE sped=3", "no key 'sped'"),
        ("anon", "'advice' is missing"),
    ],
)
def test_a_bad_line(line: str, said: str) -> None:
    with pytest.raises(UsageProblem) as caught:
        parse_line(line)
    assert said in caught.value.message
    assert caught.value.hint


def test_shipped_plans_are_good_and_known_by_name() -> None:
    assert list(shipped_plans()) == ["give-back", "model-file", "shm-thp", "thp-anon"]
    for name in shipped_plans():
        plan = read_plan([name])
        assert plan.name == name and plan.question
        assert all(case.size_bytes is None for case in plan.cases), "a shipped plan fits any container"
    with pytest.raises(UsageProblem, match="no plan 'thp'") as caught:
        read_plan(["thp"])
    assert "thp-anon" in caught.value.hint


def test_a_file_is_known_by_its_name(tmp_path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)
    assert read_plan([str(path)]) == parse_toml(GOOD, "mine.toml")
    with pytest.raises(RtdebugError, match="cannot read"):
        read_plan([str(tmp_path / "other.toml")])
    with pytest.raises(UsageProblem, match="no file"):
        read_plan(["/dev/zero"])


def test_every_advice_of_a_plan_is_one_of_the_kernel() -> None:
    assert {PREFIX + name for name in MOMENT_OF} <= ADVICE.keys()


def test_size_follows_the_room() -> None:
    plan = Plan("p", (Case("anon", ("FREE",)), Case("anon", ("FREE",), 3 * MIB, where="p, line 9")))
    assert [case.size_bytes for case in sized(plan, None).cases] == [AUTO_LARGEST_BYTES, 4 * MIB]
    assert [case.size_bytes for case in sized(plan, 13 * MIB).cases] == [6 * MIB, 4 * MIB]
    with pytest.raises(UsageProblem, match=r"p, line 9: size 4 MiB") as caught:
        sized(plan, 3 * MIB)
    assert "2 MiB to 2 MiB" in caught.value.hint
    with pytest.raises(UsageProblem, match="no room"):
        sized(plan, MIB)


def test_order_is_shuffled_by_the_seed_and_every_round_is_whole() -> None:
    plan = Plan("p", (Case("anon", ("FREE", "COLD")), Case("shm", ("REMOVE",))), runs=23, warm_up=2)
    order = list(turns(plan))
    assert order == list(turns(plan))
    assert order != list(turns(replace(plan, seed=2)))
    assert len(order) == plan.total_runs == 25 * 5
    rounds = [order[start : start + 5] for start in range(0, len(order), 5)]
    assert len({frozenset((turn.case, turn.advice) for turn in each) for each in rounds}) == 1
    assert len({tuple((turn.case, turn.advice) for turn in each) for each in rounds}) > 10
    assert [turn.warm_up for turn in order] == [True] * 10 + [False] * 115


def test_random_is_an_access_and_an_advice() -> None:
    (case,) = parse_line("file random RANDOM,SEQUENTIAL").cases
    assert (case.access, case.advice) == ("random", ("RANDOM", "SEQUENTIAL"))


def test_a_file_that_is_no_plan_is_an_error_with_a_hint(tmp_path: Path) -> None:
    """Whatever it is: binary, too large, nested beyond all measure, a loop of links, no file at all."""
    made = {
        "binary": lambda path: path.write_bytes(bytes(range(256)) * 8),
        "large": lambda path: path.write_text("runs = 1\n" * (1 << 17)),
        "deep": lambda path: path.write_text(f"case = {'[' * 5000}{']' * 5000}"),
        "tables": lambda path: path.write_text(f"case = {'{a=' * 5000}1{'}' * 5000}"),
        "keys": lambda path: path.write_text(f"{'a.' * 20000}b = 1"),
        "loop": lambda path: path.symlink_to(path),
        "folder": lambda path: path.mkdir(),
        "pipe": os.mkfifo,
        "device": lambda path: path.symlink_to("/dev/zero"),
        "absent": lambda path: None,
        "long": lambda path: None,
    }
    for name, make in made.items():
        path = tmp_path / f"{name}.toml"
        make(path)
        with pytest.raises(RtdebugError) as caught:
            read_plan([str(path) if name != "long" else f"/{'x' * 5000}.toml"])
        assert caught.value.hint, name


def test_auto_is_no_more_than_half_of_what_dev_shm_has_free() -> None:
    """The usual 64 MiB, of which some is in use: else the plans that are shipped could not be measured there."""
    plan = Plan("p", (Case("shm", ("REMOVE",)), Case("memfd", ("REMOVE",)), Case("shm", ("REMOVE",), 64 * MIB)))
    assert [case.size_bytes for case in sized(plan, 200 * MIB, 41 * MIB).cases] == [20 * MIB, 100 * MIB, 64 * MIB]
    assert [case.size_bytes for case in sized(plan, 200 * MIB, None).cases] == [100 * MIB, 100 * MIB, 64 * MIB]
    assert sized(plan, 200 * MIB, 0).cases[0].size_bytes == 2 * MIB
