"""Statistics of madvise experiments: differences are found, and none where there is none."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rtdebug.madvise.answer import answers
from rtdebug.madvise.conduct import Outcome
from rtdebug.madvise.hindrance import Settings
from rtdebug.madvise.plan import BASELINE, Case, Plan
from rtdebug.madvise.recommendation import recommend
from rtdebug.madvise.run import Run
from rtdebug.madvise.stats import compare, findings, holm, median_interval
from tests.unit.madvise_outcome import MIB, NO_SWAP, outcome


def test_a_difference_has_its_size_and_an_interval_around_it() -> None:
    source = np.random.default_rng(7)
    base, other = source.normal(100, 3, 25), source.normal(70, 3, 25)
    effect = compare(base, other)
    assert effect.change == pytest.approx(-0.3, abs=0.03)
    assert effect.interval is not None
    assert effect.interval[0] < -0.3 + 0.03 and -0.3 - 0.03 < effect.interval[1] < -0.2
    assert effect.p < 1e-6


def test_interval_of_a_median_holds_it_in_most_cases() -> None:
    source = np.random.default_rng(3)
    hits = sum(
        low <= 50 <= high for low, high in (median_interval(source.normal(50, 9, 25), seed) for seed in range(200))
    )
    assert 0.90 <= hits / 200 <= 1


def test_equal_values_are_no_difference_and_a_jump_is() -> None:
    assert compare([4.0] * 9, [4.0] * 9).p == 1
    effect = compare([4.0] * 9, [0.0] * 9)
    assert (effect.change, effect.interval) == (-1, (-1, -1))


def test_no_share_of_nothing() -> None:
    assert compare([0.0] * 9, [4.0] * 9).change is None


def test_holm() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == []
    assert holm([0.9, 0.8]) == [1, 1]


def _runs(values: dict[str, np.ndarray], **fields: int) -> list[Run]:
    return [
        Run(0, "anon", "random", "read", 64 * MIB, advice, "after", number, False, number,
            total_ns=int(value), rss_bytes=64 * MIB, **fields)
        for advice, sample in values.items() for number, value in enumerate(sample)
    ]  # fmt: skip


def test_the_same_is_called_different_in_at_most_a_twentieth_of_all_experiments() -> None:
    """Noise as on a busy host: heavy tails. Several pieces of advice each, none of which does anything."""
    source = np.random.default_rng(23)
    advice = ("FREE", "COLD", "RANDOM", "NORMAL")
    plan = Plan("p", (Case("anon", advice),))
    wrong = 0
    for _ in range(60):
        values = {name: 1e6 * (1 + source.lognormal(-3, 1, 15)) for name in (BASELINE, *advice)}
        wrong += any(finding.is_difference for finding in findings(_runs(values), plan))
    assert wrong <= 0.05 * 60


def test_a_tenth_less_is_found_through_noise() -> None:
    source = np.random.default_rng(5)
    values = {BASELINE: source.normal(1e6, 2e4, 15), "FREE": source.normal(9e5, 2e4, 15)}
    found = findings(_runs(values), Plan("p", (Case("anon", ("FREE",)),)))
    (total,) = [each for each in found if each.advice == "FREE" and each.measure == "total_ns"]
    assert total.verdict == "less" and total.runs == 15
    (rss,) = [each for each in found if each.advice == "FREE" and each.measure == "rss_bytes"]
    assert rss.verdict == "no difference"


def test_less_than_the_smallest_effect_is_none_however_sure() -> None:
    values = {BASELINE: np.full(30, 1e6) + np.arange(30), "FREE": np.full(30, 0.98e6) + np.arange(30)}
    found = findings(_runs(values), Plan("p", (Case("anon", ("FREE",)),)))
    assert {each.verdict for each in found if each.effect} == {"no difference"}


def test_no_difference_is_said_only_where_there_is_room_for_none() -> None:
    source = np.random.default_rng(7)
    for spread, verdict in ((0.02, "no difference"), (0.5, "unclear")):
        values = {name: 1e6 * source.lognormal(0, spread, 15) for name in (BASELINE, "FREE")}
        found = findings(_runs(values), Plan("p", (Case("anon", ("FREE",)),)))
        (total,) = [each for each in found if each.advice == "FREE" and each.measure == "total_ns"]
        assert total.verdict == verdict, spread


def test_recommendation_says_when_faster_accesses_would_pay_off() -> None:
    result = outcome({"COLLAPSE": {"access_ns": 5e5, "total_ns": 2e7, "thp_bytes": 64 * MIB}})
    (advised,) = recommend(answers(result), result.settings)
    assert advised.advice is None
    assert "COLLAPSE costs more time (+100%), which 21 times as many accesses make up for" in advised.text


def test_three_runs_are_too_few_to_say_anything() -> None:
    values = {BASELINE: np.full(3, 1e6), "FREE": np.full(3, 1e5)}
    found = findings(_runs(values), Plan("p", (Case("anon", ("FREE",)),)))
    assert {each.verdict for each in found if each.effect} == {"too few runs"}


def test_least_p_is_that_of_complete_separation() -> None:
    assert compare([1.0] * 5, [2.0] * 5).least_p == 2 / math.comb(10, 5)


def test_recommendation_for_speed_has_conditions() -> None:
    result = outcome({"HUGEPAGE": {"total_ns": 4e6, "thp_bytes": 64 * MIB}})
    (advised,) = recommend(answers(result), result.settings)
    assert (advised.advice, advised.purpose) == ("MADV_HUGEPAGE", "speed")
    assert "60% off the time" in advised.text
    assert "transparent_hugepage: enabled=madvise, defrag=madvise, shmem_enabled=never" in advised.conditions
    assert any("glibc.malloc.hugetlb" in each for each in advised.conditions)


def test_recommendation_to_give_back_says_what_it_costs() -> None:
    given = {"returned_bytes": 64 * MIB, "return_ns": 3e6, "access_ns": 9e6, "total_ns": 2e7, "rss_bytes": 0}
    result = outcome({"DONTNEED": given, "FREE": {"lazyfree_bytes": 64 * MIB, "returned_bytes": 0}})
    (advised,) = recommend(answers(result), result.settings)
    assert (advised.advice, advised.purpose) == ("MADV_DONTNEED", "give back")
    assert "gives 64 MiB back to the container in 3.0 ms" in advised.text
    assert any("8.1 ms more" in each for each in advised.conditions)


def test_no_difference_is_said_and_what_could_not_act_is_no_finding() -> None:
    result = outcome({"RANDOM": {}, "PAGEOUT": {}}, settings=NO_SWAP)
    (answer,) = answers(result)
    (advised,) = recommend((answer,), result.settings)
    assert advised.advice is None and "leave it as it is" in advised.text and "RANDOM" in advised.text
    assert "PAGEOUT" not in advised.text
    only_pageout = outcome({"PAGEOUT": {}}, settings=NO_SWAP)
    (advised,) = recommend(answers(only_pageout), NO_SWAP)
    assert advised.advice is None and "none of the advice could act here" in advised.text


def test_refused_advice_is_no_finding() -> None:
    result = outcome({"REMOVE": {"errno": "EINVAL"}})
    (answer,) = answers(result)
    assert answer.rows[1].refused == "EINVAL" and not answer.rows[1].acted


def test_a_case_that_was_not_measured() -> None:
    base = outcome({})
    result = Outcome(
        base.plan, base.container, Settings(None, False, None, 0, None), "6.1", (), True, (), {0: "no room"}, None
    )
    (answer,) = answers(result)
    assert (answer.rows, answer.unable, answer.baseline) == ((), "no room", None)
    assert recommend((answer,), result.settings) == ()
