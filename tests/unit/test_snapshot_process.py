"""A process that is not what it was a moment ago."""

import os
from dataclasses import replace

from rtdebug.host.descriptors import MountTable
from rtdebug.host.process import read_stat
from rtdebug.snapshot import process as module
from rtdebug.snapshot.process import ProcessReader, read_namespaces, status_value
from rtdebug.snapshot.smaps import SmapsReader


def reader():
    return ProcessReader(SmapsReader(), MountTable(), boot_time_ns=5)


def test_a_pid_that_was_given_to_another_process_between_two_reads(monkeypatch):
    """The start time is read first and last: a record is of one process, or there is none."""
    starts = iter((100, 101))
    monkeypatch.setattr(module, "read_stat", lambda pid, proc: replace(read_stat(pid, proc), start_ticks=next(starts)))
    assert reader().read(os.getpid()) is None


def test_one_that_exits_while_it_is_read(monkeypatch):
    answers = iter((read_stat(os.getpid()), None))
    monkeypatch.setattr(module, "read_stat", lambda pid, proc: next(answers))
    assert reader().read(os.getpid()) is None


def test_itself():
    record = reader().read(os.getpid())
    assert record.pid == os.getpid() and record.memory.rss_bytes > 0 and record.environ is None
    assert record.start_time_ns == 5 + record.start_ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    assert record.namespaces == read_namespaces(module.Path("/proc/self"))
    assert sum(group.count for group in record.fds) <= record.fd_count


def test_files_that_are_not_there_are_not_known(tmp_path):
    folder = tmp_path / "7"
    folder.mkdir()
    tail = " ".join(["0"] * 30)
    (folder / "stat").write_text(f"7 (odd) name) S 1 {tail}\n")
    (folder / "status").write_text("Name:\todd\nTgid:\t7\nUid:\t0\t33\t0\t0\n")
    record = ProcessReader(SmapsReader(), MountTable(tmp_path), tmp_path).read(7)
    assert (record.comm, record.uid, record.ns_pids) == ("odd) name", 33, ())
    assert record.memory is None and record.mapping_count is None and record.fd_count is None
    assert record.oom_score is None and record.cgroup is None and record.threads is None
    assert record.unread == ("smaps", "fd", "smaps_rollup")


def test_a_number_of_status():
    assert status_value("Threads:\t12\nVmPTE:\t     44 kB\n", "VmPTE") == 44
    assert status_value("XThreads:\t12\n", "Threads") is None
