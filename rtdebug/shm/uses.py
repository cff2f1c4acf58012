"""Who uses shared memory, among all processes of the host.

A pod's containers share /dev/shm, a volume may be mounted twice, and a descriptor can be passed to anybody.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from rtdebug.host.fds import FileUses, internal_devices, read_file_uses
from rtdebug.host.mounts import read_mountinfo
from rtdebug.host.process import pids


def read_host_uses(device_ids: frozenset[int], proc: Path = Path("/proc")) -> FileUses:
    """The files of these file systems that any process but this one has open or mapped.

    It looks at every process of the host: for many containers it is asked once.
    """
    return read_file_uses((pid for pid in pids(proc) if pid != os.getpid()), device_ids, proc)


def shared_memory_devices(viewers: Iterable[int], proc: Path = Path("/proc")) -> frozenset[int]:
    """The st_dev of each tmpfs that these processes see, and of the kernel's own mounts behind memfds and SysV."""
    devices = {
        os.makedev(*map(int, mount.device.split(":")))
        for pid in viewers
        for mount in read_mountinfo(pid, proc)
        if mount.fstype == "tmpfs"
    }
    return internal_devices() | devices
