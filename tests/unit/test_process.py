from __future__ import annotations

import os
import subprocess

import pytest

from rtdebug.host import process
from rtdebug.host.text import parse_keyed, read_regular, read_text

from .trees import make_host, stat_line


@pytest.mark.parametrize(
    "comm", ["sleep", "a b", "x) R 1 (y", ")", "(sd-pam)", "runc:[1:CHILD]", "\x1b[31m", "\udcff\udcfe"]
)
def test_stat_survives_any_comm(comm):
    stat = process.parse_stat(stat_line(42, comm, "D", 977))
    assert stat == process.ProcessStat(pid=42, comm=comm, state="D", ppid=1, start_ticks=977)


@pytest.mark.parametrize("text", ["", "42", "42 (x) S", "x (y) S " + "0 " * 30])
def test_stat_cut_short_is_none(text):
    assert process.parse_stat(text) is None


def test_own_process_is_read_from_the_real_proc():
    pid = os.getpid()
    stat = process.read_stat(pid)
    ids = process.read_ids(pid)
    assert stat is not None and stat.ppid == os.getppid()
    assert ids is not None and ids.tgid == pid and ids.uid == os.geteuid()
    assert process.read_cmdline(pid)
    assert pid in set(process.pids())
    assert process.namespace_id(pid, "pid") == process.namespace_id("self", "pid")


def test_exited_process_is_none_everywhere():
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not process.is_running(child.pid), "a zombie does not run"
    child.wait()
    assert process.read_stat(child.pid) is None
    assert process.read_ids(child.pid) is None
    assert process.read_comm(child.pid) is None
    assert process.read_cmdline(child.pid) == ()
    assert process.namespace_id(child.pid, "mnt") is None


def test_status_of_a_nested_pid_namespace():
    text = "Name:\tx\\nTgid: 1\nTgid:\t812\nUid:\t1000\t1001\t1002\t1003\nNSpid:\t812\t17\t1\n"
    ids = process.parse_status_ids(text)
    assert ids == process.ProcessIds(tgid=812, uid=1001, ns_pids=(812, 17, 1))
    assert ids.ns_pid == 1


def test_status_without_nspid_is_no_zero():
    ids = process.parse_status_ids("Tgid:\t5\nUid:\t0\t0\t0\t0\n")
    assert ids is not None and ids.ns_pid is None


def test_cmdline_keeps_empty_and_odd_arguments():
    assert process.parse_cmdline("a\0\0b\nc\0") == ("a", "", "b\nc")
    assert process.parse_cmdline("") == ()


def test_namespaces_of_a_tree(tmp_path):
    host = make_host(tmp_path)
    host.add_process(70, namespaces="inside")
    assert process.namespace_id(70, "pid", host.roots.proc) != process.namespace_id(1, "pid", host.roots.proc)


def test_keyed_text_keeps_unknown_keys_and_skips_what_is_cut():
    text = "anon 17\nsock_throttled 3\nbad\nworse x\n\nfile 9"
    assert parse_keyed(text) == {"anon": 17, "sock_throttled": 3, "file": 9}


def test_absent_text_is_none_and_bytes_survive(tmp_path):
    path = tmp_path / "comm"
    assert read_text(path) is None
    assert read_text(path / "below") is None
    path.write_bytes(b"\xff\xfe\n")
    assert read_text(path).encode("utf-8", "surrogateescape") == b"\xff\xfe\n"


def test_regular_reads_no_fifo_no_link_and_nothing_huge(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "file").write_text("{}")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "file") == "{}"
    assert read_regular(tmp_path / "file", limit_bytes=1) is None
    assert read_regular(tmp_path / "fifo") is None
    assert read_regular(tmp_path / "link") is None
    assert read_regular(tmp_path) is None
