import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtdebug.render.escape import decode, display_width, escape
from tests.unit.lines import HOSTILE


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("/dev/shm/psm_1", "/dev/shm/psm_1", id="plain"),
        pytest.param("a b", "a b", id="space"),
        pytest.param("größe-漢字", "größe-漢字", id="printable Unicode stays"),
        pytest.param("a\nb\r\tc", r"a\nb\r\tc", id="named controls"),
        pytest.param("\x1b[31mred\x07", r"\x1b[31mred\x07", id="escape sequence"),
        pytest.param("\x7f\x00", r"\x7f\x00", id="DEL and NUL"),
        pytest.param("\x9b2J", r"\u009b2J", id="C1 control"),
        pytest.param("\u202egpj.exe", r"\u202egpj.exe", id="bidi override"),
        pytest.param("a\u2028b", r"a\u2028b", id="line separator"),
        pytest.param("\udcff\udc9b", r"\xff\x9b", id="bytes that were not UTF-8"),
        pytest.param("\ud800", r"\ud800", id="any other lone surrogate"),
        pytest.param("\U000e0041", r"\U000e0041", id="tag character"),
        pytest.param("C:\\n", "C:\\n", id="a backslash stays"),
    ],
)
def test_escape(text, shown):
    assert escape(text) == shown


@given(HOSTILE)
def test_nothing_hostile_is_left(text):
    shown = escape(text)
    categories = {unicodedata.category(character) for character in shown}
    assert not categories & {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    assert len(shown.splitlines()) <= 1
    shown.encode("utf-8")
    assert escape(shown) == shown


@given(HOSTILE, st.integers(0, 40))
def test_limit_is_kept_and_says_so(text, limit):
    whole, shown = escape(text), escape(text, limit)
    assert display_width(shown) <= limit
    if display_width(whole) <= limit:
        assert shown == whole
    elif limit:
        assert shown.endswith("…")
        assert whole.startswith(shown[:-1])


def test_an_escape_form_is_never_cut():
    assert escape("ab\x1bcd", 5) == "ab…"
    assert escape("ab\x1bcd", 7) == r"ab\x1b…"


def test_wide_characters_count_twice_and_marks_not_at_all():
    assert display_width("漢a") == 3
    assert display_width("e\u0301") == 1
    assert escape("漢漢漢", 5) == "漢漢…"


@given(st.binary())
def test_decode_loses_nothing_before_the_nul(raw):
    assert decode(raw).encode("utf-8", "surrogateescape") == raw.split(b"\0")[0]


def test_decode_cuts_what_lies_behind_the_nul():
    assert decode(b"abc\0garbage\0") == "abc"
