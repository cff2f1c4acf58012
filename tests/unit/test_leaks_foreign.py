"""Files of other tools: what is in them is read, what is not is asked for, and nothing crashes."""

import json
import random
import time

import numpy as np
import pytest

from rtdebug.errors import RtdebugError, UsageProblem
from rtdebug.leaks.foreign.hints import Hints
from rtdebug.leaks.foreign.reader import read_foreign
from rtdebug.leaks.verdict import judge_series

MIB = 1 << 20
T0 = "2026-03-01T10:00:{:02d}Z"


@pytest.fixture
def read(tmp_path):
    def read(text, unit=None, interval_s=None, name="stats.csv"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_foreign(path, Hints(unit, interval_s))

    return read


def values(series):
    return series.value.tolist()


@pytest.mark.parametrize(
    ("header", "cell", "expected"),
    [
        ("usage_bytes", "5242880", 5 * MIB),
        ("mib", "5", 5 * MIB),
        ("RSS (MB)", "5", 5_000_000),
        ("rss_kb", "5", 5_000),
        ("usage", "5MiB", 5 * MIB),
        ("usage", "5 MiB", 5 * MIB),
        ("usage", "5Mi", 5 * MIB),
        ("usage", "5M", 5 * MIB),
        ("usage", "0.5GiB", 512 * MIB),
        ("usage", "5.5kB", 5_500),
        ("usage", "917B", 917),
        ("usage_bytes", "5.24288e6", 5 * MIB),
    ],
)
def test_units_of_a_cell(read, header, cell, expected):
    (series,) = read(f"time,{header}\n{T0.format(0)},{cell}\n{T0.format(10)},{cell}\n")
    assert values(series) == [expected, expected]
    assert series.labels.unit == "bytes"


def test_units_change_within_a_column(read):
    (series,) = read(f"time,m\n{T0.format(0)},900KiB\n{T0.format(1)},1.5MiB\n{T0.format(2)},7%\n")
    assert values(series) == [900 * 1024, 1.5 * MIB]
    assert any("another unit" in note for note in series.notes)
    assert any("missing" in note for note in series.notes)


def test_no_unit_is_asked_for(read):
    text = f"time,memory\n{T0.format(0)},5\n"
    with pytest.raises(UsageProblem, match="no unit") as caught:
        read(text)
    assert "--unit" in caught.value.hint
    (series,) = read(text, unit="MiB")
    assert values(series) == [5 * MIB]


def test_no_time_is_asked_for(read):
    with pytest.raises(UsageProblem, match="no column of times") as caught:
        read("mib\n5\n6\n")
    assert "--interval" in caught.value.hint
    (series,) = read("mib\n5\n6\n", interval_s=30)
    assert np.diff(series.time_ns).tolist() == [30 * 10**9]


@pytest.mark.parametrize(
    "times",
    [
        ["2026-03-01T10:00:00.0030982+01:00", "2026-03-01T10:00:10.0030982+01:00"],
        ["2026-03-01 09:00:00", "2026-03-01 09:00:10"],
        ["1772355600", "1772355610"],
        ["1772355600.5", "1772355610.5"],
        ["1772355600000", "1772355610000"],
        ["1772355600000000000", "1772355610000000000"],
    ],
)
def test_times(read, times):
    (series,) = read("when,timestamp,mib\n" + "".join(f"x,{time},5\n" for time in times))
    assert round((series.time_ns[1] - series.time_ns[0]) / 1e9) == 10
    assert abs(series.time_ns[0] / 1e9 - 1772355600) < 3601


def test_wide_and_long_forms(read):
    wide = read(f"time,rss_mib,cache_mib,limit_mib\n{T0.format(0)},5,6,100\n{T0.format(9)},7,8,100\n")
    assert [(each.labels.name, each.labels.kind, each.limit) for each in wide] == [
        ("rss_mib", "anon", 100 * MIB),
        ("cache_mib", "file", 100 * MIB),
    ]
    long = read(f"time,pod,mib\n{T0.format(0)},a,5\n{T0.format(0)},b,6\n{T0.format(9)},a,7\n{T0.format(9)},b,8\n")
    assert {each.labels.name: values(each) for each in long} == {"a": [5 * MIB, 7 * MIB], "b": [6 * MIB, 8 * MIB]}


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_delimiters(read, delimiter):
    (series,) = read(f"time,mib\n{T0.format(0)},5\n".replace(",", delimiter))
    assert values(series) == [5 * MIB]


TABLE = """\
CONTAINER ID   NAME      CPU %     MEM USAGE / LIMIT     MEM %     NET I/O   BLOCK I/O   PIDS
3b1f2c4d5e6f   web       0.00%     {}MiB / 256MiB     2.00%     1kB / 0B  0B / 0B     3
"""


def test_docker_stats_with_times_before_the_rounds(read):
    text = "".join(f"2026-03-01T10:00:{at:02d}Z\n" + TABLE.format(20 + at) for at in range(0, 50, 10))
    (series,) = read(text)
    assert series.labels.name == "web"
    assert values(series) == [each * MIB for each in (20, 30, 40, 50, 60)]
    assert series.limit == 256 * MIB
    assert np.diff(series.time_ns).tolist() == [10 * 10**9] * 4


def test_docker_stats_as_a_terminal_saw_it(read):
    text = "".join("\x1b[2J\x1b[H" + TABLE.format(5) for _ in range(3))
    with pytest.raises(UsageProblem, match="no times"):
        read(text)
    (series,) = read(text, interval_s=2)
    assert len(series.value) == 3


def test_docker_stats_json(read):
    line = '{{"Name":"web","MemUsage":"{}MiB / 1GiB","MemPerc":"2%"}}\n'
    (series,) = read("".join(line.format(each) for each in (5, 6, 7)) + '{"Name":"w', interval_s=5)
    assert values(series) == [5 * MIB, 6 * MIB, 7 * MIB]


def matrix(*results):
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": list(results)}})


def test_prometheus(read):
    labels = {"namespace": "shop", "pod": "web-1", "container": "app"}
    used = {
        "metric": {"__name__": "container_memory_rss", **labels},
        "values": [[1772355600, "5242880"], [1772355630.5, "NaN"], [1772355660, "6291456"]],
    }
    limit = {"metric": {"__name__": "container_spec_memory_limit_bytes", **labels}, "values": [[1772355600, "1e9"]]}
    (series,) = read(matrix(used, limit), name="export.json")
    assert series.labels.name == "shop/web-1/app"
    assert series.labels.kind == "anon"
    assert values(series) == [5 * MIB, 6 * MIB]
    assert series.limit == 1e9
    assert "1 of 3 values are missing" in series.notes


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   \n",
        "time,mib\n",
        "just words\nand more\n",
        "{",
        '{"data": 5}',
        '{"data": {"result": [{"values": 7}]}}',
        matrix({"metric": {}, "values": [[1, "5"]]})[:-9],
        "[]",
        "\0\0\0",
        b"\xff\xfe\x00garbage",
        TABLE[:40],
        "time,mib\nnot a time,not a number\n",
    ],
)
def test_bad_files_are_errors_with_hints(read, text):
    with pytest.raises(RtdebugError) as caught:
        for series in read(text, interval_s=5):
            judge_series(series)
            raise UsageProblem("nothing to judge", "none") if not len(series.value) else AssertionError(series)
    assert caught.value.message


def test_a_file_that_is_cut_short_is_read_up_to_there(read):
    rows = "".join(f"{T0.format(at)},{at}\n" for at in range(10, 60))
    (series,) = read(("time,mib\n" + rows)[:-4])
    assert len(series.value) == 49


def test_rows_that_do_not_fit_are_said(read):
    (series,) = read(f"time,mib\n{T0.format(0)},5\n{T0.format(1)},5,7,9\n{T0.format(2)},5\n")
    assert len(series.value) == 2
    assert any("too many columns" in note for note in series.notes)


def test_a_number_without_a_unit_among_others_is_left_out_and_said(read):
    rows = "".join(f"{T0.format(at)},{'90' if at % 3 else '7MiB'}\n" for at in range(30))
    (series,) = read("time,m\n" + rows)
    assert set(values(series)) == {7 * MIB}
    assert any("20 values without a unit" in note for note in series.notes)
    (said,) = read("time,m\n" + rows, unit="MiB")
    assert set(values(said)) == {7 * MIB, 90 * MIB}


@pytest.mark.parametrize("number", ["100000000,5", "100,000,000", "'1.234,5'"])
def test_marks_of_other_countries_are_named(read, number):
    with pytest.raises(UsageProblem) as caught:
        read(f'time;m_bytes\n{T0.format(0)};"{number}"\n{T0.format(1)};"{number}"\n')
    assert number in caught.value.message
    assert "decimal point" in caught.value.hint


def test_a_large_long_form_is_read_in_seconds(read):
    """A day of many containers in one file: cost must not be per row of Python."""
    rows = "".join(f"{1_760_000_000 + at},c{name},{name * MIB + at}\n" for at in range(200) for name in range(1000))
    began = time.process_time()
    found = read("time,name,mem_bytes\n" + rows)
    assert time.process_time() - began < 10
    assert [len(series.value) for series in found] == [200] * 1000
    assert {series.labels.name: series.value[0] for series in found}["c7"] == 7 * MIB


def test_noise_never_crashes(read):
    source = random.Random(11)
    good = "".join(f"{T0.format(at % 60)},{at}MiB,{at}\n" for at in range(40))
    for _ in range(60):
        text = list("time,usage,rss_bytes\n" + good)
        for _ in range(source.randint(1, 60)):
            text[source.randrange(len(text))] = source.choice(',;"\n\0x%9-{\u202e')
        try:
            for series in read("".join(text), interval_s=10, unit="bytes"):
                judge_series(series)
        except RtdebugError as error:
            assert error.message
