"""What a person should know who reads the figures of `rtdebug shm`: pure text over what was read."""

from __future__ import annotations

from collections.abc import Iterator

from rtdebug.host.cgroup import is_within
from rtdebug.shm.files import MOST_FILES
from rtdebug.shm.limits import LimitKind
from rtdebug.shm.mounts import SHM_PATH, TmpfsMount
from rtdebug.shm.report import ShmReport
from rtdebug.shm.volumes import VolumeKind

_MOST_PAYERS = 5


def notes_on(report: ShmReport) -> tuple[str, ...]:
    """The notes, the most important first. They hold paths of the container: not escaped."""
    notes = [*_dev_shm(report)]
    for mount in report.mounts:
        notes += _on_mount(mount)
    notes += _others_pay(report)
    notes += [f"{path} has {MOST_FILES:,} files or more: only so many were looked at" for path in report.cut]
    if not report.segments_seen:
        notes.append("its IPC namespace cannot be entered (CAP_SYS_ADMIN is needed): SysV segments are not shown")
    if report.unseen_pids:
        listed = ", ".join(map(str, report.unseen_pids[:5])) + (", ..." if len(report.unseen_pids) > 5 else "")
        notes.append(
            f"rtdebug could not look into all of process {listed}: whether an object is used there is not known; "
            "before a file is removed, the kernel is asked"
        )
    return tuple(notes)


def _dev_shm(report: ShmReport) -> Iterator[str]:
    if report.dev_shm_fstype is None:
        yield f"there is no {SHM_PATH}: shm_open fails there with ENOENT (run it with --shm-size, or mount a tmpfs)"
    elif report.dev_shm_fstype not in ("tmpfs", "devtmpfs"):
        yield f"{SHM_PATH} is not a tmpfs but {report.dev_shm_fstype}: its files take disk space, not shared memory"
    elif not any(mount.is_dev_shm for mount in report.mounts):
        yield f"{SHM_PATH} is only a folder of the {report.dev_shm_fstype} above it, and shares its size"


def _others_pay(report: ShmReport) -> Iterator[str]:
    """What lies in the container's shared memory and counts in somebody else's limit."""
    own = report.container.cgroup
    if own in (None, "/"):
        return
    paid: dict[str, int] = {}
    for each in report.objects:
        payers = [payer for payer in each.charged_to or () if not is_within(payer, own)]
        if payers and len(payers) == len(each.charged_to or ()):
            paid[payers[0]] = paid.get(payers[0], 0) + (each.allocated_bytes or 0)
    for payer, size_bytes in sorted(paid.items(), key=lambda item: -item[1])[:_MOST_PAYERS]:
        size = f"{size_bytes / (1 << 20):,.1f} MiB"
        yield f"{size} of what lies in it were charged to cgroup {payer}, not to this container: who writes first pays"


def _on_mount(mount: TmpfsMount) -> Iterator[str]:
    if mount.covered:
        yield f"a tmpfs at {mount.path} is covered by another mount: how full it is cannot be seen from here"
        return
    if mount.inodes_left == 0:
        yield f"{mount.path} has no inode left of {mount.inodes}: no new file can be made, whatever space is left"
    if mount.volume.kind is VolumeKind.EMPTY_DIR and LimitKind.HALF_OF_RAM in [each.kind for each in mount.limits]:
        yield (
            f"{mount.path} is the emptyDir {mount.volume.name!r} without a size, so df shows half of the node's RAM: "
            "if the pod gives a sizeLimit, the kubelet evicts the pod beyond it, and the file system does not know it"
        )
    if mount.volume.kind is VolumeKind.HOST and mount.is_dev_shm:
        yield f"{mount.path} is the host's own ({mount.volume.host_path}): other processes of the host use it too"
    if mount.is_dev_shm and mount.read_only:
        yield f"{mount.path} is read-only: shm_open with O_CREAT fails there with EROFS"
    if mount.options.get("huge") in ("always", "within_size"):
        yield f"{mount.path} is mounted huge={mount.options['huge']}: a small file may take 2 MiB"
