import pytest
from hypothesis import given
from hypothesis import strategies as st

from rtdebug.render.units import (
    counted,
    format_bytes,
    format_count,
    format_duration,
    format_rate,
    format_share,
    format_time,
    format_value,
    short_id,
)
from tests.unit.lines import SECOND, utc  # noqa: F401 - a fixture


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (None, "-"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (67108864, "64 MiB"),
        (67108863, "64.0 MiB"),  # not quite: the ".0" says that it is rounded
        (66568192, "63.5 MiB"),
        (1024**2 - 1, "1.0 MiB"),  # never "1024.0 KiB"
        (-135168, "-132 KiB"),
        (2**63, "8 EiB"),
        (2**70, "1024 EiB"),
    ],
)
def test_format_bytes(count, shown):
    assert format_bytes(count) == shown


@given(st.integers(-(2**64), 2**64))
def test_format_bytes_is_near_enough(count):
    number, unit = format_bytes(count).split()
    factor = 1024 ** ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB").index(unit)
    assert abs(float(number) * factor - count) <= factor * 0.0501


@pytest.mark.parametrize(
    ("ns", "shown"),
    [
        (None, "-"),
        (350, "350 ns"),
        (1_500, "1.5 us"),
        (35 * 10**6, "35.0 ms"),
        (999_960_000, "1.0 s"),
        (42 * SECOND, "42.0 s"),
        (59_960_000_000, "1 min 0 s"),
        (200 * SECOND, "3 min 20 s"),
        (7500 * SECOND, "2 h 5 min"),
        (273_600 * SECOND, "3 d 4 h"),
        (-42 * SECOND, "-42.0 s"),
    ],
)
def test_format_duration(ns, shown):
    assert format_duration(ns) == shown


def test_counts_and_rates():
    assert format_count(1234567) == "1,234,567"
    assert format_count(None) == "-"
    assert format_rate(0.42) == "0.4/s"
    assert format_rate(12345.6) == "12,346/s"
    assert format_rate(None) == "-"


def test_format_time_is_local_with_milliseconds(utc):  # noqa: F811
    assert format_time(1_764_400_000 * SECOND + 7_999_999) == "07:06:40.007"


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        pytest.param("length_bytes", 4096, "4 KiB", id="bytes by the ending"),
        pytest.param("stall_ns", 1500, "1.5 us", id="ns by the ending"),
        pytest.param("address", 0x7F00, "0x7f00", id="address"),
        pytest.param("rss_pages", 12, "12", id="other numbers as they are"),
        pytest.param("created", True, "yes", id="bool is no number"),
        pytest.param("memfd_bytes", None, "-", id="unknown"),
        pytest.param("flags", ["O_RDWR", "O_CREAT"], "O_RDWR|O_CREAT", id="list"),
        pytest.param("path", "a\x1bb", r"a\x1bb", id="text is escaped"),
        pytest.param("stat", {"anon_bytes": 1024, "k\n": "v\n"}, r"{anon_bytes=1 KiB, k\n=v\n}", id="object"),
    ],
)
def test_format_value(key, value, shown):
    assert format_value(key, value) == shown


@pytest.mark.parametrize(
    ("container_id", "shown"),
    [("ab" * 32, "abababababab"), ("training-worker-17", "training-worker-17"), ("/system.slice/a.service",) * 2],
)
def test_short_id(container_id, shown):
    assert short_id(container_id) == shown


def test_shares_and_counts():
    shares = {0.0: "0%", 0.001: "<1%", 0.4: "40%", 0.975: "98%", 0.999: "99%", 1.0: "100%"}
    assert {share: format_share(share) for share in shares} == shares
    assert [counted(count, "kill") for count in (0, 1, 2, 1234)] == ["0 kills", "1 kill", "2 kills", "1,234 kills"]
