"""Event lines and hostile text that the tests of the renderers share."""

import time

import pytest
from hypothesis import strategies as st

from rtdebug.tracing.line import EventLine

HOSTILE = st.text(
    st.one_of(
        st.characters(codec=None, exclude_categories=()),  # lone surrogates too
        st.sampled_from("\x00\x07\x1b\x7f\x85\x9b\n\r\t\u2028\u202e\u200b\ufeff\udcff\ud800\\…\u0301漢"),
    )
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64) | st.floats() | HOSTILE,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(HOSTILE, inner, max_size=4),
    max_leaves=12,
)
SECOND = 1_000_000_000
NOON = 1_764_504_000 * SECOND  # 2025-11-30T12:00:00Z


def event_line(event, pid=4711, comm="postgres", container="db", at_ns=NOON, /, **fields):
    return EventLine(
        time_ns=at_ns,
        event=event,
        container_id="8f3c" * 16 if container else None,
        container_name=container,
        runtime="docker" if container else None,
        cgroup="/docker/8f3c",
        pid=pid,
        ns_pid=7,
        tid=pid + 1,
        comm=comm,
        fields=fields,
    )


@pytest.fixture
def utc(monkeypatch):
    """Local time is UTC, wherever the test runs."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()
