"""`rtdebug leaks report` and `compare` as their users run them: table, JSON and page."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from rtdebug.cli import run
from rtdebug.leaks.clusters import clusters
from rtdebug.leaks.findings import findings
from rtdebug.leaks.verdict import judge_series
from rtdebug.render.leaks_page import page
from tests.unit.leak_series import BEGIN_S, MIB, cgroup_rows, leaking, process_rows, series, steady, write_segment

COUNT = 2400
HOSTILE = "$x_{1}$ <script>alert(1)</script>\x1b[31m\n&\u202e'\""


@pytest.fixture
def store(tmp_path):
    folder = tmp_path / "store"
    values = {"leaky": leaking(COUNT), "calm": steady(COUNT)}
    write_segment(folder, "cgroups", cgroup_rows(values, limit_bytes=1024 * MIB), BEGIN_S)
    write_segment(folder, "processes", process_rows("leaky", values["leaky"]), BEGIN_S)
    return folder


def test_the_table(store, capsys):
    assert run(["leaks", "report", str(store)]) == 0
    out = capsys.readouterr().out
    row = next(line for line in out.splitlines() if line.startswith("leak "))
    assert row.split()[1:3] == ["leaky", "anon"]
    assert re.search(r"45(\.\d)? MiB", row)
    assert "Process: python3 (pid 41" in out
    assert "series without a leak" in out
    assert "calm" not in out
    assert run(["leaks", "report", "--all", str(store)]) == 0
    assert "calm" in capsys.readouterr().out


def test_the_document(store, capsys):
    assert run(["leaks", "report", "-o", "json", str(store)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert set(document) == {"series", "clusters", "notes"}
    leaky = next(each for each in document["series"] if each["name"] == "leaky" and each["kind"] == "anon")
    assert leaky["verdict"] == "leak"
    assert leaky["executable"] == "python3"
    assert leaky["limit"] == 1024 * MIB
    assert leaky["interval"][0] < leaky["growth_bytes_per_hour"] < leaky["interval"][1]
    left = (1024 * MIB - leaky["last"] - MIB) / leaky["growth_bytes_per_hour"] * 3600
    assert leaky["time_to_limit_s"] == pytest.approx(left, rel=0.02)
    assert leaky["reason"]
    assert leaky["since"].endswith("Z")
    (cluster,) = document["clusters"]
    assert cluster["members"][0]["name"] == "leaky"
    assert cluster["growth_bytes_per_hour"] == leaky["growth_bytes_per_hour"]


def test_two_columns_of_a_csv(tmp_path, capsys):
    path = tmp_path / "usage.csv"
    lines = [f"{BEGIN_S + at * 10},{leak:.0f},{flat:.0f}" for at, (leak, flat) in enumerate(
        zip(leaking(COUNT), steady(COUNT), strict=True)
    )]  # fmt: skip
    path.write_text("time,rss_bytes,cache_bytes\n" + "\n".join(lines))
    assert run(["leaks", "report", str(path), "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [(each["name"], each["kind"], each["verdict"]) for each in document["series"]] == [
        ("rss_bytes", "anon", "leak"),
        ("cache_bytes", "file", "no leak"),
    ]


class Check(HTMLParser):
    """Collects the tags of a page, and all that it would load."""

    def __init__(self):
        super().__init__()
        self.tags, self.loads = set(), []

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.loads += [
            (tag, name, value)
            for name, value in attributes
            if name in ("src", "href", "xlink:href", "data", "onload") and value and not value.startswith("#")
        ]


def test_the_page(store, tmp_path, capsys):
    path = tmp_path / "leaks.html"
    assert run(["leaks", "report", str(store), "--html", str(path)]) == 0
    text = path.read_text()
    check = Check()
    check.feed(text)
    assert "svg" in check.tags
    assert not check.tags & {"script", "link", "img", "iframe", "object"}
    assert check.loads == []
    assert "default-src 'none'" in text
    assert "python3" in text


def test_hostile_names_stay_text():
    made = series(leaking(), HOSTILE)
    judged = [judge_series(replace(made, labels=replace(made.labels, image=HOSTILE, executable=HOSTILE)))]
    text = page(judged, clusters(findings(judged)), [HOSTILE])
    check = Check()
    check.feed(text)
    assert "script" not in check.tags
    assert check.loads == []
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_no_leak(tmp_path, capsys):
    folder = tmp_path / "store"
    write_segment(folder, "cgroups", cgroup_rows({"calm": steady(COUNT)}), BEGIN_S)
    assert run(["leaks", "report", str(folder), "--html", str(tmp_path / "page.html")]) == 0
    assert "No leak found." in capsys.readouterr().out
    assert "No series" in (tmp_path / "page.html").read_text()


def test_too_short_is_not_said_to_be_well(tmp_path, capsys):
    """At 3 a.m. somebody records three minutes: what grows so far is named, with the time that is left."""
    folder, page_path = tmp_path / "store", tmp_path / "page.html"
    values = {"calm": steady(30), "fast": leaking(30, growth=200 * MIB)}
    rows = cgroup_rows(values)
    write_segment(folder, "cgroups", [row | {"limit_bytes": 512 * MIB} for row in rows], BEGIN_S)
    assert run(["leaks", "report", str(folder), "--html", str(page_path)]) == 0
    text = capsys.readouterr().out
    assert "No leak found" not in text
    assert "Too short to tell" in text
    assert "--min-span" in text
    (line,) = [line for line in text.splitlines() if "so far it grew by" in line]
    assert "fast anon" in line
    assert "its limit is reached in" in line
    assert "too short to tell" in page_path.read_text()
    assert "No series" not in page_path.read_text()


def test_watch_says_what_it_watches(tmp_path, capsys):
    folder = tmp_path / "store"
    values = {"calm": steady(COUNT), "leaky": leaking(COUNT)}
    rows = [row | {"limit_bytes": 1024 * MIB} for row in cgroup_rows(values)]
    write_segment(folder, "cgroups", rows, BEGIN_S)
    assert run(["leaks", "watch", str(folder), "--duration", "100ms"]) == 0
    out, err = capsys.readouterr()
    assert "series: 1 leak, " in err
    (line,) = out.splitlines()
    assert "MiB/h, limit in " in line


def test_watch_ends_with_its_reader(tmp_path):
    """`rtdebug leaks watch | head -1`, when no verdict changes any more."""
    folder = tmp_path / "store"
    write_segment(folder, "cgroups", cgroup_rows({"leaky": leaking(COUNT)}), BEGIN_S)
    command = [sys.executable, "-m", "rtdebug", "leaks", "watch", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert b"leaky" in process.stdout.readline()
            process.stdout.close()
            process.wait(timeout=30)
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["report", "{tmp}/missing"], 2, "missing"),
        (["report", "{tmp}"], 2, "nothing recorded"),
        (["report", "{tmp}/x.csv"], 2, "no column of times"),
        (["report", "--min-span", "soon"], 2, "duration"),
        (["report", "{tmp}/x.csv", "--interval", "5s", "--html", "/proc/no/page.html"], 1, "cannot write"),
        (["compare", "{tmp}", "{tmp}"], 2, "nothing recorded"),
    ],
)
def test_errors(tmp_path, capsys, arguments, status, message):
    (tmp_path / "x.csv").write_text("mib\n5\n")
    assert run(["leaks", *(each.format(tmp=tmp_path) for each in arguments)]) == status
    assert message in capsys.readouterr().err


def test_compare(tmp_path, capsys):
    for name, growth in (("base", 5 * MIB), ("new", 300 * MIB)):
        rows = cgroup_rows({"web": leaking(COUNT, growth=growth)})
        write_segment(tmp_path / name, "cgroups", rows, BEGIN_S)
    arguments = ["leaks", "compare", str(tmp_path / "base"), str(tmp_path / "new")]
    assert run(arguments) == 0
    out = capsys.readouterr().out
    assert re.search(r"grows faster +all +anon", out)
    assert run([*arguments, "-o", "json"]) == 0
    kinds = json.loads(capsys.readouterr().out)["kinds"]
    assert kinds[0]["change"] == "grows faster"
    assert kinds[0]["interval"][0] < kinds[0]["difference_per_hour"] < kinds[0]["interval"][1]


def test_watch_tells_what_leaks_and_ends(store, capsys):
    assert run(["leaks", "watch", str(store), "--every", "50ms", "--duration", "200ms", "-o", "json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {(line["event"], line["verdict"]) for line in lines} == {("leak_verdict", "leak")}
    assert {line["kind"] for line in lines} == {"anon", "rss_anon"}
    assert len(lines) == 2  # once each, though looked at four times
    assert run(["leaks", "watch", str(store), "--duration", "10ms"]) == 0
    assert "leak " in capsys.readouterr().out


def test_no_values_at_all(tmp_path, capsys):
    folder = tmp_path / "store"
    write_segment(folder, "cgroups", cgroup_rows({"web": np.zeros(0)}), BEGIN_S)
    assert run(["leaks", "report", str(folder)]) == 0
    assert "nothing was recorded" in capsys.readouterr().out
