"""A snapshot file that somebody wrote by hand: any value in any place is shown, or is an error that names the file."""

import copy
from collections import Counter

import pytest

from rtdebug.errors import RtdebugError
from rtdebug.render.diff import diff_json, render_diff
from rtdebug.render.snapshot_pages import SECTIONS, render_pages, snapshot_json
from rtdebug.snapshot.codec import FormError, from_plain, to_plain
from rtdebug.snapshot.diff import compare
from rtdebug.snapshot.model import Snapshot
from tests.unit.snapshots import hostile, snapshot

VALUES = {
    "huge": 10**400,
    "huge negative": -(10**400),
    "past 64 bits": 2**64,
    "negative": -1,
    "zero": 0,
    "infinite": float("inf"),
    "none": None,
    "empty text": "",
    "escape": "\x1b[31m\n\u202e\ud800",
    "long": "x" * 100_000,
    "empty list": [],
    "empty object": {},
    "nested": [[[[]]]],
}


def leaves(plain, path=()):
    """The places of all values in a JSON document; of a list its first item stands for all."""
    yield path
    if isinstance(plain, dict):
        for key, value in plain.items():
            yield from leaves(value, (*path, key))
    elif isinstance(plain, list) and plain:
        yield from leaves(plain[0], (*path, 0))


def with_value(plain, path, value):
    changed = copy.deepcopy(plain)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return changed


def show(taken, other):
    shown = "\n".join(render_pages(taken, SECTIONS, 80, False, None))
    shown += "\n".join(render_diff(compare(other, taken), False, None))
    shown += "\n".join(render_diff(compare(taken, other), False, 3))
    assert "\x1b" not in shown and "\u202e" not in shown and "\ud800" not in shown
    assert snapshot_json(taken).count("\n") == 1
    assert diff_json(compare(other, taken)).count("\n") == 1


@pytest.mark.parametrize("kind", VALUES)
def test_any_value_in_any_place(kind):
    outcomes = Counter()
    for sample in (snapshot(), hostile()):
        plain = to_plain(sample)
        for path in leaves(plain):
            if not path:
                continue
            try:
                show(from_plain(Snapshot, with_value(plain, path, VALUES[kind])), sample)
                outcomes["shown"] += 1
            except FormError:
                outcomes["refused"] += 1
            except RtdebugError:
                raise
            except Exception as error:
                raise AssertionError(f"{kind} at {path}") from error
    assert outcomes["shown"] + outcomes["refused"] > 200
