"""What a log says of the time of a kill, and what it does not say."""

from __future__ import annotations

import time

import pytest

from rtdebug.oom.when import _parse, when

S = 1_000_000_000


@pytest.fixture(autouse=True)
def in_berlin(monkeypatch):
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    _parse.cache_clear()
    yield
    monkeypatch.undo()
    time.tzset()
    _parse.cache_clear()


@pytest.mark.parametrize(
    ("text", "kind", "said", "epoch_s"),
    [
        ("2025-03-11T10:16:36.271641+01:00", "utc", "2025-03-11T09:16:36.271641000Z", 1741684596),
        ("2025-03-11T10:16:36+0100", "utc", "2025-03-11T09:16:36Z", 1741684596),
        ("2025-03-11T09:16:36,271641+00:00", "utc", "2025-03-11T09:16:36.271641000Z", 1741684596),
        ("2025-03-11T09:16:36.5Z", "utc", "2025-03-11T09:16:36.500000000Z", 1741684596),
        ("1741684596271641", "utc", "2025-03-11T09:16:36.271641000Z", 1741684596),
        ("1741684596.271641", "utc", "2025-03-11T09:16:36.271641000Z", 1741684596),
        ("Tue Mar 11 10:16:36 2025", "local", "2025-03-11T10:16:36", 1741684596),
        ("Di Mär 11 10:16:36 2025", "local", "2025-03-11T10:16:36", 1741684596),
        ("mar. août 12 03:54:03 2025", "local", "2025-08-12T03:54:03", 1754963643),
        ("mar. mars 11 10:16:36 2025", "local", "2025-03-11T10:16:36", 1741684596),
        ("二 8月 12 03:54:03 2025", "local", "2025-08-12T03:54:03", 1754963643),
        ("Tue 2025-03-11 10:16:36 CET", "local", "2025-03-11T10:16:36", 1741684596),
        ("+0.000017", "printed", "+0.000017", None),
        ("Mar11 10:16", "printed", "Mar11 10:16", None),
        ("Tue Mar 41 10:16:36 2025", "printed", "Tue Mar 41 10:16:36 2025", None),
    ],
)
def test_forms(text, kind, said, epoch_s):
    found = when(text, None)
    assert (found.kind, found.text) == (kind, said)
    assert (found.epoch_ns // S if found.epoch_ns is not None else None) == epoch_s


def test_without_a_year_it_stays_as_printed_and_the_guess_is_not_to_come():
    found = when("Mar 11 10:16:36", None)
    assert (found.kind, found.text) == ("printed", "Mar 11 10:16:36")
    assert found.epoch_ns / S <= time.time() + 86400
    assert time.localtime(found.epoch_ns // S)[1:6] == (3, 11, 10, 16, 36)
    leap = when("Feb 29 10:16:36", None)
    assert time.localtime(leap.epoch_ns // S)[1:3] == (2, 29)


def test_uptime():
    assert when("271.641879", 271641879000).text == "boot+271.641879"
    assert when("Mar 11 10:16:36", 271641879000).kind == "printed"
    assert when(None, None).kind is None
    here = when("271.641879", 271641879000, clock_offset_ns=1741684325 * S)
    assert (here.kind, here.text) == ("utc", "2025-03-11T09:16:36.641879000Z")
