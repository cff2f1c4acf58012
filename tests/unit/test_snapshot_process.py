"""A process that is not what it was a moment ago."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from rtdebug.host.descriptors import MountTable
from rtdebug.host.process_folder import ProcessFolder
from rtdebug.snapshot.process import ProcessReader, read_namespaces, status_value
from rtdebug.snapshot.smaps import SmapsReader

TAIL = " ".join(["0"] * 30)


class Meanwhile(SmapsReader):
    """Does something between the first and the last look at a process."""

    def __init__(self, happens):
        super().__init__()
        self.happens = happens

    def read(self, folder):
        self.happens()
        return super().read(folder)


def reader(proc=Path("/proc"), smaps=None):
    return ProcessReader(smaps or SmapsReader(), MountTable(), proc, boot_time_ns=5)


def fake(folder, comm):
    folder.mkdir()
    (folder / "stat").write_text(f"7 ({comm}) S 1 {TAIL}\n")
    (folder / "status").write_text(f"Name:\t{comm}\nTgid:\t7\nUid:\t0\t33\t0\t0\n")
    (folder / "cmdline").write_text(f"{comm}\0")
    (folder / "oom_score_adj").write_text("-999\n" if comm == "other" else "7\n")
    (folder / "fd").mkdir()
    (folder / "fd" / "0").symlink_to(f"anon_inode:[{comm}]")


def test_nothing_of_another_process_that_gets_the_pid_meanwhile(tmp_path):
    """Not a byte of the second one: neither of its files nor of its descriptors."""
    fake(tmp_path / "7", "first")

    def given_away():
        (tmp_path / "7").rename(tmp_path / "gone")
        fake(tmp_path / "7", "other")

    record = reader(tmp_path, Meanwhile(given_away)).read(7)
    assert (record.comm, record.cmdline, record.oom_score_adj) == ("first", ("first",), 7)
    assert [group.name for group in record.fds] == ["[first]"]


def test_one_that_exits_while_it_is_read():
    with subprocess.Popen(["sleep", "100"]) as process:

        def exits():
            process.kill()
            process.wait()

        assert reader(smaps=Meanwhile(exits)).read(process.pid) is None
        assert reader().read(process.pid) is None


def test_a_folder_stays_with_its_process():
    with subprocess.Popen(["sleep", "100"]) as process, ProcessFolder(process.pid) as folder:
        assert folder.text("comm") is not None
        assert folder.namespace_id("mnt") == Path("/proc/self/ns/mnt").stat().st_ino
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert folder.text("comm") is None and folder.link("exe") is None and folder.namespace_id("mnt") is None
        with pytest.raises(OSError):
            folder.raw("smaps")


def test_itself():
    record = reader().read(os.getpid())
    assert record.pid == os.getpid() and record.memory.rss_bytes > 0 and record.environ is None
    assert record.start_time_ns == 5 + record.start_ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    assert record.namespaces == read_namespaces("self")
    assert sum(group.count for group in record.fds) <= record.fd_count


def test_files_that_are_not_there_are_not_known(tmp_path):
    folder = tmp_path / "7"
    folder.mkdir()
    (folder / "stat").write_text(f"7 (odd) name) S 1 {TAIL}\n")
    (folder / "status").write_text("Name:\todd\nTgid:\t7\nUid:\t0\t33\t0\t0\n")
    record = ProcessReader(SmapsReader(), MountTable(), tmp_path).read(7)
    assert (record.comm, record.uid, record.ns_pids) == ("odd) name", 33, ())
    assert record.memory is None and record.mapping_count is None and record.fd_count is None
    assert record.oom_score is None and record.cgroup is None and record.threads is None
    assert record.unread == ("smaps", "fd", "smaps_rollup")


def test_a_number_of_status():
    assert status_value("Threads:\t12\nVmPTE:\t     44 kB\n", "VmPTE") == 44
    assert status_value("XThreads:\t12\n", "Threads") is None
