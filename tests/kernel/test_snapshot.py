"""Snapshots of real containers: whose figures add up, whatever lies in them, and who are left as they were."""

from __future__ import annotations

import json
import mmap
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from rtdebug.containers.resolve import find_container
from rtdebug.errors import RtdebugError
from rtdebug.host.cgroup import find_memory_hierarchy
from rtdebug.host.descriptors import FdKind
from rtdebug.host.maps import MappingKind
from rtdebug.host.memcg import read_memory
from rtdebug.host.mounts import read_mountinfo
from rtdebug.snapshot.accounting import account
from rtdebug.snapshot.archive import read_archive, write_archive
from rtdebug.snapshot.diff import Fate, Subject, compare
from rtdebug.snapshot.freeze import Freezer, find_freezer, frozen
from rtdebug.snapshot.processes import Reading, read_processes
from rtdebug.snapshot.take import SnapshotOptions, take_snapshot
from tests.kernel.runtime_fixtures import FILL_BYTES, make_rootfs, wait_for
from tests.kernel.workload import MIB, UNCOUNTED_BYTES, Workload, build, memory_cgroup

pytestmark = pytest.mark.kernel

ANON_MIB, FILE_MIB = 41, 19
HELD_MIB = {"anon": ANON_MIB + 17, "shmem": 7 + 5 + 3 + 11 + 13 + 2, "page_cache": FILE_MIB}
"""What tests/workloads/holder.c holds."""
RED_NAME = "rtdebug \x1b[31mred\nname"


@pytest.fixture(scope="session")
def holder_rootfs(tmp_path_factory):
    rootfs = make_rootfs(tmp_path_factory.mktemp("rtdebug-holder"))
    shutil.copy(build("holder"), rootfs / "bin/holder")
    (rootfs / "data").mkdir()
    return rootfs


@pytest.fixture
def holder(runc, holder_rootfs):
    """The demo container: it holds a known amount of every kind of memory."""
    script = f"exec holder {ANON_MIB} {FILE_MIB} /data/file >/tmp/log"
    box = runc.start(memory_bytes=192 * MIB, script=script, rootfs=holder_rootfs)
    wait_for(lambda: "ready" in Path(f"/proc/{box.pid}/root/tmp/log").read_text(), "the holder to hold all")
    return box


def taken(target, **options):
    return take_snapshot(find_container(target)[0], options=SnapshotOptions(**options))


def rtdebug(*arguments, status=0):
    done = subprocess.run(
        [sys.executable, "-m", "rtdebug", *map(str, arguments)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == status, done.stderr
    return done


@contextmanager
def running(*argv, **options):
    """A process of ours, killed at the end."""
    process = subprocess.Popen(argv, **options)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_the_parts_add_up_to_what_the_cgroup_counts(holder):
    accounting = account(taken(holder.id))
    folder = find_memory_hierarchy().path(accounting.cgroup)
    witness = read_memory(folder).usage_bytes
    total = sum(part.bytes for part in accounting.parts)
    assert abs(total - witness) <= 0.05 * witness, accounting.parts
    assert abs(accounting.cgroup_bytes - witness) <= 0.02 * witness
    assert accounting.difference_bytes == accounting.cgroup_bytes - total
    parts = {part.kind: part for part in accounting.parts}
    for kind, expected in HELD_MIB.items():
        assert expected * MIB - UNCOUNTED_BYTES <= parts[kind].bytes <= (expected + 2) * MIB, kind
    unmapped = {inner.kind: inner for inner in parts["shmem"].parts}["unmapped_shmem"]
    assert {inner.kind: round(inner.bytes / MIB) for inner in unmapped.parts if round(inner.bytes / MIB)} == {
        "posix_objects": 5, "deleted_objects": 3,
    }  # fmt: skip
    child, init = sorted(share.bytes / MIB for share in accounting.shares if share.pid)
    assert 17 <= child < 18 and ANON_MIB + 33 <= init < ANON_MIB + 36
    assert abs(sum(share.bytes for share in accounting.shares) - total) < MIB


def test_what_a_snapshot_of_it_holds(holder, tmp_path):
    file = tmp_path / "a.tar.gz"
    done = rtdebug("snapshot", holder.id, "--file", file)
    assert "\x1b" not in done.stdout + done.stderr and str(file) in done.stderr
    snapshot = read_archive(file)
    (init,) = [process for process in snapshot.processes if process.ns_pids[-1] == 1]
    (child,) = [process for process in snapshot.processes if process is not init]
    assert child.comm == "odd) name\n(" and child.ppid == init.pid == holder.pid
    by_kind = {group.kind: group for group in init.mappings}
    sysv, memfd = by_kind[MappingKind.SYSV], by_kind[MappingKind.MEMFD]
    assert (sysv.use.rss_bytes, sysv.deleted) == (13 * MIB, True)
    assert (memfd.path, memfd.use.rss_bytes) == (f"/memfd:{RED_NAME}", 11 * MIB)
    fds = {group.name: group for group in init.fds}
    assert (fds[RED_NAME].kind, fds[RED_NAME].allocated_bytes) == (FdKind.MEMFD, 11 * MIB)
    gone = fds["/dev/shm/rtdebug-gone"]
    assert (gone.kind, gone.deleted, gone.allocated_bytes) == (FdKind.TMPFS, True, 3 * MIB)
    assert [each.size_bytes for each in snapshot.shared.sysv] == [13 * MIB]
    assert any(mount.path == "/dev/shm" and mount.size_bytes == 64 * MIB for mount in snapshot.shared.tmpfs)
    assert [link.name for link in snapshot.network.links] == ["lo"] and not snapshot.network.is_host
    assert {each.kind for each in snapshot.namespaces if not each.is_host} >= {"mnt", "pid", "net", "ipc", "uts"}
    assert snapshot.runtime.state["id"] == holder.id and snapshot.runtime.state["status"] == "running"
    assert snapshot.runtime.config["linux"]["resources"]["memory"]["limit"] == 192 * MIB
    assert snapshot.cgroups[0].memory.limit_bytes == 192 * MIB and snapshot.cgroups[-1].path == "/"
    assert snapshot.cgroups[0].files["pids.current"].strip() == "2"
    assert init.environ is None and "env" not in snapshot.runtime.config["process"]
    document = json.loads(rtdebug("show", file, "-o", "json").stdout)
    assert document["accounting"]["cgroup_bytes"] == account(snapshot).cgroup_bytes


def test_the_environment_only_when_asked_for(holder):
    snapshot = taken(holder.id, with_environ=True)
    assert all("PATH=/bin" in process.environ for process in snapshot.processes)
    assert snapshot.runtime.config["process"]["env"] == ["PATH=/bin"]


def test_the_rollup_is_the_sum_of_the_mappings(holder):
    for process in taken(holder.id, freeze=True).processes:
        assert sum(group.use.rss_bytes for group in process.mappings) == process.memory.rss_bytes


def check_filled(box):
    """A container of the usual script, by its id."""
    snapshot = taken(box.id)
    assert snapshot.container.pid == box.pid
    assert {process.ns_pids[-1] for process in snapshot.processes} >= {1}
    assert any(found.name == "/dev/shm/fill" and found.allocated_bytes == FILL_BYTES for found in snapshot.shared.shm)
    accounting = account(snapshot)
    assert abs(accounting.difference_bytes) <= max(0.05 * accounting.cgroup_bytes, accounting.slack_bytes)
    assert snapshot.runtime.config is not None
    return snapshot


def test_docker(docker):
    snapshot = check_filled(docker.start("rtdebug-snapshot", memory_bytes=64 * MIB))
    assert snapshot.container.name == "rtdebug-snapshot" and snapshot.runtime.state["id"] == snapshot.container.id


def test_podman(podman):
    snapshot = check_filled(podman.start("rtdebug-snapshot", memory_bytes=64 * MIB))
    assert snapshot.container.name == "rtdebug-snapshot" and snapshot.runtime.state["id"] == snapshot.container.id


def test_crun(crun):
    check_filled(crun.start(memory_bytes=64 * MIB))


def test_a_host_process(tmp_path):
    with running("sleep", "1000") as process:
        snapshot = taken(f"pid:{process.pid}")
        assert [each.pid for each in snapshot.processes] == [process.pid]
        assert snapshot.processes[0].cmdline == ("sleep", "1000")
        assert account(snapshot).notes
        refused = rtdebug("snapshot", f"pid:{process.pid}", "--freeze", "--file", tmp_path / "a", status=4)
        assert "no container" in refused.stderr and not (tmp_path / "a").exists()


def test_without_a_limit(runc):
    box = runc.start(script="sleep 1000")
    snapshot = taken(box.id)
    assert snapshot.cgroups[0].memory.limit_bytes is None
    assert "no limit" in rtdebug("snapshot", box.id, "--file", "/dev/shm/rtdebug-no-limit", "--force").stdout
    Path("/dev/shm/rtdebug-no-limit").unlink()


def test_inside_by_a_helper_of_ours(holder):
    snapshot = taken(holder.id, inside=True)
    assert snapshot.inside is not None, snapshot.notes
    assert snapshot.inside.calls["memfd_create"] is None and snapshot.inside.calls["write_dev_shm"] is None
    total = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
    assert snapshot.inside.figures["meminfo_total_bytes"] == total
    assert len(taken(holder.id).processes) == 2  # it is gone again


def test_inside_of_a_paused_one_is_a_note(runc):
    box = runc.start(script="sleep 1000")
    runc.pause(box)
    try:
        snapshot = taken(box.id, inside=True)
        assert snapshot.inside is None and any("--exec" in note for note in snapshot.notes)
        assert snapshot.processes
    finally:
        runc.resume(box)


def freezer_of(box):
    return find_freezer(box.pid, f"/{box.id}")


def test_a_frozen_one_runs_again(holder):
    snapshot = taken(holder.id, freeze=True)
    assert 0 < snapshot.frozen_ns < snapshot.took_ns
    assert snapshot.frozen and snapshot.runtime.state["status"] == "running"
    assert not freezer_of(holder).is_asked()


def test_a_paused_one_stays_paused(runc):
    box = runc.start(script="sleep 1000")
    runc.pause(box)
    try:
        assert taken(box.id).processes
        assert taken(box.id, freeze=True).frozen
        assert freezer_of(box).is_frozen()
    finally:
        runc.resume(box)


def in_session_of_its_own(work):
    """A forked child that works until it is killed, its whole process group with it."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            work()
        finally:
            os._exit(1)
    return pid


def kill_group(pid):
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def hold(freezer):
    with frozen(freezer):
        time.sleep(60)


def is_thawed(freezer):
    return lambda: not freezer.is_asked() and not freezer.is_frozen()


def test_it_is_thawed_after_kill_9(holder):
    """Of the whole process group, as a service manager does it."""
    freezer = freezer_of(holder)
    pid = in_session_of_its_own(lambda: hold(freezer))
    wait_for(freezer.is_frozen, "the container to be frozen")
    kill_group(pid)
    wait_for(is_thawed(freezer), "the watchdog to thaw it", timeout_s=3)


def test_it_is_thawed_whenever_it_is_killed(holder):
    freezer = freezer_of(holder)
    container = find_container(holder.id)[0]
    options = SnapshotOptions(freeze=True, runtime=False)

    def again_and_again():
        while True:
            take_snapshot(container, options=options)

    met_frozen = 0
    for attempt in range(30):
        pid = in_session_of_its_own(again_and_again)
        wait_for(freezer.is_asked, "the first freezing")
        time.sleep(attempt * 0.007)
        # stopped first: on one processor the watchdog has thawed it before anybody could look after the kill
        os.killpg(pid, signal.SIGSTOP)
        os.waitpid(pid, os.WUNTRACED)
        met_frozen += freezer.is_asked()
        kill_group(pid)
        wait_for(is_thawed(freezer), "the watchdog to thaw it", timeout_s=3)
    assert met_frozen  # else this has shown nothing


@contextmanager
def unified_freezer():
    """A process in a cgroup of the v2 hierarchy, which needs no controller for it."""
    mount = next((Path(each.mount_point) for each in read_mountinfo() if each.fstype == "cgroup2"), None)
    if mount is None:
        pytest.skip("no cgroup v2 hierarchy is mounted here")
    folder = mount / f"rtdebug-freeze-{os.getpid()}"
    folder.mkdir()
    try:
        with running("sleep", "1000") as process:
            (folder / "cgroup.procs").write_text(str(process.pid))
            yield Freezer(folder, 2)
    finally:
        remove_cgroup(folder)


def remove_cgroup(folder):
    def removed():
        try:
            folder.rmdir()
        except OSError:  # its process is not quite gone
            return False
        return True

    wait_for(removed, f"{folder} to be empty")


def test_the_freezer_of_cgroup_v2():
    with unified_freezer() as freezer:
        with frozen(freezer):
            assert freezer.is_frozen()
        assert is_thawed(freezer)()
        pid = in_session_of_its_own(lambda: hold(freezer))
        wait_for(freezer.is_frozen, "the cgroup to be frozen")
        kill_group(pid)
        wait_for(is_thawed(freezer), "the watchdog to thaw it", timeout_s=3)
        freezer.freeze()
        wait_for(freezer.is_frozen, "the cgroup to be frozen")
        with frozen(freezer):
            pass
        assert freezer.is_frozen()  # somebody else's
        freezer.thaw()


def test_it_is_thawed_if_the_watchdog_is_killed(holder):
    freezer = freezer_of(holder)
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    before = set(children.read_text().split())
    with pytest.raises(RtdebugError), frozen(freezer):
        (watchdog,) = map(int, set(children.read_text().split()) - before)
        assert freezer.is_frozen()
        os.kill(watchdog, signal.SIGKILL)
    assert is_thawed(freezer)()


def test_one_that_was_thawed_too_early_is_not_called_frozen(holder, monkeypatch):
    monkeypatch.setattr("rtdebug.snapshot.freeze.LONGEST_S", 0.4)
    options = SnapshotOptions(freeze=True)
    snapshot = take_snapshot(find_container(holder.id)[0], options=options, progress=lambda *_: time.sleep(0.4))
    assert not snapshot.frozen and any("could be frozen" in note for note in snapshot.notes)
    assert is_thawed(freezer_of(holder))()


def test_its_own_cgroup_is_never_frozen(tmp_path):
    with memory_cgroup(256 * MIB) as cgroup:
        path = find_memory_hierarchy().cgroup(cgroup)
        with running("sleep", "1000") as process:
            (cgroup / "cgroup.procs").write_text(str(process.pid))
            refused = rtdebug("snapshot", f"cgroup:{path}", "--freeze", "--file", tmp_path / "a", status=4)
            assert "no container" in refused.stderr


def test_processes_that_come_and_go():
    """A storm of forks: whatever is read is whole, and what is not is said."""
    with memory_cgroup(256 * MIB) as cgroup, Workload("fork_storm", 5, cgroup=cgroup) as storm:
        storm.go()
        path = find_memory_hierarchy().cgroup(cgroup)
        for _ in range(5):
            snapshot = taken(f"cgroup:{path}", network=False, shm=False)
            for process in snapshot.processes:
                assert process.state in "ZX" or process.memory is not None or process.unread


def test_a_process_that_has_gone_is_named():
    dead = subprocess.Popen(["true"])
    dead.wait()
    records, vanished = read_processes((os.getpid(), dead.pid), Reading())
    assert [record.pid for record in records] == [os.getpid()] and vanished == (dead.pid,)


def test_two_thousand_threads():
    code = (
        "import threading, time\nthreading.stack_size(65536)\n"
        "for _ in range(1999): threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n"
        "print('ready', flush=True); time.sleep(1000)"
    )
    with running(sys.executable, "-c", code, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        (record,) = taken(f"pid:{process.pid}", network=False, shm=False).processes
        assert record.threads == 2000
        assert record.mapping_count == len(Path(f"/proc/{process.pid}/maps").read_text().splitlines())


def test_huge_pages_are_told():
    with mmap.mmap(-1, 8 * MIB) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        memory.write(b"x" * (8 * MIB))
        (record,) = read_processes((os.getpid(),), Reading())[0]
        witness = 0
        for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
            if line.startswith(("AnonHugePages:", "ShmemPmdMapped:")):
                witness += int(line.split()[1]) * 1024
        found = sum(
            (group.use.anonhugepages_bytes or 0) + (group.use.shmempmdmapped_bytes or 0) for group in record.mappings
        )
        assert found == witness
        assert any("hg" in group.vm_flags.split() for group in record.mappings)


def test_a_process_with_a_mount_namespace_of_its_own():
    with memory_cgroup(64 * MIB) as cgroup:
        path = find_memory_hierarchy().cgroup(cgroup)
        with running("sleep", "1000") as plain, running("unshare", "--mount", "sleep", "1000") as apart:
            for process in (plain, apart):
                (cgroup / "cgroup.procs").write_text(str(process.pid))
            wait_for(lambda: b"unshare" not in Path(f"/proc/{apart.pid}/cmdline").read_bytes(), "unshare")
            snapshot = taken(f"cgroup:{path}")
            mounts = [each for each in snapshot.namespaces if each.kind == "mnt"]
            assert sorted(len(each.pids) for each in mounts) == [1, 1]
            assert any(each.pids == (apart.pid,) and each.is_host is not True for each in mounts)


def test_links_that_lead_to_the_host_are_not_followed(runc, tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(b"x" * 12345)
    script = (
        f"ln -s {secret} /dev/shm/link; ln -s / /dev/shm/root; rm -rf /dev/shm/up; ln -s ../../../.. /dev/shm/up; "
        "dd if=/dev/zero of=/dev/shm/own bs=4096 count=1 2>/dev/null; sleep 1000"
    )
    box = runc.start(script=script)
    wait_for(lambda: Path(f"/proc/{box.pid}/root/dev/shm/own").exists(), "the links")
    snapshot = taken(box.id)
    names = {found.name: found for found in snapshot.shared.shm}
    assert names["/dev/shm/own"].size_bytes == 4096
    assert not any("secret" in name or "12345" in str(found.size_bytes) for name, found in names.items())


def test_what_grew_in_between(holder):
    before = taken(holder.id)
    shm = Path(f"/proc/{holder.pid}/root/dev/shm/grown")
    subprocess.run(
        ["sh", "-c", f"echo $$ > {find_memory_hierarchy().path(f'/{holder.id}')}/cgroup.procs; "
         f"exec dd if=/dev/zero of={shm} bs=1M count=9"], check=True, capture_output=True,
    )  # fmt: skip
    diff = compare(before, taken(holder.id))
    (grown,) = [change for change in diff.of(Subject.SHM) if "grown" in change.name]
    assert (grown.fate, grown.after_bytes) == (Fate.APPEARED, 9 * MIB)
    kinds = {change.name: change.delta_bytes for change in diff.of(Subject.KIND)}
    assert abs(kinds["shmem"] - 9 * MIB) < MIB and abs(kinds["cgroup"] - 9 * MIB) < 2 * MIB


def test_diff_of_a_container_that_goes_on(holder):
    done = rtdebug("diff", holder.id, "--interval", "200ms", "-o", "json")
    document = json.loads(done.stdout)
    assert document["after"]["time_ns"] - document["before"]["time_ns"] >= 200_000_000


def test_nothing_is_lost_on_the_way_through_the_file(holder, tmp_path):
    snapshot = taken(holder.id)
    write_archive(snapshot, tmp_path / "a")
    again = read_archive(tmp_path / "a")
    assert again.processes == snapshot.processes and again.shared == snapshot.shared
    assert account(again) == account(snapshot)


def test_many_processes_are_read_by_helpers():
    file = "/dev/shm/rtdebug-mapped"
    with memory_cgroup(512 * MIB) as cgroup, Workload("mappings", 40, 60, file, cgroup=cgroup) as crowd:
        crowd.go()
        path = find_memory_hierarchy().cgroup(cgroup)
        try:
            wait_for(lambda: len((cgroup / "cgroup.procs").read_text().split()) == 41, "the crowd")
            time.sleep(0.5)
            seen = []
            snapshot = take_snapshot(
                find_container(f"cgroup:{path}")[0], progress=lambda done, total: seen.append((done, total))
            )
            assert len(snapshot.processes) == 41
            assert [each.pid for each in snapshot.processes] == sorted(each.pid for each in snapshot.processes)
            assert all(each.mapping_count >= 60 for each in snapshot.processes if each.ppid == crowd.pid)
            assert seen[-1] == (41, 41)
        finally:
            Path(file).unlink()


def test_a_full_disk_leaves_no_half_file_and_shows_what_was_seen(runc, tmp_path):
    box = runc.start(script="sleep 1000")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "rtdebug-full", tmp_path], check=True)
    try:
        done = rtdebug("snapshot", box.id, "--file", tmp_path / "a.tar.gz", status=1)
        assert "No space left" in done.stderr and "Where it is" in done.stdout
        assert json.loads(rtdebug("snapshot", box.id, "--file", tmp_path / "a", "-o", "json", status=1).stdout)
        assert list(tmp_path.iterdir()) == []
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_without_root_the_error_says_so(runc):
    box = runc.start(script="sleep 1000")
    nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "env", "HOME=/nonexistent"]
    done = subprocess.run(
        [*nobody, sys.executable, "-m", "rtdebug", "snapshot", box.id], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 4 and "without root" in done.stderr
