"""`rtdebug shm --remove-orphans` on real containers: what nobody uses goes, everything else stays."""

from __future__ import annotations

import array
import json
import os
import pty
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rtdebug.containers.resolve import find_container
from rtdebug.host.sysv import read_sysv_shm
from rtdebug.shm.orphans import Rules, judge
from rtdebug.shm.removal import remove_orphans
from rtdebug.shm.report import read_shm, read_uses
from tests.kernel.runtime_fixtures import IMAGE, MIB, wait_for

pytestmark = pytest.mark.kernel

COMMAND = [sys.executable, "-m", "rtdebug", "shm"]


def run(*arguments, **options):
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=60, check=False, **options)


def files(box):
    return {path.name for path in Path(f"/proc/{box.pid}/root/dev/shm").iterdir()}


def segments(box):
    return {segment.shm_id for segment in read_sysv_shm(box.pid)}


def orphan_named(box, name):
    report = read_shm(find_container(f"runc:{box.id}")[0])
    (found,) = [each for each in report.orphans if each.name == name]
    return found


def test_of_what_is_younger_than_the_look_at_its_users_nobody_knows(box):
    container, _ = find_container(f"runc:{box.id}")
    uses = read_uses([container], None)
    Path(f"/proc/{box.pid}/root/dev/shm/young").write_bytes(b"x" * MIB)
    found = {each.name: each.orphan for each in read_shm(container, known=uses).objects}
    assert found["/dev/shm/left"] is True
    assert found["/dev/shm/mapped"] is False
    assert found["/dev/shm/young"] is None
    assert orphan_named(box, "/dev/shm/young")


def removed(box, *orphans):
    return [removal.problem for removal in remove_orphans(box.pid, orphans)]


def test_only_orphans_go(box):
    done = run(f"runc:{box.id}", "--remove-orphans", "--yes", "--min-age", "0", "-o", "json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert {each["name"] for each in document["removed"]} == {"/dev/shm/left", "/dev/shm/ready", "0x5eed0002"}
    assert document["freed_bytes"] == 9 * MIB
    assert document["kept"] == []
    assert files(box) == {"mapped", "held"}
    assert len(segments(box)) == 1
    status = os.statvfs(f"/proc/{box.pid}/root/dev/shm")
    assert (status.f_blocks - status.f_bfree) * status.f_frsize == 5 * MIB  # mapped 3, held 1, gone 1


def test_what_is_young_stays(box):
    done = run(f"runc:{box.id}", "--remove-orphans", "--yes")
    assert done.returncode == 0, done.stderr
    assert "younger than 60 s (--min-age)" in done.stdout
    assert {"left", "ready"} <= files(box)
    assert len(segments(box)) == 2


def test_a_dry_run_and_a_name(box):
    done = run(f"runc:{box.id}", "--remove-orphans", "--dry-run", "--min-age", "0", "--name", "le*")
    assert done.returncode == 0, done.stderr
    assert "/dev/shm/left" in done.stdout and "ready" not in done.stdout
    assert "1 object, 5 MiB to be freed" in done.stdout
    assert "left" in files(box)
    done = run(f"runc:{box.id}", "--remove-orphans", "--yes", "--min-age", "0", "--name", "0x5eed*")
    assert "Removed 1 object: 4 MiB freed" in done.stdout
    assert "left" in files(box) and len(segments(box)) == 1


def test_nobody_to_ask(box):
    done = run(f"runc:{box.id}", "--remove-orphans", stdin=subprocess.DEVNULL)
    assert done.returncode == 2
    assert "--yes" in done.stderr and "--dry-run" in done.stderr
    assert "left" in files(box)


@pytest.mark.parametrize(("answer", "stays"), [("n", True), ("y", False)])
def test_it_asks(box, answer, stays):
    ours, theirs = pty.openpty()
    os.write(ours, f"{answer}\n".encode())
    done = run(f"runc:{box.id}", "--remove-orphans", "--min-age", "0", "--name", "left", stdin=theirs)
    os.close(ours)
    os.close(theirs)
    assert done.returncode == 0, done.stderr
    assert "Remove them?" in done.stderr
    assert ("left" in files(box)) is stays


def test_what_is_opened_meanwhile_stays(box):
    left = orphan_named(box, "/dev/shm/left")
    with Path(f"/proc/{box.pid}/root/dev/shm/left").open("rb"):
        assert removed(box, left) == ["somebody has it open or mapped now"]  # rtdebug's own descriptors are not scanned
        with subprocess.Popen(["sleep", "100"], stdin=Path(f"/proc/{box.pid}/root/dev/shm/left").open("rb")) as other:
            try:
                (problem,) = removed(box, left)
            finally:
                other.kill()
    assert problem == f"process {other.pid} (sleep) uses it now"
    assert "left" in files(box)
    assert removed(box, left) == [None]
    assert removed(box, left) == ["it is gone"]


def test_a_descriptor_in_flight_keeps_it(box):
    """A descriptor that lies in a socket is in no process's table: only the kernel's lease knows of it."""
    left = orphan_named(box, "/dev/shm/left")
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with here, there:
        fd = os.open(f"/proc/{box.pid}/root/dev/shm/left", os.O_RDONLY)
        here.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])
        os.close(fd)
        assert removed(box, left) == ["somebody has it open or mapped now"]
    assert removed(box, left) == [None]


def test_what_was_replaced_or_changed_stays(box):
    left = orphan_named(box, "/dev/shm/left")
    path = Path(f"/proc/{box.pid}/root/dev/shm/left")
    path.rename(path.with_name("old"))
    path.write_bytes(b"new")
    assert removed(box, left) == ["it has been changed or replaced meanwhile"]
    path.unlink()
    path.symlink_to("old")
    assert removed(box, left) == ["it has been changed or replaced meanwhile"]
    assert {"left", "old"} <= files(box)


def test_a_segment_that_is_not_the_listed_one_stays(box):
    left = orphan_named(box, "0x5eed0002")
    assert removed(box, replace(left, changed_ns=left.changed_ns - 10**9)) == ["it has been used or replaced meanwhile"]
    (attached,) = [s for s in read_sysv_shm(box.pid) if s.key == 0x5EED0001]
    listed = replace(left, inode_id=attached.shm_id, name="0x5eed0001", changed_ns=attached.changed_ns)
    assert removed(box, listed) == ["it is attached 1 times now"]
    assert len(segments(box)) == 2
    assert removed(box, left) == [None]


def test_in_the_hosts_dev_shm_only_what_the_container_pays_for(docker):
    mine, foreign = (Path(f"/dev/shm/rtdebug-{name}-{os.getpid()}") for name in ("mine", "foreign"))
    foreign.write_bytes(b"x" * 10_000)
    script = f"head -c 100000 /dev/zero > {mine} || dd if=/dev/zero of={mine} bs=100000 count=1; exec sleep 600"
    box = docker.call("run", "--detach", "--network", "none", "--ipc", "host", IMAGE, "/bin/sh", "-c", script).strip()
    try:
        wait_for(lambda: mine.exists() and mine.stat().st_size == 100_000, "the container")
        report = read_shm(find_container(box)[0])
        rules = Rules(0, (f"rtdebug-*-{os.getpid()}",), report.container.cgroup)
        judged = judge(report.objects, report.mounts, rules, report.time_ns)
        verdicts = {each.object.name: each.refusal for each in judged}
        assert verdicts[str(mine)] is None
        assert "not known to be charged to this container" in verdicts[str(foreign)]
        meant = [each for each in report.orphans if each.name == str(mine)]
        assert [removal.problem for removal in remove_orphans(report.pid, meant)] == [None]
        assert (mine.exists(), foreign.exists()) == (False, True)
    finally:
        for path in (mine, foreign):
            path.unlink(missing_ok=True)
