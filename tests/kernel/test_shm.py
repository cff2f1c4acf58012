"""`rtdebug shm` on real containers: mounts, objects, who uses them. Witnesses: the workload, statvfs, /proc."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rtdebug.containers.resolve import find_container
from rtdebug.shm.limits import LimitKind
from rtdebug.shm.model import ObjectKind
from rtdebug.shm.report import read_shm
from rtdebug.shm.volumes import VolumeKind
from tests.kernel.runtime_fixtures import FILL_BYTES, MIB
from tests.kernel.workload import memory_cgroup

pytestmark = pytest.mark.kernel


def look(box):
    return read_shm(find_container(f"runc:{box.id}")[0])


def run_shm(*arguments, **options):
    command = [sys.executable, "-m", "rtdebug", "shm", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **options)


def test_each_kind_of_object(box):
    objects = {(each.kind.value, each.name): each for each in look(box).objects if each.name != "/dev/shm/ready"}
    sizes = {key: (each.size_bytes // MIB, each.allocated_bytes // MIB) for key, each in objects.items()}
    assert sizes == {
        ("posix", "/dev/shm/mapped"): (3, 3),
        ("posix", "/dev/shm/held"): (2, 1),
        ("posix", "/dev/shm/left"): (5, 5),
        ("deleted", "/dev/shm/gone"): (11, 1),
        ("memfd", "memfd:work"): (7, 2),
        ("sysv", "0x5eed0001"): (1, 1),
        ("sysv", "0x5eed0002"): (4, 4),
        ("anonymous", "/dev/zero"): (6, 6),
    }
    users = {key[1]: ([u.pid for u in each.mappers], [u.pid for u in each.holders]) for key, each in objects.items()}
    assert users == {
        "/dev/shm/mapped": ([box.pid], []),
        "/dev/shm/held": ([], [box.pid]),
        "/dev/shm/left": ([], []),
        "/dev/shm/gone": ([], [box.pid]),
        "memfd:work": ([box.pid], []),
        "0x5eed0001": ([box.pid], []),
        "0x5eed0002": ([], []),
        "/dev/zero": ([box.pid], []),
    }
    assert {key[1] for key, each in objects.items() if each.orphan} == {"/dev/shm/left", "0x5eed0002"}
    assert all(user.comm == "shm_objects" for each in objects.values() for user in each.users)
    assert objects["sysv", "0x5eed0001"].creator.pid == box.pid
    assert [objects["sysv", f"0x5eed000{n}"].attached for n in (1, 2)] == [1, 0]


def test_who_pays(box):
    """Of each object whose pages can be looked at: the container, for its process touched them first."""
    cgroup = f"/{box.id}"
    objects = [each for each in look(box).objects if each.allocated_bytes]
    assert {each.name: each.charged_to for each in objects} == {
        each.name: None if each.name == "0x5eed0002" else (cgroup,) for each in objects
    }


def test_what_another_cgroup_wrote_is_charged_to_it(box):
    with memory_cgroup(32 * MIB) as cgroup:
        path = f"/proc/{box.pid}/root/dev/shm/foreign"
        subprocess.run(["sh", "-c", f'echo $$ > {cgroup}/cgroup.procs; head -c 1000000 /dev/zero > {path}'], check=True)
        found = next(each for each in look(box).objects if each.name == "/dev/shm/foreign")
        assert found.charged_to == (f"/{cgroup.name}",)
        Path(path).unlink()


def test_the_limits_of_dev_shm(box):
    report = look(box)
    (shm,) = [mount for mount in report.mounts if mount.path == "/dev/shm"]
    status = os.statvfs(f"/proc/{box.pid}/root/dev/shm")
    assert shm.size_bytes == 41 * MIB
    assert shm.used_bytes == (status.f_blocks - status.f_bfree) * status.f_frsize == 10 * MIB  # 3 + 1 + 5 + gone 1
    assert report.dev_shm_fstype == "tmpfs"
    left = {limit.kind: limit.left_bytes for limit in shm.limits}
    assert left[LimitKind.MOUNT_SIZE] == 31 * MIB
    # 3+1+5+1 files, 2 memfd, 1+4 SysV, 6 anonymous: 23 MiB of shared memory, and a little of its own
    assert 60 * MIB < left[LimitKind.MEMORY_CGROUP] <= (96 - 23) * MIB
    assert shm.limited_by is LimitKind.MOUNT_SIZE and shm.left_bytes == 31 * MIB


def test_a_process_elsewhere_that_holds_it_counts(box):
    left = Path(f"/proc/{box.pid}/root/dev/shm/left")
    with left.open("rb"), subprocess.Popen(["sleep", "100"], stdin=left.open("rb")) as other:
        try:
            (found,) = [each for each in look(box).objects if each.name == "/dev/shm/left"]
        finally:
            other.kill()
    assert [(user.pid, user.comm, user.in_container) for user in found.holders] == [(other.pid, "sleep", False)]
    assert found.orphan is False
    assert found.kind is ObjectKind.POSIX


def test_the_command(box):
    done = run_shm(f"runc:{box.id}", "-o", "json")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    (shm,) = [mount for mount in document["mounts"] if mount["path"] == "/dev/shm"]
    assert (shm["size_bytes"], shm["used_bytes"], shm["limited_by"]) == (41 * MIB, 10 * MIB, "mount_size")
    held = next(each for each in document["objects"] if each["name"] == "/dev/shm/held")
    assert [(user["pid"], user["comm"]) for user in held["holders"]] == [(box.pid, "shm_objects")]
    assert (document["container_id"], document["cgroup"]) == (box.id, f"/{box.id}")
    table = run_shm(f"runc:{box.id}")
    assert table.returncode == 0, table.stderr
    assert "Orphans: 3 objects that nobody uses; removing them frees 9 MiB" in table.stdout


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["rtdebug-nobody"], 4, "no container 'rtdebug-nobody'"),
        ([], 2, "TARGET"),
        (["x", "--yes"], 2, "--remove-orphans"),
        (["x", "--watch", "--remove-orphans"], 2, "one of the two"),
        (["x", "--duration", "5s"], 2, "--watch"),
        (["x", "--remove-orphans", "--min-age", "soon"], 2, "no duration"),
    ],
)
def test_what_cannot_be(arguments, status, says):
    done = run_shm(*arguments)
    assert (done.returncode, done.stdout) == (status, "")
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_podman_keeps_dev_shm_on_the_host(podman):
    box = podman.start("rtdebug-shm-podman", memory_bytes=64 * MIB, shm_bytes=32 * MIB)
    report = read_shm(find_container("rtdebug-shm-podman")[0])
    shm = report.mounts[0]
    assert (shm.path, shm.size_bytes, shm.used_bytes) == ("/dev/shm", 32 * MIB, FILL_BYTES)
    assert shm.volume.kind is VolumeKind.RUNTIME
    assert [(each.name, each.orphan) for each in report.objects if each.allocated_bytes] == [("/dev/shm/fill", True)]
    assert report.pid == box.pid
