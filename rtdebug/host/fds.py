"""Who uses which file: open descriptors and mappings of any number of processes, grouped by inode.

Made for thousands of descriptors and mappings: a descriptor costs one stat(2), mappings of other file systems are
passed over without a look at their lines. What a dead server could make hang is never touched.

Sources: proc_pid_fd(5), proc_pid_maps(5).
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from rtdebug.host.mounts import Mount, parse_mountinfo
from rtdebug.host.process import namespace_id
from rtdebug.host.text import decode, read_text

_REMOTE = re.compile(r"nfs\d?|cifs|smb3?|fuse(\..*)?|9p|ceph|afs|glusterfs|lustre|gfs2|ocfs2|autofs")
"""File systems whose server may be dead: stat(2) of a file there would hang."""
_MAPS_LINE = re.compile(
    rb"(?P<span>[0-9a-f]+-[0-9a-f]+) \S+ \S+ (?P<device>[0-9a-f]+:[0-9a-f]+) (?P<inode>\d+) +(?P<name>.*)", re.DOTALL
)
MOST_USED_FILES = 100_000
"""So many files are told apart: a container can make memfds by the million. Who has further ones is `unseen`."""
_MOST_PATHS = 3
_SYSV = "/SYSV"
_DELETED = " (deleted)"


@dataclass(frozen=True, slots=True)
class FileKey:
    """One file. A System V segment has its shmid as inode number, so other files may have the same number."""

    device_id: int
    """As in st_dev."""
    inode_id: int
    ipc_namespace_id: int | None = None
    """Of a System V segment only: shmids are each namespace's own. 0 when it could not be read."""


@dataclass(slots=True)
class FileUse:
    """Who uses one file."""

    key: FileKey
    name: str
    """The kernel's, as one of the users sees it, without ` (deleted)`."""
    size_bytes: int | None = None
    allocated_bytes: int | None = None
    """None in both: no user could be asked (a mapping needs CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE)."""
    uid: int | None = None
    links: int | None = None
    changed_ns: int | None = None
    """Unix time of the last write(2), truncate or change of its attributes; stores through a mapping do not count."""
    mappers: set[int] = field(default_factory=set)
    holders: set[int] = field(default_factory=set)
    """Pids with an open descriptor."""
    paths: list[Path] = field(default_factory=list)
    """Under /proc, to open it again: one of each of the first users."""


@dataclass(slots=True)
class FileUses:
    """Who uses which file, of the processes that were looked at."""

    device_ids: frozenset[int] = frozenset()
    """Of which file systems."""
    time_ns: int = 0
    """Unix time when the look began."""
    by_key: dict[FileKey, FileUse] = field(default_factory=dict)
    unseen: set[int] = field(default_factory=set)
    """Processes that may not be looked at, by somebody who is not root or lacks CAP_SYS_PTRACE mostly; or not to the
    end, for there are too many files."""

    def of(self, device_id: int, inode_id: int) -> FileUse | None:
        """Who uses an ordinary file; None: nobody who was looked at."""
        return self.by_key.get(FileKey(device_id, inode_id))


def read_file_uses(pids: Iterable[int], device_ids: frozenset[int], proc: Path = Path("/proc")) -> FileUses:
    """The files of these file systems (st_dev, at least one) that the processes have open or mapped.

    A process that exits meanwhile adds nothing. Descriptors that are on their way through a socket, or registered
    with io_uring, belong to no process and are not seen.
    """
    uses = FileUses(device_ids, time.time_ns())
    remote: dict[int | None, tuple[Mount, ...]] = {}
    for pid in pids:
        try:
            _add_mappings(uses.by_key, pid, device_ids, proc)
            _add_descriptors(uses.by_key, pid, device_ids, _remote_mounts(pid, remote, proc), proc)
        except (PermissionError, _TooManyError):
            uses.unseen.add(pid)
        except OSError:
            continue  # it has exited
    return uses


class _TooManyError(Exception):
    """MOST_USED_FILES are known already."""


def on_remote(path: str, mounts: Iterable[Mount]) -> bool:
    """Whether the deepest of `mounts` above `path` is a file system of another machine or of a user's process."""
    deepest = None
    for mount in mounts:
        point = mount.mount_point.rstrip("/")
        if (path == point or path.startswith(point + "/")) and (
            deepest is None or len(point) >= len(deepest.mount_point.rstrip("/"))
        ):
            deepest = mount
    return deepest is not None and _REMOTE.fullmatch(deepest.fstype) is not None


def lines_of_devices(maps: bytes, device_ids: Iterable[int]) -> Iterator[re.Match[bytes]]:
    """The lines of /proc/PID/maps that lie on these devices (st_dev), as matches of span, device, inode and name.

    bytes.find() passes over all others, 15 times as fast as a regular expression over the whole text.
    """
    for device in device_ids:
        needle = b" %02x:%02x " % (os.major(device), os.minor(device))
        place = maps.find(needle)
        while place >= 0:
            end = maps.find(b"\n", place)
            end = len(maps) if end < 0 else end
            line = _MAPS_LINE.fullmatch(maps, maps.rfind(b"\n", 0, place) + 1, end)
            if line is not None and line.start("device") == place + 1:  # else it stands in a name
                yield line
            place = maps.find(needle, end)


def _add_mappings(uses: dict[FileKey, FileUse], pid: int, device_ids: frozenset[int], proc: Path) -> None:
    process = proc / str(pid)
    for line in lines_of_devices((process / "maps").read_bytes(), device_ids):
        major, _, minor = line["device"].partition(b":")
        name = decode(line["name"]).replace("\\012", "\n")
        key = _key(os.makedev(int(major, 16), int(minor, 16)), int(line["inode"]), name, pid, proc)
        use = _use(uses, key, name)
        if pid not in use.mappers:
            use.mappers.add(pid)
            _ask(use, process / "map_files" / os.fsdecode(line["span"]))


def _add_descriptors(
    uses: dict[FileKey, FileUse], pid: int, device_ids: frozenset[int], mounts: tuple[Mount, ...], proc: Path
) -> None:
    folder = proc / str(pid) / "fd"
    folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for number in os.listdir(folder_fd):  # noqa: PTH208 - a descriptor
            try:
                if mounts and on_remote(os.readlink(number, dir_fd=folder_fd), mounts):
                    continue
                status = os.stat(number, dir_fd=folder_fd)
                if status.st_dev not in device_ids or not stat.S_ISREG(status.st_mode):
                    continue
                name = os.readlink(number, dir_fd=folder_fd)
            except OSError:  # closed meanwhile
                continue
            use = _use(uses, _key(status.st_dev, status.st_ino, name, pid, proc), name)
            if pid not in use.holders:
                use.holders.add(pid)
                if len(use.paths) < _MOST_PATHS:
                    use.paths.append(folder / number)
                _fill(use, status)
    finally:
        os.close(folder_fd)


def _key(device_id: int, inode_id: int, name: str, pid: int, proc: Path) -> FileKey:
    is_sysv = name[:5] == _SYSV and name.endswith(_DELETED)
    return FileKey(device_id, inode_id, (namespace_id(pid, "ipc", proc) or 0) if is_sysv else None)


def _use(uses: dict[FileKey, FileUse], key: FileKey, name: str) -> FileUse:
    use = uses.get(key)
    if use is None:
        if len(uses) >= MOST_USED_FILES:
            raise _TooManyError
        use = uses[key] = FileUse(key, name.removesuffix(_DELETED))
    return use


def _ask(use: FileUse, path: Path) -> None:
    if len(use.paths) < _MOST_PATHS:
        use.paths.append(path)
    if use.links is None:
        with suppress(OSError):
            status = path.stat()
            if (status.st_dev, status.st_ino) == (use.key.device_id, use.key.inode_id):
                _fill(use, status)


def _fill(use: FileUse, status: os.stat_result) -> None:
    use.size_bytes = status.st_size
    use.allocated_bytes = status.st_blocks * 512
    use.uid = status.st_uid
    use.links = status.st_nlink
    use.changed_ns = max(status.st_mtime_ns, status.st_ctime_ns)


def _remote_mounts(pid: int, known: dict[int | None, tuple[Mount, ...]], proc: Path) -> tuple[Mount, ...]:
    """All mounts of the process if one of them is remote, else none; once for each mount namespace."""
    namespace = namespace_id(pid, "mnt", proc)
    if namespace not in known:
        mounts = parse_mountinfo(read_text(proc / str(pid) / "mountinfo") or "")
        known[namespace] = mounts if any(map(_is_remote, mounts)) else ()
    return known[namespace]


def _is_remote(mount: Mount) -> bool:
    return _REMOTE.fullmatch(mount.fstype) is not None


def internal_devices() -> frozenset[int]:
    """The st_dev of the kernel's own mounts behind memfds, SysV segments and MAP_SHARED memory; hugetlb ones too."""
    return frozenset(_devices_of_memfds())


def _devices_of_memfds() -> Iterator[int]:
    hugetlb = [os.MFD_HUGETLB | size for size in (0, os.MFD_HUGE_2MB, os.MFD_HUGE_1GB)]
    for flags in (0, *hugetlb):
        with suppress(OSError):
            fd = os.memfd_create("rtdebug", os.MFD_CLOEXEC | flags)
            yield os.fstat(fd).st_dev
            os.close(fd)
