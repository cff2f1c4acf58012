"""Every form of tmpfs that a container may have, and every bad one, really mounted: each in a mount namespace of ours.

Witnesses: statvfs and what was written.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import signal
import subprocess
import threading
import time
import uuid
from pathlib import Path

import pytest

from rtdebug.containers.resolve import find_container
from rtdebug.host.meminfo import read_meminfo
from rtdebug.shm.limits import LimitKind
from rtdebug.shm.model import ObjectKind
from rtdebug.shm.notes import notes_on
from rtdebug.shm.report import read_shm
from rtdebug.shm.volumes import VolumeKind
from tests.kernel.runtime_fixtures import IMAGE, MIB, call, wait_for
from tests.kernel.workload import memory_cgroup, write_uncached

pytestmark = pytest.mark.kernel


@contextlib.contextmanager
def namespace(script, *flags, cgroup=None):
    """The report on a process that has run `script` in a mount namespace of its own."""
    join = f"echo $$ > {shlex.quote(str(cgroup))}/cgroup.procs;" if cgroup else ""
    whole = f"set -e; {join} {script}; echo done; exec sleep 100"
    argv = ["unshare", "--mount", "--propagation", "private", *flags, "sh", "-c", whole]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "done\n"
            yield process.pid
        finally:
            process.kill()


def look(pid):
    return read_shm(find_container(f"pid:{pid}")[0])


def report_on(script, *flags, cgroup=None):
    with namespace(script, *flags, cgroup=cgroup) as pid:
        return look(pid)


def at(report, path):
    (mount,) = [mount for mount in report.mounts if mount.path == path and not mount.covered]
    return mount


def test_a_size_in_percent_and_none_and_unlimited():
    report = report_on(
        "mount -t tmpfs t /mnt; cd /mnt; mkdir percent none free;"
        "mount -t tmpfs -o size=1% t percent; mount -t tmpfs t none; mount -t tmpfs -o size=0,nr_inodes=0 t free;"
        "head -c 1000000 /dev/zero > free/x"
    )
    ram = read_meminfo()["MemTotal"]
    percent, none, free = (at(report, f"/mnt/{name}") for name in ("percent", "none", "free"))
    assert abs(percent.size_bytes - ram // 100) < MIB
    assert percent.limits[0].kind is LimitKind.MOUNT_SIZE
    assert abs(none.size_bytes - ram // 2) < MIB
    assert none.limits[0].kind is LimitKind.HALF_OF_RAM
    assert (free.size_bytes, free.used_bytes, free.inodes) == (None, None, None)
    assert {limit.kind for limit in free.limits} <= {LimitKind.MEMORY_CGROUP, LimitKind.HOST_MEMORY}
    (found,) = [each for each in report.objects if each.name == "/mnt/free/x"]
    assert (found.kind, found.size_bytes, found.orphan) == (ObjectKind.FILE, 1_000_000, False)


def mounts(option):
    """Whether this kernel's tmpfs has it."""
    argv = ["unshare", "--mount", "mount", "-t", "tmpfs", "-o", option, "t", "/mnt"]
    return subprocess.run(argv, capture_output=True).returncode == 0


def test_noswap_huge_mode_and_inodes():
    noswap = ["noswap"] if mounts("noswap") else []  # since Linux 6.4
    options = ",".join(["size=8m", "huge=within_size", "mode=750", "nr_inodes=5", *noswap])
    report = report_on(f"mount -t tmpfs -o {options} shm /dev/shm; cd /dev/shm; : > a; : > b; : > c; : > d")
    shm = at(report, "/dev/shm")
    assert {"huge", "mode", *noswap} <= set(shm.options)
    assert (shm.options["huge"], shm.options["mode"]) == ("within_size", "750")
    assert (shm.inodes, shm.inodes_left) == (5, 0)
    notes = " ".join(notes_on(report))
    assert "no inode left of 5" in notes
    assert "huge=within_size" in notes


def test_the_files_of_a_covered_tmpfs_are_found_where_they_are_used():
    report = report_on(
        "mount -t tmpfs -o size=7m first /dev/shm; head -c 2097152 /dev/zero > /dev/shm/below; exec 7</dev/shm/below;"
        "mount -t tmpfs -o size=3m second /dev/shm; head -c 1048576 /dev/zero > /dev/shm/above"
    )
    shm = at(report, "/dev/shm")
    assert (shm.source, shm.size_bytes, shm.used_bytes) == ("second", 3 * MIB, MIB)
    assert [mount.source for mount in report.mounts if mount.covered and mount.source == "first"] == ["first"]
    assert "covered" in " ".join(notes_on(report))
    mine = {each.name: (each.kind, each.allocated_bytes) for each in report.objects if "/dev/shm" in each.name}
    assert mine["/dev/shm/above"] == (ObjectKind.POSIX, MIB)
    assert mine["/dev/shm/below"] == (ObjectKind.DELETED, 2 * MIB)


def test_mounts_below_mounts_are_told_apart():
    report = report_on(
        "mount -t tmpfs -o size=7m outer /dev/shm; mkdir /dev/shm/in; mount -t tmpfs -o size=5m inner /dev/shm/in;"
        "head -c 1048576 /dev/zero > /dev/shm/in/x; head -c 2097152 /dev/zero > /dev/shm/y"
    )
    assert (at(report, "/dev/shm").used_bytes, at(report, "/dev/shm/in").used_bytes) == (2 * MIB, MIB)
    names = sorted(each.name for each in report.objects if each.name.startswith("/dev/shm/"))
    assert names == ["/dev/shm/in/x", "/dev/shm/y"]


def test_one_tmpfs_at_two_places_is_told_once():
    report = report_on(
        "mount -t tmpfs -o size=6m one /dev/shm; mkdir /dev/shm/part; : > /dev/shm/part/x;"
        "mount --bind /dev/shm/part /mnt"
    )
    shm = at(report, "/dev/shm")
    assert shm.also_at == ("/mnt",)
    assert [each.name for each in report.objects if each.name.endswith("/x")] == ["/dev/shm/part/x"]


def test_a_read_only_one_has_no_room_and_no_limit():
    report = report_on("mount -t tmpfs -o size=6m one /dev/shm; : > /dev/shm/x; mount -o remount,ro,bind /dev/shm")
    shm = at(report, "/dev/shm")
    assert (shm.read_only, shm.limits, shm.left_bytes) == (True, (), None)
    assert "EROFS" in " ".join(notes_on(report))


def test_in_a_user_namespace():
    script = "mount -t tmpfs -o size=4m mine /dev/shm; head -c 1048576 /dev/zero > /dev/shm/x"
    report = report_on(script, "--user", "--map-root-user")
    assert (at(report, "/dev/shm").size_bytes, at(report, "/dev/shm").used_bytes) == (4 * MIB, MIB)


def test_hostile_names_come_back_as_they_are():
    name = "a\x1b[31m\n\udcff ' (deleted)"
    with namespace("mount -t tmpfs -o size=4m mine /dev/shm") as pid:
        root = Path(f"/proc/{pid}/root/dev/shm")
        (root / name).write_bytes(b"x" * 5000)
        (root / "link").symlink_to("/etc")
        os.mkfifo(root / "fifo")
        report = look(pid)
    assert [each.name for each in report.objects if each.kind is ObjectKind.POSIX] == [f"/dev/shm/{name}"]


def test_an_empty_dir_volume_without_a_size():
    """As kubelet mounts it: a tmpfs without size on the host, bound into the container."""
    uid = str(uuid.uuid4())
    folder = f"/tmp/rtdebug-kubelet-{os.getpid()}/pods/{uid}/volumes/kubernetes.io~empty-dir/dshm"
    Path(folder).mkdir(parents=True)
    call("mount", "-t", "tmpfs", "tmpfs", folder)
    try:
        report = report_on(f"mount --bind {folder} /dev/shm")
    finally:
        call("umount", folder)
        call("rm", "-r", f"/tmp/rtdebug-kubelet-{os.getpid()}")
    shm = at(report, "/dev/shm")
    assert (shm.volume.kind, shm.volume.name, shm.volume.pod_uid) == (VolumeKind.EMPTY_DIR, "dshm", uid)
    assert shm.limits[0].kind is LimitKind.HALF_OF_RAM
    assert "the kubelet evicts the pod" in " ".join(notes_on(report))


def test_the_memory_limit_binds_before_a_larger_mount():
    script = "mount -t tmpfs -o size=64m mine /dev/shm; head -c 8388608 /dev/zero > /dev/shm/x"
    with memory_cgroup(32 * MIB) as cgroup:
        shm = at(report_on(script, cgroup=cgroup), "/dev/shm")
    assert (shm.limited_by, shm.limit.cgroup) == (LimitKind.MEMORY_CGROUP, f"/{cgroup.name}")
    assert 20 * MIB < shm.left_bytes <= 24 * MIB


def test_page_cache_counts_as_room(tmp_path):
    """20 MiB of a file on disk are read into a cgroup of 32 MiB: a tmpfs may still take nearly all of that."""
    write_uncached(tmp_path / "file", 20 * MIB)
    script = f"mount -t tmpfs -o size=64m mine /dev/shm; cat {tmp_path}/file > /dev/null"
    with memory_cgroup(32 * MIB) as cgroup:
        shm = at(report_on(script, cgroup=cgroup), "/dev/shm")
        (usage,) = (each for each in (cgroup / "memory.current", cgroup / "memory.usage_in_bytes") if each.exists())
        usage_bytes = int(usage.read_text())
    assert shm.limited_by is LimitKind.MEMORY_CGROUP
    assert shm.left_bytes > 26 * MIB
    assert usage_bytes >= 10 * MIB


def test_who_holds_a_lease_cannot_make_us_wait():
    """An open that breaks a lease waits for its holder, 45 s by default."""
    with namespace("mount -t tmpfs -o size=8m mine /dev/shm") as pid:
        path = Path(f"/proc/{pid}/root/dev/shm/leased")
        path.write_bytes(b"x" * 5000)
        with path.open("rb") as file:
            before = signal.signal(signal.SIGIO, signal.SIG_IGN)
            try:
                fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
                started = time.monotonic()
                names = [each.name for each in look(pid).objects if each.kind is ObjectKind.POSIX]
            finally:
                signal.signal(signal.SIGIO, before)
    assert names == ["/dev/shm/leased"]
    assert time.monotonic() - started < 30


def test_more_files_than_anybody_reads(monkeypatch):
    monkeypatch.setattr("rtdebug.shm.files.MOST_FILES", 7)
    monkeypatch.setattr("rtdebug.shm.objects.MOST_FILES", 7)
    script = "mount -t tmpfs mine /dev/shm; cd /dev/shm; mkdir d; : > d/x; for i in 1 2 3 4 5{}; do : > $i; done"
    assert report_on(script.format(" 6")).cut == ("/dev/shm",)
    assert report_on(script.format("")).cut == ()


def test_without_dev_shm(runc):
    box = runc.start(shm=False, script="exec sleep 100")
    report = read_shm(find_container(f"runc:{box.id}")[0])
    assert not any(mount.path == "/dev/shm" for mount in report.mounts)
    assert "there is no /dev/shm" in notes_on(report)[0]


def test_files_that_come_and_go_while_they_are_listed():
    with namespace("mount -t tmpfs -o size=8m mine /dev/shm") as pid:
        folder = Path(f"/proc/{pid}/root/dev/shm")
        (folder / "stays").write_bytes(b"x")
        stop = threading.Event()

        def churn():
            while not stop.is_set():
                for number in range(20):
                    (folder / f"d{number}").mkdir()
                    (folder / f"d{number}" / "f").write_bytes(b"x" * 5000)
                for number in range(20):
                    (folder / f"d{number}" / "f").unlink()
                    (folder / f"d{number}").rmdir()

        thread = threading.Thread(target=churn)
        thread.start()
        try:
            for _ in range(6):
                names = {each.name for each in look(pid).objects if each.kind is ObjectKind.POSIX}
                assert "/dev/shm/stays" in names
        finally:
            stop.set()
            thread.join()


def test_the_hosts_dev_shm_in_a_container(docker):
    """--ipc=host: its files and segments may be anybody's."""
    box = docker.call("run", "--detach", "--network", "none", "--ipc", "host", IMAGE, "/bin/sleep", "600").strip()
    foreign = Path(f"/dev/shm/rtdebug-foreign-{os.getpid()}")
    foreign.write_bytes(b"x" * 10_000)
    try:
        report = read_shm(find_container(box)[0])
    finally:
        foreign.unlink()
    shm = at(report, "/dev/shm")
    assert (shm.volume.kind, shm.volume.host_path) == (VolumeKind.HOST, "/dev/shm")
    (found,) = [each for each in report.objects if each.name == str(foreign)]
    assert found.shared
    assert found.charged_to != (report.container.cgroup,)
    assert "is the host's own" in " ".join(notes_on(report))


def test_a_container_that_shares_dev_shm_counts_as_a_user(docker):
    """--ipc=container:A, as the containers of a pod: what one holds is no orphan of the other."""
    first = docker.call(
        "run", "--detach", "--network", "none", "--ipc", "shareable", IMAGE, "/bin/sh", "-c",
        "echo x > /dev/shm/kept; echo x > /dev/shm/left; exec sleep 600",
    ).strip()  # fmt: skip
    pid = int(docker.call("inspect", "--format", "{{.State.Pid}}", first))
    wait_for(lambda: Path(f"/proc/{pid}/root/dev/shm/left").exists(), "the first container")
    second = docker.call(
        "run", "--detach", "--network", "none", "--ipc", f"container:{first}", IMAGE, "/bin/sh", "-c",
        "exec sleep 600 3</dev/shm/kept",
    ).strip()  # fmt: skip
    other = int(docker.call("inspect", "--format", "{{.State.Pid}}", second))
    wait_for(lambda: Path(f"/proc/{other}/comm").read_text() == "sleep\n", "the second container")
    report = read_shm(find_container(first)[0])
    objects = {each.name: each for each in report.objects}
    assert [(user.pid, user.in_container) for user in objects["/dev/shm/kept"].holders] == [(other, False)]
    assert (objects["/dev/shm/kept"].orphan, objects["/dev/shm/left"].orphan) == (False, True)
    assert at(report, "/dev/shm").volume.kind is VolumeKind.RUNTIME
