"""`rtdebug oom` as its user calls it, on logs of our own."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import re
import subprocess
import sys

import pytest

from rtdebug.oom.episode import make_episode
from rtdebug.oom.kernel_log import read_oom_log
from rtdebug.render.oom_json import oom_fields
from tests.conftest import ROOT
from tests.unit.oom_dumps import MIB, Task, global_dump, memcg_dump

CART = "a7" * 32
CGROUP = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod7a_b.slice/cri-containerd-{CART}.scope"


def dressed(lines, clock, host="node-7"):
    return "".join(f"2026-03-{clock}+00:00 {host} kernel: {line}\n" for line in lines)


ONE = dressed(memcg_dump({"anon": 60 * MIB}, [Task(7001, "python3", 15_000)], cgroup=CGROUP), "11T10:16:36")
TWO = dressed(global_dump([Task(7019, "java", 25_000)]), "12T11:17:37")


def oom(*arguments, stdin="", code=0, text=True):
    done = subprocess.run(
        [sys.executable, "-m", "rtdebug", "oom", *map(str, arguments)],
        cwd=ROOT,
        input=stdin,
        capture_output=True,
        text=text,
        timeout=60,
    )
    assert done.returncode == code, done.stderr
    return done


def pids(*arguments, stdin=""):
    lines = oom(*arguments, "-o", "json", stdin=stdin).stdout.splitlines()
    return [killed["pid"] for line in lines for killed in json.loads(line)["killed"]]


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "kern.log"
    path.write_text(ONE + TWO)
    return path


def test_one_kill_is_a_page_and_several_are_a_table(log):
    page = oom("-", stdin=ONE).stdout
    assert page.startswith("OOM kill at 2026-03-11T10:16:36Z on node-7\n  verdict     anon_one_process: ")
    assert "python3 (pid 7001)" in page
    assert all(len(line) <= 80 for line in page.splitlines())
    table = oom(log).stdout.splitlines()
    assert table[0].split() == ["TIME", "SCOPE", "WHOSE", "KILLED", "HELD", "LIMIT", "VERDICT"]
    assert "containerd:a7a7a7a7a7a7" in table[1]
    assert "node_exhausted" in table[2]
    assert oom(log, "-o", "text").stdout.count("OOM kill at ") == 2


def utf_16(data):
    return data.decode().encode("utf-16")


@pytest.mark.parametrize(
    "pack", [gzip.compress, bz2.compress, lzma.compress, utf_16], ids=["gz", "bz2", "xz", "PowerShell"]
)
def test_compressed_by_content_not_by_name(tmp_path, pack):
    path = tmp_path / "kern.log.1"
    path.write_bytes(pack((ONE + TWO).encode()))
    assert pids(path) == [7001, 7019]
    done = oom("-", "-o", "json", stdin=path.read_bytes(), text=False)
    assert len(done.stdout.splitlines()) == 2


def test_a_damaged_file_gives_what_comes_before(tmp_path):
    path = tmp_path / "kern.log.gz"
    noise = "".join(f"line {index * 7919 % 10007}\n" for index in range(40_000))
    path.write_bytes(gzip.compress((ONE + noise).encode())[:-5000])
    for form in ("json", "table"):
        done = oom(path, "-o", form, code=1)
        assert "7001" in done.stdout
        assert "damaged" in done.stderr


def test_the_same_kill_in_two_files_counts_once(tmp_path, log):
    syslog = tmp_path / "syslog"
    syslog.write_text("2026-03-11T10:00:00+00:00 node-7 cron[5]: x\n" + ONE)
    assert pids(log, syslog) == [7001, 7019]
    other = tmp_path / "other"
    other.write_text(ONE.replace("node-7", "node-8"))
    assert pids(log, other) == [7001, 7019, 7001]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--since", "2026-03-12"], [7019]),
        (["--until", "2026-03-12T00:00:00Z"], [7001]),
        (["--since", "2026-03-11T10:00:00Z", "--until", "2026-03-13"], [7001, 7019]),
        (["--container", CART], [7001]),
        (["--container", CART[:6]], [7001]),
        (["--container", "7a-b"], [7001]),
        (["--container", "/kubepods.slice"], [7001]),
        (["--container", "cgroup:/user.slice"], [7019]),
        (["--container", "nobody"], []),
        (["--container", "a"], []),
    ],
)
def test_filters(log, arguments, expected):
    assert pids(log, *arguments) == expected


def test_kills_without_a_time_are_counted_when_a_time_is_asked_for(tmp_path):
    path = tmp_path / "dmesg"
    path.write_text("\n".join(global_dump([Task(7019, "java", 25_000)])))
    done = oom(path, "--since", "2020-01-01")
    assert done.stdout == ""
    assert "1 kills whose time is not in the log" in done.stderr


def test_no_kill_is_no_error(tmp_path):
    path = tmp_path / "empty"
    path.write_text("")
    done = oom(path)
    assert (done.stdout, done.stderr) == ("", f"rtdebug: no OOM kill in {path}\n")
    assert oom(path, "--by", "cluster", "-o", "json").stdout == ""


def test_a_killer_in_user_space_is_named_where_the_kernel_killed_nobody(tmp_path):
    path = tmp_path / "syslog"
    path.write_text(
        "Mar 11 10:16:36 node-7 systemd-oomd[71]: Killed /app.slice/cart.scope due to memory pressure"
        " for /app.slice being 83.17% > 60.00% for > 20s with reclaim activity\n"
        "Mar 11 10:16:37 node-7 systemd-oomd[71]: Considered 3 cgroups for killing\n"
        'Mar 11 10:17:36 node-7 earlyoom[72]: sending SIGTERM to process 7001 uid 1000 "java": badness 907\n'
    )
    done = oom(path)
    assert done.stdout == ""
    assert "systemd-oomd killed /app.slice/cart.scope for memory pressure (83.17% > 60%)" in done.stderr
    assert "earlyoom killed java (pid 7001)" in done.stderr
    assert done.stderr.count(" killed ") == 2


def test_the_journal(tmp_path, monkeypatch):
    """journalctl itself is not to be had everywhere: what it is asked for, and what becomes of its answer."""
    entries = [
        {"_TRANSPORT": "kernel", "MESSAGE": line, "__REALTIME_TIMESTAMP": "1773224196000000", "_HOSTNAME": "node-7"}
        for line in memcg_dump({"anon": 60 * MIB}, [Task(7001, "python3", 15_000)], cgroup=CGROUP)
    ]
    (tmp_path / "answer").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    program = tmp_path / "journalctl"
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\ncat {tmp_path}/answer\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    done = oom("--journal", "--since", "2026-03-01T00:00:00Z", "-o", "json")
    episode = json.loads(done.stdout)
    assert (episode["time"], episode["host"]) == ("2026-03-11T10:16:36Z", "node-7")
    assert episode["complete"]
    asked = (tmp_path / "asked").read_text().split()
    assert {"--output=json", "_TRANSPORT=kernel", "--since=@1772323200"} <= set(asked)
    program.write_text("#!/bin/sh\necho no journal files >&2\nexit 1\n")
    assert "no journal files" in oom("--journal", code=3).stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["/nonexistent/kern.log"], 2, "no file /nonexistent/kern.log"),
        (["/"], 1, "cannot read /"),
        (["x", "--journal"], 2, "--journal"),
        (["--watch", "x"], 2, "--watch"),
        (["--watch", "--since", "1h"], 2, "--watch"),
        (["--keep", "3"], 2, "--watch"),
        (["--since", "soon"], 2, "is no time"),
        (["--by", "moon"], 2, "cluster"),
    ],
)
def test_wrong_use(arguments, code, message):
    assert message in oom(*arguments, code=code).stderr


def test_clusters(log):
    assert "2 OOM kills in 2 clusters" in oom("--by", "cluster", log).stdout
    first = json.loads(oom("--by", "cluster", log, "-o", "json").stdout.splitlines()[0])
    assert (first["owner_kind"], first["owner"]) == ("pod", "7a-b")


def test_hostile_text_reaches_no_terminal(tmp_path):
    path = tmp_path / "log"
    path.write_text("\n".join(memcg_dump({"anon": 60 * MIB}, [Task(7, "\x1b[2J\u202e", 15_000)], cgroup="/a\x1b[2Jb")))
    for form in ("table", "text", "json"):
        assert "\x1b" not in oom(path, "-o", form).stdout
    assert "\x1b" not in oom(path, path, "--by", "cluster").stdout


# --- the schema ---


def documented_keys() -> set[str]:
    """The first column of the tables below the heading of the schema in docs/oom.md."""
    text = (ROOT / "docs" / "oom.md").read_text(encoding="utf-8")
    schema = re.search(r"^## The JSON form\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert schema
    cells = re.findall(r"^\| (`[^|]*?) \|", schema[1], re.MULTILINE)
    return {key for cell in cells for key in re.findall(r"`([\w.\[\]+]+)`", cell)}


def keys_of(value, prefix=""):
    if isinstance(value, list):
        return {key for item in value for key in keys_of(item, prefix.removesuffix(".") + "[].")}
    if not isinstance(value, dict):
        return set()
    found = set()
    for key, item in value.items():
        found.add(prefix + key)
        # kernel keys, paths and figures of a rule are not ours to list
        if key not in ("memory_stat", "children_memory_stat", "evidence", "pages"):
            found |= keys_of(item, f"{prefix}{key}.")
    return found


def test_every_key_is_documented_and_every_documented_key_is_there():
    reaped = "oom_reaper: reaped process 7001 (python3), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB"
    v1 = [
        line.replace("swap: usage 0kB", "memory+swap: usage 0kB")
        for line in global_dump([Task(7001, "python3", 15_000)])
    ]
    counters = [f"{name}: usage 8kB, limit 16kB, failcnt 3" for name in ("memory", "memory+swap", "kmem", "swap")]
    records = read_oom_log([*v1[:-1], *counters, v1[-1], reaped])
    records += read_oom_log(
        memcg_dump({"shmem": 60 * MIB, "file": 61 * MIB, "anon": 0}, [Task(7001, "python3", 15_000)])
    )
    keys = set().union(*(keys_of(oom_fields(make_episode(record))) for record in records))
    assert keys == documented_keys()


def test_the_keys_of_the_contract():
    (record,) = read_oom_log(ONE.splitlines())
    fields = oom_fields(make_episode(record))
    contract = {
        *("time", "complete", "missing", "scope", "oom_memcg", "task_memcg", "container_id", "outer_container_id"),
        *("pod_uid", "runtime", "trigger", "selected", "killed", "usage_bytes", "limit_bytes", "failcnt"),
        *("binding_limit", "group_kill", "tasks", "verdict"),
    }
    assert contract <= fields.keys()
    assert {"pid", "comm"} <= fields["trigger"].keys()
    assert {"kind", "text", "evidence"} <= fields["verdict"].keys()


def test_the_documents_name_every_verdict_and_note():
    from rtdebug.oom.notes import _NOTES
    from rtdebug.oom.verdict import VerdictKind

    text = (ROOT / "docs" / "oom.md").read_text(encoding="utf-8")
    assert [kind for kind in VerdictKind.__args__ if f"`{kind}`" not in text] == []
    assert len(_NOTES) == len(
        re.findall(r"^\| `\w+` \|", text.partition("\n## Notes\n")[2].partition("\n## ")[0], re.MULTILINE)
    )
