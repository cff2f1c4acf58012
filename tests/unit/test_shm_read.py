"""What is parsed and decided without a container: /proc/sysvipc/shm, mounts, volumes, limits."""

from __future__ import annotations

import os

import pytest

from rtdebug.errors import RtdebugError
from rtdebug.host.cgroup import MemoryHierarchy
from rtdebug.host.fds import on_remote, read_file_uses
from rtdebug.host.mounts import parse_mountinfo
from rtdebug.host.sysv import SysvSegment, parse_sysv_shm
from rtdebug.shm.limits import Limit, LimitKind, binding, memory_limits
from rtdebug.shm.mounts import read_tmpfs_mounts
from rtdebug.shm.volumes import Volume, VolumeKind, volume_of
from tests.unit.trees import write_files

MIB = 1 << 20
ID = "a1" * 32
UID = "0f8fad5b-d9cb-469f-a165-70867728950e"

SYSV = """\
       key      shmid perms                  size  cpid  lpid nattch   uid   gid  cuid  cgid      atime      dtime      ctime                   rss                  swap
1592590337         32   600               4194304  4711  4712      2    33    33     0     0 1700000100 1700000000 1699999000              1048576                  8192
-559038737         33  1666                  8192     0     0      0  1000  1000  1000  1000          0          0 1700000300                    0                     0
         0         34   600
"""  # noqa: E501


def test_segments():
    first, second = parse_sysv_shm(SYSV)
    assert first == SysvSegment(32, 1592590337, 4 * MIB, 4711, 2, 33, 1_700_000_100 * 10**9, 1 * MIB, 8192)
    assert first.allocated_bytes == 1 * MIB + 8192
    assert (second.key, second.creator_pid, second.attached) == (0xDEADBEEF, None, 0)
    assert second.changed_ns == 1_700_000_300 * 10**9


def test_segments_of_an_old_kernel_have_no_rss():
    """rss and swap came with Linux 2.6.34."""
    header = "key shmid perms size cpid lpid nattch uid gid cuid cgid atime dtime ctime"
    text = f"{header}\n1 2 600 4096 7 7 0 0 0 0 0 1 2 3\n"
    (segment,) = parse_sysv_shm(text)
    assert (segment.rss_bytes, segment.allocated_bytes) == (None, None)


@pytest.mark.parametrize("text", ["", "\n", "nonsense\n1 2 3\n"])
def test_no_segments(text):
    assert parse_sysv_shm(text) == ()


def mount(root="/", point="/dev/shm", device="0:81", fstype="tmpfs"):
    (parsed,) = parse_mountinfo(f"30 20 {device} {root} {point} rw - {fstype} shm rw\n")
    return parsed


@pytest.mark.parametrize(
    ("host_point", "volume"),
    [
        (
            f"/var/lib/kubelet/pods/{UID}/volumes/kubernetes.io~empty-dir/dshm",
            (VolumeKind.EMPTY_DIR, "dshm", UID),
        ),
        (f"/data/k3s/kubelet/pods/{UID}/volumes/kubernetes.io~empty-dir/a.b", (VolumeKind.EMPTY_DIR, "a.b", UID)),
        (f"/var/lib/kubelet/pods/{UID}/volumes/kubernetes.io~secret/token", (VolumeKind.KUBERNETES, "token", UID)),
        (
            f"/var/lib/kubelet/pods/{UID}/volumes/kubernetes.io~projected/kube-api-access-x",
            (VolumeKind.KUBERNETES, "kube-api-access-x", UID),
        ),
        (f"/run/containerd/io.containerd.grpc.v1.cri/sandboxes/{ID}/shm", (VolumeKind.POD, None, None)),
        (f"/var/lib/docker/containers/{ID}/mounts/shm", (VolumeKind.RUNTIME, None, None)),
        (f"/run/containers/storage/overlay-containers/{ID}/userdata/shm", (VolumeKind.RUNTIME, None, None)),
        ("/dev/shm", (VolumeKind.HOST, None, None)),
        ("/var/lib/docker/containers/short/mounts/shm", (VolumeKind.HOST, None, None)),
    ],
)
def test_what_a_tmpfs_is_for(host_point, volume):
    found = volume_of(mount(), [mount(point="/elsewhere", device="0:9"), mount(point=host_point)])
    assert (found.kind, found.name, found.pod_uid) == volume
    assert found.host_path == host_point


def test_a_tmpfs_that_the_host_does_not_see_is_the_containers_own():
    assert volume_of(mount(), [mount(device="0:82")]) == Volume(VolumeKind.CONTAINER)


def test_a_kubelet_whose_folder_lies_on_a_tmpfs():
    """Then the host's mount is above the volume, and the container's root says which folder it has."""
    below = f"/lib/kubelet/pods/{UID}/volumes/kubernetes.io~empty-dir/cache"
    found = volume_of(mount(root=below), [mount(point="/var")])
    assert (found.kind, found.name, found.host_path) == (VolumeKind.EMPTY_DIR, "cache", f"/var{below}")
    other_part = volume_of(mount(root="/a"), [mount(root="/b", point="/mnt")])
    assert other_part.kind is VolumeKind.CONTAINER


def test_the_limit_that_ends_first_is_not_the_lowest():
    size = Limit(LimitKind.MOUNT_SIZE, 64 * MIB, 60 * MIB)
    cgroup = Limit(LimitKind.MEMORY_CGROUP, 512 * MIB, 20 * MIB, "/docker/x")
    assert binding([size, cgroup]) is cgroup
    assert binding([]) is None


def tree(tmp_path, version, limit, usage, stat):
    files = {1: ("memory.limit_in_bytes", "memory.usage_in_bytes"), 2: ("memory.max", "memory.current")}[version]
    return write_files(
        tmp_path,
        {
            "proc/meminfo": "MemTotal: 4194304 kB\nMemAvailable: 2097152 kB\n",
            f"cgroup/pod/{files[0]}": f"{4 * limit}\n",
            f"cgroup/pod/{files[1]}": f"{4 * limit - 3 * MIB}\n",
            "cgroup/pod/memory.stat": "",
            f"cgroup/pod/box/{files[0]}": f"{limit}\n",
            f"cgroup/pod/box/{files[1]}": f"{usage}\n",
            "cgroup/pod/box/memory.stat": stat,
        },
    )


@pytest.mark.parametrize(
    ("version", "stat"),
    [
        (1, f"cache {50 * MIB}\ntotal_active_file {7 * MIB}\ntotal_inactive_file {5 * MIB}\ntotal_shmem {30 * MIB}\n"),
        (2, f"file {50 * MIB}\nactive_file {7 * MIB}\ninactive_file {5 * MIB}\nshmem {30 * MIB}\n"),
    ],
)
def test_page_cache_counts_as_room_and_shared_memory_does_not(tmp_path, version, stat):
    folder = tree(tmp_path, version, 100 * MIB, 90 * MIB, stat)
    own, parent, host = memory_limits("/pod/box", MemoryHierarchy(version, folder / "cgroup"), folder / "proc")
    assert own == Limit(LimitKind.MEMORY_CGROUP, 100 * MIB, (100 - 90 + 12) * MIB, "/pod/box")
    assert parent == Limit(LimitKind.MEMORY_CGROUP, 400 * MIB, 3 * MIB, "/pod")
    assert host == Limit(LimitKind.HOST_MEMORY, 4096 * MIB, 2048 * MIB)
    assert binding([own, parent, host]) is parent


def test_over_its_limit_there_is_no_room_left(tmp_path):
    """v1 may count a little more than the limit for a moment."""
    folder = tree(tmp_path, 1, 100 * MIB, 101 * MIB, "")
    own = memory_limits("/pod/box", MemoryHierarchy(1, folder / "cgroup"), folder / "proc")[0]
    assert own.left_bytes == 0


def test_no_cgroup_and_no_meminfo(tmp_path):
    assert memory_limits(None, None, tmp_path) == ()


def test_a_process_that_has_exited(tmp_path):
    with pytest.raises(RtdebugError, match="process 4711 shows no mounts"):
        read_tmpfs_mounts(4711, proc=tmp_path)


MOUNTS = parse_mountinfo(
    "1 0 8:1 / / rw - ext4 /dev/sda rw\n2 1 0:40 / /srv rw - nfs4 server:/x rw\n3 2 0:41 / /srv/fast rw - tmpfs t rw\n"
    "4 1 0:42 / /home/me/s3 rw - fuse.s3fs s3fs rw\n"
)


@pytest.mark.parametrize(
    ("path", "remote"),
    [
        ("/srv/data", True),
        ("/srv", True),
        ("/srv/fast/x", False),
        ("/srvx/data", False),
        ("/home/me/s3/model", True),
        ("/home/me/x", False),
        ("relative", False),
    ],
)
def test_files_of_other_machines_are_not_touched(path, remote):
    assert on_remote(path, MOUNTS) is remote


def test_users_by_inode_of_this_very_process(tmp_path):
    """Descriptors and mappings of a real process: ours."""
    path = tmp_path / "file"
    path.write_bytes(b"x" * 5000)
    device = path.stat().st_dev
    with path.open("rb"):
        use = read_file_uses([os.getpid()], frozenset({device})).of(device, path.stat().st_ino)
    assert use is not None
    assert (use.name, use.size_bytes, use.links, use.holders) == (str(path), 5000, 1, {os.getpid()})
    assert read_file_uses([os.getpid()], frozenset({device})).of(device, path.stat().st_ino) is None


def test_a_pid_that_is_gone_adds_nothing(tmp_path):
    uses = read_file_uses([4711], frozenset({27}), tmp_path)
    assert (uses.by_key, uses.unseen) == ({}, set())
