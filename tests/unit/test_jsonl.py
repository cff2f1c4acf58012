import io
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtdebug.render.jsonl import JsonRenderer, encode_event, encode_object, format_time_utc
from tests.unit.lines import HOSTILE, NOON, VALUES, event_line

CONTRACT = [
    "time",
    "event",
    "container_id",
    "container_name",
    "runtime",
    "cgroup",
    "pid",
    "ns_pid",
    "tid",
    "comm",
]


def strict(text):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_keys_stand_in_the_order_of_the_contract():
    found = strict(
        encode_event(
            event_line("shm_open", 4711, "postgres", "db", NOON + 7, path="/dev/shm/a", ret=3, errno=None)
        )
    )
    assert list(found) == [*CONTRACT, "path", "ret", "errno"]
    assert found["time"] == "2025-11-30T12:00:00.000000007Z"
    assert (found["pid"], found["ns_pid"], found["tid"]) == (4711, 7, 4712)
    assert found["errno"] is None


def test_an_event_without_fields_of_its_own():
    assert list(strict(encode_event(event_line("brk")))) == CONTRACT


def test_threads_are_not_mixed_up():
    first, second = event_line("brk", 1, "a"), event_line("brk", 1, "b")
    assert [strict(encode_event(each))["comm"] for each in (first, second, first)] == ["a", "b", "a"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param("ok", {"k": "ok"}, id="text"),
        pytest.param("a\udcffb", {"k": "a\ufffdb", "k_hex": "61ff62"}, id="not UTF-8"),
        pytest.param("\ud83d", {"k": "\ufffd", "k_hex": "eda0bd"}, id="surrogate of no byte"),
        pytest.param("\U0001f600", {"k": "\U0001f600"}, id="a pair is no lone surrogate"),
        pytest.param(["a", "\udc80"], {"k": ["a", "\ufffd"], "k_hex": [None, "80"]}, id="in a list"),
        pytest.param({"p": "\udc80"}, {"k": {"p": "\ufffd", "p_hex": "80"}}, id="in an object"),
        pytest.param({"\udc80": 1}, {"k": {r"\x80": 1}}, id="in a key"),
        pytest.param([float("nan"), float("inf"), 1.5], {"k": [None, None, 1.5]}, id="NaN"),
        pytest.param("\x7f\x9b\u2028", {"k": "\x7f\x9b\u2028"}, id="controls"),
        pytest.param(2**64 - 1, {"k": 2**64 - 1}, id="u64"),
    ],
)
def test_values(value, expected):
    assert strict(encode_object({"k": value})) == expected


def test_bytes_come_back_from_hex_in_the_common_keys_too():
    found = strict(encode_event(event_line("brk", 1, "\udcfe\udcff")))
    assert bytes.fromhex(found["comm_hex"]) == b"\xfe\xff"
    assert list(found)[:10] == CONTRACT


@given(st.dictionaries(HOSTILE, VALUES, max_size=5), HOSTILE)
def test_every_line_is_one_valid_printable_line(fields, comm):
    text = encode_event(event_line("brk", 4711, comm, **{f"x{key}": value for key, value in fields.items()}))
    assert text.isascii()
    assert text.isprintable()
    assert strict(text)["pid"] == 4711


@given(st.binary(max_size=40))
def test_no_byte_of_a_name_is_lost(raw):
    found = strict(encode_object({"path": raw.decode("utf-8", "surrogateescape")}))
    kept = bytes.fromhex(found["path_hex"]) if "path_hex" in found else found["path"].encode()
    assert kept == raw


def test_time_before_the_first_of_january_1970_is_no_problem():
    assert format_time_utc(-1) == "1969-12-31T23:59:59.999999999Z"


def test_a_batch_is_written_and_flushed_as_lines():
    out = io.BytesIO()
    renderer = JsonRenderer(out)
    renderer.lines(event_line("shm_open", path=f"/dev/shm/{n}\n") for n in range(23))
    renderer.line(event_line("brk"))
    assert len(out.getvalue().splitlines()) == 24


def test_a_reader_that_went_away_is_told_to_the_caller():
    reader, writer = os.pipe()
    os.close(reader)
    with pytest.raises(BrokenPipeError), os.fdopen(writer, "wb", buffering=0) as out:
        JsonRenderer(out).line(event_line("brk"))
