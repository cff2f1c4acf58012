"""Aligned rows, wrapping and cutting, whatever the text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtdebug.render.columns import cut_middle, wrap
from rtdebug.render.escape import display_width, escape
from tests.unit.lines import HOSTILE


@pytest.mark.parametrize(
    ("width", "first", "rows"),
    [
        pytest.param(20, None, ["64 MiB of 64 MiB", "used"], id="a figure keeps its unit"),
        pytest.param(16, 8, ["64 MiB", "of 64 MiB used"], id="less room in the first line"),
        pytest.param(16, 3, ["", "64 MiB of 64 MiB", "used"], id="no room in the first line"),
        pytest.param(16, 99, ["64 MiB of 64 MiB", "used"], id="the first line is no wider"),
    ],
)
def test_wrap(width, first, rows):
    assert list(wrap("64 MiB of 64 MiB used", width, first)) == rows


@given(HOSTILE, st.integers(2, 40), st.none() | st.integers(-3, 40))
def test_wrapped_text_is_all_there_within_the_width(text, width, first):
    rows = list(wrap(text, width, first))
    assert all(row.isprintable() and display_width(row) <= width for row in rows)
    assert first is None or not rows or display_width(rows[0]) <= max(0, first)
    assert "".join("".join(rows).split()) == "".join(escape(text).split())


def test_cut_middle_keeps_both_ends():
    assert cut_middle("/dev/shm/torch_4711", 30) == "/dev/shm/torch_4711"
    assert cut_middle("/dev/shm/torch_4711_weights", 17) == "/dev/shm…_weights"
    assert cut_middle("/kubepods.slice/pod/cri-8f3c.scope", 18, 14) == "/ku…cri-8f3c.scope"


@given(HOSTILE, st.integers(4, 40), st.none() | st.integers(0, 3))
def test_cut_middle_is_printable_and_within_the_limit(text, limit, end):
    shown = cut_middle(text, limit, end)
    assert shown.isprintable()
    assert display_width(shown) <= limit
    assert shown == escape(text) or "…" in shown
