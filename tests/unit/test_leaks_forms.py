"""Forms in which people keep memory over time: CSV of many makes, rounds of lines, JSON. All figures are our own."""

import json
import re
import time

import numpy as np
import pytest

from rtdebug.errors import RtdebugError, UsageProblem
from rtdebug.leaks.foreign.hints import Hints
from rtdebug.leaks.foreign.limits import host_memory
from rtdebug.leaks.foreign.names import kind_in_name, names_limit, names_memory
from rtdebug.leaks.foreign.quantities import factor_of
from rtdebug.leaks.foreign.reader import read_foreign
from rtdebug.leaks.verdict import judge_series

MIB = 1 << 20
GIB = 1 << 30
KIB = 1 << 10


@pytest.fixture
def read(tmp_path):
    def read(text, unit=None, interval_s=None, name="file.csv"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return {series.labels.name: series for series in read_foreign(path, Hints(unit, interval_s))}

    return read


def only(found):
    (series,) = found.values()
    return series


def steps_s(series):
    return (np.diff(series.time_ns) / 1e9).tolist()


@pytest.mark.parametrize(
    ("times", "expected_s"),
    [
        (["Sun Mar  1 09:00:00 UTC 2026", "Sun Mar  1 09:00:31 UTC 2026"], 31),
        (["Sun Mar  1 09:00:00 CET 2026", "Sun Mar  1 09:00:31 CET 2026"], 31),
        (["2026-03-01 09:00:00,500", "2026-03-01 09:00:31,500"], 31),
        (["[2026-03-01 09:00:00.5]", "[2026-03-01 09:00:31.5]"], 31),
        (["3/1/2026 9:00:00 AM", "3/1/2026 9:00:31 AM"], 31),
        (["01/03/2026 09:00:00", "13/03/2026 09:00:00"], 12 * 86400),
        (["01.03.2026 09:00:00", "02.03.2026 09:00:00"], 86400),
        (["01/Mar/2026:09:00:00 +0100", "01/Mar/2026:09:00:31 +0100"], 31),
        (["2026-03-01 09:00:00.000000007 +0000 UTC", "2026-03-01 09:00:31.000000007 +0000 UTC"], 31),
        (["20260301090000", "20260301090031"], 31),
        (["46082.375", "46082.375359"], 31),  # days since 1899, as spreadsheets have them
        (["2026-03-01 09:00", "2026-03-01 9:01"], 60),
    ],
)
def test_dates(read, times, expected_s):
    series = only(read("time;mib\n" + "".join(f"{time};7\n" for time in times)))
    assert steps_s(series) == [pytest.approx(expected_s, abs=0.1)]
    assert abs(series.time_ns[0] / 1e9 - 1772355600) < 86400
    assert not series.notes


@pytest.mark.parametrize(
    ("header", "times", "expected_s"),
    [
        ("time", ["23:59:50", "00:00:10", "00:00:40"], [20, 30]),
        ("time", ["11:59:50 PM", "12:00:10 AM", "12:00:40 AM"], [20, 30]),
        ("time", ["Dec 31 23:59:50", "Jan  1 00:00:10", "Jan  1 00:00:40"], [20, 30]),
        ("Elapsed time", ["0.0", "1.5", "3.0"], [1.5, 1.5]),
        ("elapsed_ms", ["0", "500", "1500"], [0.5, 1]),
        ("Time (min)", ["1", "2", "4"], [60, 120]),
    ],
)
def test_times_without_a_date_tell_distances_only(read, header, times, expected_s):
    series = only(read(f"{header},mib\n" + "".join(f"{time},7\n" for time in times)))
    assert steps_s(series) == pytest.approx(expected_s)
    assert any("how far they are apart" in note for note in series.notes)


@pytest.mark.parametrize(
    ("header", "cell", "expected"),
    [
        ("heapUsedMB", "5", 5e6),
        ("rssMiB", "5", 5 * MIB),
        ("cacheMiB", "5", 5 * MIB),
        ("used", "5mib", 5 * MIB),
        ("used", "5gb", 5e9),
        ("used", "512k", 512 * KIB),
        ("RSS [kB]", "5", 5e3),
        ("MemPerc", "5", 5),
    ],
)
def test_units_in_other_hands(read, header, cell, expected):
    series = only(read(f"t,{header}\n0,{cell}\n60,{cell}\n"))
    assert series.value.tolist() == [expected, expected]
    assert series.labels.unit == ("percent" if expected == 5 else "bytes")
    assert series.labels.kind == ("file" if "cache" in header else kind_in_name(header))


def test_a_date_and_a_time_in_columns_of_their_own(read):
    series = only(read("Date,Time,Used (MiB)\n2026-03-01,23:59:30,7\n2026-03-02,00:00:30,8\n"))
    assert steps_s(series) == [60]


def test_only_memory_that_is_held_is_judged(read):
    found = read(
        "elapsed_s,utc,cpu_percent,rss_mb,vms_mb,peak_rss_mb,free_mb,threads,net_rx_bytes,wal_bytes,ms,mem_percent\n"
        "1,2026-03-01 09:00:00,97.1,40,900,41,70,13,1000,5,3,4.1\n"
        "2,2026-03-01 09:00:10,96.1,41,900,41,69,13,2000,6,3,4.2\n"
    )
    series = only(found)
    assert series.value.tolist() == [40e6, 41e6]
    assert steps_s(series) == [10]
    assert series.labels.kind == "anon"
    assert any("cpu_percent" in note and "vms_mb" in note for note in series.notes)


def test_columns_that_are_named_after_containers_are_all_memory(read):
    found = read(
        "time,cpu-exporter,rate-limiter,redis-cache-0,profile\n"
        "2026-03-01 09:00:00,1MiB,2MiB,3MiB,4MiB\n2026-03-01 09:00:09,1MiB,2MiB,3MiB,4MiB\n"
    )
    assert {name: (series.labels.kind, series.limit) for name, series in found.items()} == dict.fromkeys(
        ("cpu-exporter", "rate-limiter", "redis-cache-0", "profile"), ("usage", None)
    )


@pytest.mark.parametrize("owner", ["{}", '{{namespace="shop", pod="{}"}}', 'used{{pod="{}"}}'])
def test_a_container_that_is_named_after_memory_does_not_make_others_less(read, owner):
    names = [owner.format(name) for name in ("memory-api-0", "cpu-exporter-0", "web-7d9f-x2x4m")]
    heads = ",".join('"' + name.replace('"', '""') + '"' for name in names)
    found = read(f"Time,{heads}\n2026-03-01 09:00:00,1MiB,2MiB,3MiB\n2026-03-01 09:00:09,1MiB,2MiB,3MiB\n")
    assert [name.split("/")[-1] for name in found] == ["memory-api-0", "cpu-exporter-0", "web-7d9f-x2x4m"]


def test_a_metric_in_the_head_of_a_column(read):
    labels = '{{__name__=""{}"", io=""net"", pod=""api-0""}}'
    heads = ",".join('"' + labels.format(name) + '"' for name in ("container_memory_cache", "container_cpu_usage"))
    series = only(read(f"Time,{heads}\n2026-03-01 09:00:00,7,2\n2026-03-01 09:00:09,8,3\n", unit="bytes"))
    assert (series.labels.kind, series.value.tolist()) == ("file", [7, 8])


def test_names():
    assert kind_in_name("page cache (MB)") == kind_in_name("container_memory_cache") == "file"
    assert kind_in_name("heapUsed") == "anon"
    assert names_memory("Ram_usage") and names_memory("RSS(KB)") and names_memory("MemUsage")
    assert names_memory("CPU %") is False and names_memory("container_memory_max_usage_bytes") is False
    assert names_memory("pod-1") is None
    assert names_limit("mem_limit") and not names_limit("rate-limiter")


def test_a_cell_of_usage_and_limit(read):
    found = read(
        "timestamp,name,cpu %,mem usage / limit,net I/O\n"
        "2026-03-01 09:00:00,a,1%,31.5MiB / 96MiB,7MB / 8MB\n2026-03-01 09:00:00,b,1%,-- / --,-- / --\n"
        "2026-03-01 09:00:10,a,1%,32.5MiB / 96MiB,7MB / 8MB\n2026-03-01 09:00:10,b,1%,0.5GiB / 1GiB,7MB / 8MB\n"
    )
    assert found["a"].value.tolist() == [31.5 * MIB, 32.5 * MIB]
    assert found["b"].value.tolist() == [512 * MIB]
    assert (found["a"].limit, found["b"].limit) == (96 * MIB, GIB)


def test_each_column_has_its_own_limit(read):
    found = read(
        "time,net I/O,web_mib,web_limit_mib,db_mib,db_limit_mib,cpu_limit\n"
        "2026-03-01 09:00:00,3B / 4B,7,96,8,97,2\n2026-03-01 09:00:09,5B / 6B,7,96,8,97,2\n"
    )
    assert {name: series.limit for name, series in found.items()} == {"web_mib": 96 * MIB, "db_mib": 97 * MIB}
    series = only(read("time,net I/O,mem,cpu_limit\n2026-03-01 09:00:00,3B / 4B,7MiB,2\n"))
    assert (series.value.tolist(), series.limit) == ([7 * MIB], None)


def test_columns_that_are_named_after_addresses(read):
    assert set(read("Time,10.0.12.5:9100,10.0.12.6:9100\n2026-03-01 09:00:00,7MiB,8MiB\n")) == {
        "10.0.12.5:9100",
        "10.0.12.6:9100",
    }


def test_usage_and_limit_alone_on_a_line(read):
    for text in ("31.5MiB / 96MiB\n32.5MiB / 96MiB\n", "MEM USAGE / LIMIT\n31.5MiB / 96MiB\n32.5MiB / 96MiB\n"):
        series = only(read(text, interval_s=60))
        assert (series.labels.name, series.limit, steps_s(series)) == ("file.csv", 96 * MIB, [60])


def test_a_unit_in_a_column_of_its_own_and_no_header(read):
    found = read(
        "2026-03-01T09:00:00+01:00,0f1e2d3c4b5a,api:1.2,31.5,MiB\n2026-03-01T09:00:10+01:00,0f1e2d3c4b5a,api:1.2,0.5,GiB\n"
    )
    assert only(found).value.tolist() == [31.5 * MIB, 512 * MIB]


def test_a_limit_without_a_header(read):
    rows = "".join(f"2026-03-01T09:00:{at},0f1e2d3c4b5a,api:1.2,{at}.5,MiB,96,MiB\n" for at in range(10, 30))
    series = only(read(rows))
    assert (series.labels.name, series.limit) == ("api:1.2", 96 * MIB)
    assert any("taken as the limit" in note for note in series.notes)
    assert len(read(rows + "2026-03-01T09:00:30,0f1e2d3c4b5a,api:1.2,31.5,MiB,97,MiB\n")) == 2


def test_a_metric_in_a_column_of_its_own(read):
    rows = "".join(f"2026-03-01 09:00:{at},web,{kind},{at}MiB\n" for at in range(10, 30) for kind in ("rss", "cache"))
    assert set(read("time,container,metric,value\n" + rows)) == {"web rss", "web cache"}
    rows = "".join(f"2026-03-01 09:00:{at},web,{'ok' if at % 3 else 'busy'},{at}MiB\n" for at in range(10, 30))
    assert set(read("time,container,state,value\n" + rows)) == {"web"}


def test_a_number_of_an_epoch_is_no_time(read):
    series = only(read("epoch,cpu_time,timestamp,rss_mib\n1,7,2026-03-01 09:00:00,5\n2,9,2026-03-01 09:01:00,6\n"))
    assert steps_s(series) == [60]


def test_ids_beside_a_name(read):
    row = "2026-03-01T09:00:{:02d},{},api,{}MiB\n"
    one_by_one = "".join(row.format(at, "0f1e2d3c4b5a" if at < 30 else "9f1e2d3c4b5a", at) for at in range(10, 50))
    series = only(read("time,container_id,name,mem\n" + one_by_one))
    assert series.labels.name == "api"
    assert [(at - series.time_ns[0]) / 1e9 for at in series.restarts_ns] == [20]
    at_once = "".join(row.format(at, f"{at % 2}f1e2d3c4b5a", at) for at in range(10, 50))
    assert set(read("time,container_id,name,mem\n" + at_once)) == {"api 0f1e2d3c4b5a", "api 1f1e2d3c4b5a"}


def test_one_value_a_line(read):
    series = only(read("31.5MiB \n32.5MiB \n33.5MiB \n", interval_s=60))
    assert series.value.tolist() == [31.5 * MIB, 32.5 * MIB, 33.5 * MIB]
    assert steps_s(series) == [60, 60]


def test_without_times_each_container_has_rounds_of_its_own(read):
    found = read("name,mem\na,1MiB\nb,2MiB\na,3MiB\nb,4MiB\n", interval_s=10)
    assert {name: steps_s(series) for name, series in found.items()} == {"a": [10], "b": [10]}


def test_containers_with_one_row_each_are_no_series_together(read):
    found = read("Name,mem\na,1MiB\nb,2MiB\nc,3MiB\n", interval_s=10)
    assert {name: series.value.tolist() for name, series in found.items()} == {
        "a": [MIB],
        "b": [2 * MIB],
        "c": [3 * MIB],
    }


def test_a_column_without_a_unit_is_left_out_where_others_have_one(read):
    series = only(read("time,rss_mib,heap\n2026-03-01 09:00:00,7,3\n2026-03-01 09:00:09,8,3\n"))
    assert series.value.tolist() == [7 * MIB, 8 * MIB]
    assert any("heap" in note and "no unit" in note for note in series.notes)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig", "utf-8"])
def test_encodings(read, encoding):
    table = "NAME   CPU %   MEM USAGE / LIMIT   NET I/O\r\nweb    0.00%   31.5MiB / 96MiB     1kB / 0B\r\n"
    series = only(read(table.encode(encoding), interval_s=10))
    assert (series.labels.name, series.value.tolist(), series.limit) == ("web", [31.5 * MIB], 96 * MIB)


@pytest.mark.parametrize(
    "text",
    [
        "sep=,\n\"Time\",\"web\"\n\"2026-03-01 09:00:00\",\"31.5 MiB\"\n\"2026-03-01 09:00:10\",\"32.5 MiB\"\n",
        "| Time | RSS (MiB) |\n|------|----------:|\n| 2026-03-01 09:00:00 | 31.5 |\n| 2026-03-01 09:00:10 | 32.5 |\n",
        "# Time                CPU (%)   Real (MiB)   Virtual (MiB)\n"
        "2026-03-01T09:00:00     1.0       31.5         900\n2026-03-01T09:00:10     1.0       32.5         900\n",
    ],
)
def test_frames_around_a_table(read, text):
    series = only(read(text))
    assert series.value.tolist() == [31.5 * MIB, 32.5 * MIB]
    assert steps_s(series) == [10]


def test_a_number_that_a_cut_line_lacks_digits_of_is_left_out(read):
    rows = "".join(f"2026-03-01 09:00:{at},52428800\n" for at in range(10, 20))
    series = only(read(("time,rss_bytes\n" + rows)[:-5]))
    assert set(series.value.tolist()) == {50 * MIB}
    assert any("cut short" in note for note in series.notes)


ROW = "{id}   {name}   0.10%   {used} / {limit}   2.00%   1kB / 0B   0B / 0B   3\n"
HEADER = "CONTAINER ID   NAME   CPU %   MEM USAGE / LIMIT   MEM %   NET I/O   BLOCK I/O   PIDS\n"


def round_of(*rows):
    keys = ("id", "name", "used", "limit")
    return HEADER + "".join(ROW.format(**dict(zip(keys, row, strict=True))) for row in rows)


def test_limits_that_are_set_and_the_memory_of_the_host(read):
    text = round_of(
        ("0a1b2c3d4e5f", "a", "1MiB", "7.574GiB"),
        ("1a1b2c3d4e5f", "b", "2MiB", "7.574GiB"),
        ("2a1b2c3d4e5f", "c", "3MiB", "96MiB"),
    )
    found = read(text, interval_s=10)
    assert {name: series.limit for name, series in found.items()} == {"a": None, "b": None, "c": 96 * MIB}


@pytest.mark.parametrize("limit", ["100MiB", "512MiB", "1GiB", "1.465GiB", "2.5GiB", "16GiB", "300MB"])
def test_a_limit_that_several_have(limit):
    (size, unit) = re.fullmatch(r"([\d.]+)(\w+)", limit).groups()
    assert host_memory([float(size) * factor_of(unit)] * 3) is None


@pytest.mark.parametrize("memory", ["994MiB", "981.1MB", "1.921GiB", "3.829GiB", "7.448GiB", "62.8GiB", "67.35GB"])
def test_the_memory_of_a_host(memory):
    (size, unit) = re.fullmatch(r"([\d.]+)(\w+)", memory).groups()
    value = float(size) * factor_of(unit)
    assert host_memory([value, 96 * MIB, value, None]) == value
    assert host_memory([value]) is None


def test_a_container_that_does_not_run_holds_nothing_that_is_known(read):
    text = round_of(("0a1b2c3d4e5f", "a", "0B", "0B"), ("1a1b2c3d4e5f", "b", "2MiB", "96MiB")) + round_of(
        ("0a1b2c3d4e5f", "a", "--", "--"), ("1a1b2c3d4e5f", "b", "2MiB", "96MiB")
    )
    assert list(read(text, interval_s=10)) == ["b"]


def test_another_id_of_the_same_name_is_a_restart(read):
    text = "".join(
        f"2026-03-01T09:00:{at:02d}Z\n" + round_of((f"{at // 30}a1b2c3d4e5f", "a", f"{at}MiB", "96MiB"))
        for at in range(10, 60, 10)
    )
    series = only(read(text))
    assert [(at - series.time_ns[0]) / 1e9 for at in series.restarts_ns] == [20]


@pytest.mark.parametrize("is_after", [False, True])
@pytest.mark.parametrize("stamp", ["Sun Mar  1 09:00:{:02d} UTC 2026", "--- Stats: 2026-03-01 09:00:{:02d} ---"])
def test_times_above_or_below_each_round(read, stamp, is_after):
    parts = [
        (stamp.format(at) + "\n", ROW.format(id="0a1b2c3d4e5f", name="a", used=f"{at}MiB", limit="96MiB"))
        for at in range(10, 60, 10)
    ]
    series = only(read("".join(row + time if is_after else time + row for time, row in parts)))
    assert steps_s(series) == [10] * 4
    assert series.value.tolist() == [at * MIB for at in range(10, 60, 10)]


def test_what_stands_before_the_first_time_is_left_out(read):
    row = ROW.format(id="0a1b2c3d4e5f", name="a", used="7MiB", limit="96MiB")
    series = only(read(row + "2026-03-01T09:00:10Z\n" + row + "2026-03-01T09:00:20Z\n" + row))
    assert len(series.value) == 2
    assert any("before the first time" in note for note in series.notes)


@pytest.mark.parametrize(
    ("line", "name", "expected", "kind"),
    [
        ("api: 0.35%, 1.5GiB / 4GiB, 37.5%, 61.2MB / 13.1MB", "api", 1.5 * GIB, "usage"),
        ("name=api cpu=0.3% mem=31.5MiB / 96MiB", "api", 31.5 * MIB, "usage"),
        ("0a1b2c3d4e5f api 0.50% 31.5MiB / 96MiB 0.64% 1.2kB / 0B 5", "api", 31.5 * MIB, "usage"),
        ("api   0.00%   31.5 MiB/994 MiB   4.14%   2.9 MiB/781.2 KiB", "api", 31.5 * MIB, "usage"),
        ("0a1b2c3d4e5f   api   --   31.5MB / 981.1MB   0.1%   -- / --", "api", 31.5e6, "usage"),
        ("root 41 0.0 12.8 913791 731013 ? Sl May06 107:20 /usr/bin/api --serve", "api", 731013 * KIB, "anon"),
        ("   41 root      20   0 1807632 731013    864 S  0.3 68.4  19:57.22 api", "api", 731013 * KIB, "anon"),
        ("   41 root      20   0   20.1g   1.5g    864 S  0.3 68.4  19:57.22 api", "api", 1.5 * GIB, "anon"),
        ("03:42:15 PM     0        41      0.20      0.00  913791  731013   0.42  api", "api", 731013 * KIB, "anon"),
        ("api-5f9f6bb846-tx6mj   704m   1545Mi", "api-5f9f6bb846-tx6mj", 1545 * MIB, "usage"),
        ("shop   api-0   704m   1545Mi", "shop/api-0", 1545 * MIB, "usage"),
        ("INFO health: Memory: RSS=92.5 MB, VMS=1060.0 MB, Percent=2.7%", "rss", 92.5e6, "anon"),
        ("VmRSS:\t   731013 kB", "rss", 731013 * KIB, "anon"),
        ("  heapUsed: '20.35 MB',", "heapused", 20.35e6, "anon"),
        ("Iteration 3 - memory usage (RSS): 17.5 Mb; threads: 1", "rss", 17.5e6, "anon"),
        ("node-1   250m   12%   1545Mi   40%", "node-1", 1545 * MIB, "usage"),
        ("/machine.slice/api.service   12   0.5   1.5G   -   -", "/machine.slice/api.service", 1.5 * GIB, "usage"),
        ("0a1b2c3d4e5f6   api   0.10   31.5MB   16.38kB   12", "api", 31.5e6, "usage"),
        ("Memory use:             31.50 MiB", "memory use", 31.5 * MIB, "usage"),
        ("  Memory (current): 31.50MB", "memory", 31.5e6, "usage"),
        ("MEM 31.500000 1772355600.1052", "memory", 31.5 * MIB, "anon"),
    ],
)
def test_lines_of_other_tools(read, line, name, expected, kind):
    found = read(f"2026-03-01 09:00:00 {line}\n" if not line.startswith(("MEM", "03:")) else f"{line}\n")
    series = found[name]
    assert series.value.tolist() == [pytest.approx(expected, abs=1)]
    assert series.labels.kind == kind


@pytest.mark.parametrize(
    ("line", "at_s"),
    [
        ("gc {n} @{at}.000s 0%: 0.1+0.9+0.0 ms clock, 1.2+0.4+0.0 ms cpu, {size2}->{size2}->{size} MB, 70 MB goal", 1),
        ("[{at}.000s][info][gc] GC({n}) Pause Young (Normal) (G1 Evacuation Pause) {size2}M->{size}M(256M) 3.2ms", 1),
        ("{at}.000: [GC (Allocation Failure) {size2}M->{size}M(256M), 0.0123 secs]", 1),
        ("[2026-03-01T09:{at:02d}:00.000+0000][info][gc] GC({n}) Pause Full {size2}M->{size}M(256M) 9.1ms", 60),
        ("[41:0x5f6e2d0]    {at}000 ms: Mark-sweep {size2}.0 (90.0) -> {size}.0 (96.0) MB, 2.1 / 0.0 ms", 1),
    ],
)
def test_a_heap_after_each_collection(read, line, at_s):
    text = "".join(line.format(n=at, at=at, size=20 + at, size2=40 + at) + "\n" for at in range(1, 50))
    series = read(text)["heap"]
    assert series.value.tolist() == [(20 + at) * MIB for at in range(1, 50)]
    assert steps_s(series) == [at_s] * 48


def test_columns_that_ps_was_asked_for(read):
    rounds = "".join(f"  PID   RSS ELAPSED CMD\n   41 {at}000   01:00 /usr/bin/api --serve\n" for at in range(10, 50))
    series = only(read(rounds, interval_s=60))
    assert (series.labels.name, series.value.tolist()[:2]) == ("api", [10_000 * KIB, 11_000 * KIB])
    assert set(steps_s(series)) == {60}


def test_workers_of_one_name_are_told_apart_and_a_new_pid_is_a_restart(read):
    row = "   {pid} www  20   0  90000  {rss}    864 S  0.3 68.4  19:57.22 {name}\n"

    def rounds(*pids):
        for at, (first, second) in enumerate(pids):
            yield f"top - 09:00:{at:02d} up 3 days\n  PID USER PR NI VIRT RES SHR S %CPU %MEM TIME+ COMMAND\n"
            yield row.format(pid=first, rss=1000, name="worker") + row.format(pid=42, rss=2000, name="worker")
            yield row.format(pid=second, rss=3000, name="main")

    found = read("".join(rounds((41, 7), (41, 7), (41, 8))))
    assert {name: len(series.restarts_ns) for name, series in found.items()} == {
        "worker 41": 0,
        "worker 42": 0,
        "main": 1,
    }


def test_json_of_docker_podman_and_the_api(read):
    listed = json.dumps([{"Name": "a", "ID": "x", "MemUsage": "31.5MiB / 96MiB", "NetIO": "1MB / 2MB"}])
    assert only(read(f"{listed}\n{listed}\n", interval_s=5)).value.tolist() == [31.5 * MIB] * 2
    podman = json.dumps([{"id": "x", "name": "a", "mem_usage": "31.5MB / 96MB"}], indent=1)
    assert only(read(podman, interval_s=5)).limit == 96e6
    own = '{"container":"a","memory":{"raw":"31.5MiB / 96MiB","percent":"1%"}}\n'
    series = only(read(f"Sun Mar  1 09:00:00 UTC 2026\n{own}Sun Mar  1 09:00:07 UTC 2026\n{own}"))
    assert steps_s(series) == [7]
    api = {"usage": 31 * MIB, "stats": {"inactive_file": 7 * MIB, "cache": 9 * MIB}, "limit": 96 * MIB}
    series = only(read(json.dumps({"read": "2026-03-01T09:00:00Z", "name": "/a", "memory_stats": api})))
    assert (series.labels.name, series.value.tolist(), series.limit) == ("a", [24 * MIB], 96 * MIB)


def test_json_with_an_object_for_each_sample(read):
    rows = [{"t": 1772355600 + at, "cpu": 3, "proc": {"rss_kb": 7000 + at, "name": "api"}} for at in (0, 10, 20)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    for text in (lines + '{"t": 177', json.dumps(rows), json.dumps(rows, indent=1)):
        series = only(read(text))
        assert (series.labels.name, series.value.tolist()) == ("api", [7000e3, 7010e3, 7020e3])
        assert steps_s(series) == [10, 10]


def test_data_points_of_cloudwatch(read):
    moments = [(f"2026-03-01T09:{at:02d}:00+00:00", 7.5 + at) for at in (5, 0, 10)]
    points = [{"Timestamp": moment, "Average": value, "Unit": "Percent"} for moment, value in moments]
    series = only(read(json.dumps({"Label": "MemoryUtilization", "Datapoints": points})))
    assert (series.labels.unit, series.value.tolist()) == ("percent", [7.5, 12.5, 17.5])
    assert any("clock went back" in note for note in series.notes)


def test_lines_of_victoria_metrics(read):
    values = {"values": [7, 8], "timestamps": [1772355600000, 1772355610000]}
    lines = "".join(json.dumps({"metric": {**POD, "pod": pod}, **values}) + "\n" for pod in ("api-0", "api-1"))
    found = read(lines)
    assert set(found) == {"shop/api-0/api", "shop/api-1/api"}
    assert steps_s(found["shop/api-0/api"]) == [10]


def matrix(*results):
    found = [{"metric": metric, "values": values} for metric, values in results]
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": found}})


POD = {"__name__": "container_memory_working_set_bytes", "namespace": "shop", "pod": "api-0", "container": "api"}


def test_lives_of_a_container_are_one_series_with_restarts(read):
    lives = [
        ({**POD, "id": f"/kubepods/{life}", "name": f"k8s_api_{life}"},
         [[1772355600 + life * 100 + at, f"{(7 + at) * MIB}"] for at in range(0, 90, 30)])
        for life in (1, 0)
    ]  # fmt: skip
    limit = {**POD, "__name__": "kube_pod_container_resource_limits"}
    limits = [
        ({**limit, **more}, [[1, value]])
        for more, value in [({"resource": "memory", "instance": "k"}, f"{96 * MIB}"), ({"resource": "cpu"}, "2")]
    ]
    found = read(matrix(*lives, *limits), name="export.json")
    series = only(found)
    assert (series.labels.name, len(series.value), series.limit) == ("shop/api-0/api", 6, 96 * MIB)
    assert series.restarts_ns == (1772355700 * 10**9,)


def test_what_prometheus_has_beside_memory(read):
    values = [[1772355600000, "7"], [1772355630000, "8"]]
    names = ("container_threads", "go_goroutines", "go_memstats_alloc_bytes_total", "container_memory_max_usage_bytes")
    others = [({**POD, "__name__": name}, values) for name in names]
    with pytest.raises(UsageProblem, match="no series of memory"):
        read(matrix(*others))
    series = only(read(matrix(*others, (POD, values))))
    assert steps_s(series) == [30]
    expression = read(matrix(({"service": "a"}, values), ({"service": "b"}, values)), unit="MiB")
    assert {name: each.value.tolist() for name, each in expression.items()} == {
        "a": [7 * MIB, 8 * MIB],
        "b": [7 * MIB, 8 * MIB],
    }
    with pytest.raises(RtdebugError, match="parse error"):
        read('{"status": "error", "errorType": "bad_data", "error": "parse error"}')


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"a":' * 100_000,
        '{"a":' * 900 + '{"memory_stats": 1}' + "}" * 900,
        '[{"Name":"a","MemUsage":"5MiB / 9MiB"},' * 2000,
        "a" * 500_000,
        "1 " * 200_000,
        "1B/" * 100_000,
        "| a | b |\n" * 20_000,
        "MEM USAGE / LIMIT" * 20_000,
        "," * 1_000_000,
    ],
)
def test_what_is_nothing_is_soon_known(read, text):
    began = time.process_time()
    try:
        read(text, interval_s=5)
    except RtdebugError as error:
        assert error.hint
    assert time.process_time() - began < 10


def test_a_leak_that_is_killed_at_its_limit_says_how_often(read):
    used = [(24 + at % 25 * 3) for at in range(150)]  # 24 to 96 MiB
    rows = "".join(f"{1_760_000_000 + at * 30},{value},96\n" for at, value in enumerate(used))
    verdict = judge_series(only(read("time,mib,limit_mib\n" + rows))).verdict
    assert verdict.verdict == "suspect"
    assert "fell from its limit at least 5 times" in verdict.reason


def test_what_is_pinned_grew_since_its_last_restart(read):
    used = [*range(20, 90, 2), *range(20, 96, 2), *[96] * 6]
    rows = "".join(f"{1_760_000_000 + at * 60},{value},96\n" for at, value in enumerate(used))
    verdict = judge_series(only(read("time,mib,limit_mib\n" + rows))).verdict
    assert verdict.shape == "at the limit"
    assert re.search("from 2[02] MiB to its limit of 96 MiB in 3[78] min", verdict.reason)
    assert len(verdict.change_points_ns) == 1


def test_two_sessions_far_apart_are_too_short_and_it_is_said_why(read):
    times = [1_760_000_000 + at * 10 for at in range(60)] + [1_760_600_000 + at * 10 for at in range(60)]
    verdict = judge_series(only(read("time,mib\n" + "".join(f"{at},{30 + at % 7}\n" for at in times)))).verdict
    assert verdict.verdict == "too short to tell"
    assert "without a gap or a restart" in verdict.reason
