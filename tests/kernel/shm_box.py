"""A container with an object of each kind of shared memory, for the tests that look at them and remove them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.kernel.runtime_fixtures import MIB, Box, Runc, make_rootfs, wait_for
from tests.kernel.workload import build


@pytest.fixture(scope="module")
def workload_rootfs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root file system with the workload in it."""
    folder = make_rootfs(tmp_path_factory.mktemp("rtdebug-shm-rootfs"))
    shutil.copy(build("shm_objects"), folder / "bin/shm_objects")
    return folder


@pytest.fixture
def box(runc: Runc, workload_rootfs: Path) -> Box:
    """A container with an object of each kind; /dev/shm/left, /dev/shm/ready and a SysV segment are orphans."""
    box = runc.start(script="exec /bin/shm_objects", rootfs=workload_rootfs, memory_bytes=96 * MIB, shm_bytes=41 * MIB)
    wait_for(lambda: Path(f"/proc/{box.pid}/root/dev/shm/ready").exists(), "the workload")
    return box
