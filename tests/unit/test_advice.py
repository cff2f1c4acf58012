from __future__ import annotations

import mmap

import pytest

from rtdebug.errors import UsageProblem
from rtdebug.host.constants import MADV
from rtdebug.madvise.advice import ADVICE, Way, applicable, find_advice


def test_every_advice_the_trace_can_name_is_known_here_and_by_pythons_own_number() -> None:
    assert set(ADVICE) == set(MADV.values())
    pythons = {name: getattr(mmap, name) for name in ADVICE if hasattr(mmap, name)}
    assert pythons
    assert {name: ADVICE[name].number for name in pythons} == pythons


@pytest.mark.parametrize("text", ["hugepage", "MADV_HUGEPAGE", " HugePage ", "madv_hugepage"])
def test_with_or_without_its_prefix(text: str) -> None:
    assert find_advice(text).name == "MADV_HUGEPAGE"


def test_a_wrong_name_gets_a_guess_and_the_list() -> None:
    with pytest.raises(UsageProblem) as caught:
        find_advice("HUGEPAGES")
    assert "MADV_HUGEPAGE" in caught.value.message
    assert "NOHUGEPAGE" in caught.value.hint


def test_what_is_taken_back_is_taken_back_by_an_advice_of_the_other_effect() -> None:
    for advice in ADVICE.values():
        if advice.undo and advice.sets_flag:
            undo = ADVICE[advice.undo]
            assert undo.name == "MADV_NORMAL" or undo.clears_flag == advice.sets_flag


def test_only_four_act_on_another_process() -> None:
    remote = {advice.name for advice in applicable() if advice.way is Way.PROCESS_MADVISE}
    assert remote == {"MADV_COLD", "MADV_PAGEOUT", "MADV_WILLNEED", "MADV_COLLAPSE"}


def test_what_destroys_is_marked() -> None:
    marked = {advice.short_name for advice in ADVICE.values() if advice.destroys}
    assert marked == {"DONTNEED", "DONTNEED_LOCKED", "FREE", "REMOVE", "HWPOISON", "GUARD_INSTALL"}
