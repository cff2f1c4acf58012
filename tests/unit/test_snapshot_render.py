"""What a person reads of a snapshot, and the JSON document."""

import json
import subprocess
import sys

import pytest

from rtdebug.render.snapshot import render_overview
from rtdebug.render.snapshot_pages import SECTIONS, render_pages, snapshot_json
from rtdebug.snapshot.archive import write_archive
from rtdebug.snapshot.inside import parse_inside
from rtdebug.snapshot.model import CgroupRecord, ResourceLimit
from rtdebug.snapshot.network import add_memory, parse_sockstat
from rtdebug.snapshot.runtime import config_of
from tests.unit.snapshots import HOSTILE, MIB, hostile, memory_state, process, snapshot, use


def overview(taken, most_rows=12):
    return "\n".join(render_overview(taken, 100, False, most_rows))


def pages(taken, *sections, most_rows=None):
    return "\n".join(render_pages(taken, sections or SECTIONS, 100, False, most_rows))


def run(*arguments):
    return subprocess.run([sys.executable, "-m", "rtdebug", *arguments], capture_output=True, text=True)


def test_the_overview_says_how_much_of_what_limit():
    text = overview(snapshot())
    assert "Snapshot of web (docker cccccccccccc), 2023-11-14T22:15:00Z, took 50.0 ms" in text
    assert "memory 100 MiB of 192 MiB (52%)" in text
    assert "limit hit 3 times, OOM kills 1" in text
    assert "= what cgroup /box counts" in text
    assert "difference: charged ahead by the CPUs (up to 512 KiB)" not in text  # 1 MiB is more than that
    assert "the kernel tells no kind of" in text


def test_where_to_read_on_if_much_is_shown_by_no_process():
    def text_with(shmem):
        stat = {"total_rss": 40 * MIB, "total_cache": 55 * MIB, "total_shmem": shmem, "total_mapped_file": 16 * MIB}
        return overview(snapshot(cgroups=(CgroupRecord("/box", memory_state(**stat), {}),)))

    assert "23 MiB of shared memory are mapped by no process" in text_with(36 * MIB)
    assert "rtdebug show FILE --section shm" in text_with(36 * MIB).replace("\n", " ")
    assert "mapped by no process;" not in text_with(15 * MIB)


def test_what_is_not_known_is_said():
    text = overview(snapshot(cgroups=(), processes=(process(memory=None, mappings=(), oom_score_adj=None),)))
    assert "memory of its cgroup not known" in text
    assert "-  app --serve" in text


def test_many_processes_are_added_up():
    many = tuple(process(pid, memory=use(pid * MIB), cmdline=(f"w{pid}",)) for pid in range(41, 71))
    text = overview(snapshot(processes=many), most_rows=3)
    assert "w70" in text and "w68" in text and "w67" not in text
    assert "27 more processes" in text


def test_a_zombie():
    assert "[app] (zombie)" in overview(snapshot(processes=(process(state="Z", cmdline=(), memory=None),)))


def test_children_stand_below_their_parents():
    tree = (
        process(42, ppid=41, cmdline=("child",)),
        process(41, cmdline=("parent",)),
        process(43, ppid=42, cmdline=("grandchild",)),
    )
    lines = pages(snapshot(processes=tree), "processes").splitlines()
    assert [line.split()[-1] for line in lines[2:]] == ["parent", "child", "grandchild"]
    assert lines[4].index("grandchild") == lines[2].index("parent") + 4


def test_processes_that_seem_each_others_parents_are_shown():
    ring = (process(41, ppid=42), process(42, ppid=41))
    assert pages(snapshot(processes=ring), "processes").count("app --serve") == 2


def test_two_records_of_one_pid_and_one_that_is_its_own_parent():
    odd = (process(0, ppid=0, cmdline=("zero",)), process(41, ppid=41), process(41), process(7, ppid=0))
    lines = pages(snapshot(processes=odd), "processes").splitlines()[2:]
    assert sorted(int(line.split()[0]) for line in lines) == [0, 7, 41]


@pytest.mark.parametrize("section", SECTIONS)
def test_hostile_text_reaches_no_page_raw(section):
    text = pages(hostile(), section)
    assert not set("\x1b\u202e\udcff") & set(text)
    assert HOSTILE not in text
    assert text.isprintable() or set(text) - set("\n") == {character for character in text if character.isprintable()}


def test_every_section_has_something():
    for section in SECTIONS:
        assert len(pages(snapshot(), section).splitlines()) > 1, section


def test_the_json_document():
    text = snapshot_json(hostile())
    assert text.isascii() and text.count("\n") == 1
    document = json.loads(text)
    for key in ("container", "processes", "namespaces", "cgroups", "tmpfs", "shm", "sysv", "network", "host"):
        assert key in document, key
    assert document["accounting"]["cgroup_bytes"] == 100 * MIB
    assert {"parts", "difference_bytes"} <= document["accounting"].keys()
    assert document["container"]["name_hex"] == HOSTILE.encode("utf-8", "surrogateescape").hex()


def test_v2_counts_its_hits_in_events():
    base = snapshot()
    state = memory_state(2, 90 * MIB, anon=MIB, file=MIB, shmem=0)
    object.__setattr__(state, "events", {"max": 17, "oom_kill": 2})
    text = overview(snapshot(cgroups=(type(base.cgroups[0])("/box", state, {}),)))
    assert "limit hit 17 times, OOM kills 2" in text


def test_secrets_of_the_bundle_stay_there():
    process = {"env": ["PASSWORD=x"], "args": ["a"]}
    text = json.dumps({"process": process, "linux": {"seccomp": {"big": 1}}, "hooks": {}})
    assert config_of(text) == {"process": {"args": ["a"]}, "linux": {}}
    assert config_of(text, with_environ=True)["process"] == {"args": ["a"], "env": ["PASSWORD=x"]}
    with pytest.raises(ValueError, match="no"):
        config_of("[]")


def test_what_the_helper_says_is_not_trusted():
    good = "figure cpus 2\nlimit memlock 65536 -1\ncall mlock 0\ncall userfaultfd 1\n"
    text = good + "call x 99999\nfigure y z\n\x1b[31m\n"
    inside = parse_inside(text)
    assert inside.figures == {"cpus": 2}
    assert inside.limits == {"memlock": ResourceLimit(65536, None)}
    assert inside.calls == {"mlock": None, "userfaultfd": "EPERM", "x": "99999"}
    shown = pages(snapshot(inside=inside), "inside")
    assert "refused: userfaultfd (EPERM)" in shown and "unlimited" in shown


def test_sockstat():
    text = "sockets: used 16\nTCP: inuse 1 orphan 0 mem 283\nbroken\nUDP: inuse x\nFRAG: inuse\n"
    assert parse_sockstat(text) == {"sockets.used": 16, "TCP.inuse": 1, "TCP.orphan": 0, "TCP.mem": 283}


def test_socket_memory():
    """rmem_alloc, rcvbuf, wmem_alloc, sndbuf, fwd_alloc, wmem_queued, ... of include/uapi/linux/sock_diag.h."""
    words = [4096, 131072, 100, 16384, 5, 23, 7, 8, 9]
    info = ":".join(f"{byte:02x}" for word in words for byte in word.to_bytes(4, sys.byteorder))
    assert add_memory([info, info]) == (2, 8192, 246)
    assert add_memory([]) == (0, 0, 0)


def test_show_needs_no_root_and_no_container(tmp_path):
    path = tmp_path / "a.tar.gz"
    write_archive(hostile(), path)
    done = run("show", str(path))
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.startswith("Snapshot of ")
    assert "\x1b" not in done.stdout
    assert json.loads(run("show", str(path), "-o", "json").stdout)["accounting"]["cgroup"].startswith("/a ")
    only = run("show", str(path), "--section", "network,host")
    assert only.stdout.startswith("Network namespace\n") and "Host\n" in only.stdout


def test_mistakes_are_explained(tmp_path):
    wrong = run("show", str(tmp_path / "none"))
    assert wrong.returncode == 1 and "cannot read" in wrong.stderr and "hint:" in wrong.stderr
    path = tmp_path / "a.tar.gz"
    write_archive(snapshot(), path)
    typo = run("show", str(path), "--section", "procesess")
    assert typo.returncode == 2 and "did you mean 'processes'" in typo.stderr
    assert run("diff", str(path)).returncode == 2
    assert run("diff", str(path), str(path), "--interval", "1s").returncode == 2
    there = run("snapshot", "web", "--file", str(path))
    assert there.returncode == 2 and "--force" in there.stderr
    assert run("diff", str(path), str(path)).stdout.endswith("nothing changed\n")
