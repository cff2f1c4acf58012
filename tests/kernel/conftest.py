"""Rules of the kernel tests: they run as root or fail, and they leave nothing behind."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel import leftovers
from tests.kernel.runtime_fixtures import (  # noqa: F401
    containerd,
    containerd_daemon,
    crun,
    docker,
    dockerd,
    podman,
    podman_with_image,
    rootfs,
    runc,
)
from tests.kernel.shm_box import box, workload_rootfs  # noqa: F401

LOCK = Path("/run/lock/rtdebug-kernel-tests")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Without root: fail where kernel tests are asked for (scripts/test, CI), else skip."""
    if os.environ.get("RTDEBUG_EMULATED") and item.get_closest_marker("full_speed"):
        pytest.skip("takes an hour on an emulated processor")
    if os.geteuid() == 0 or item.get_closest_marker("kernel") is None:
        return
    if os.environ.get("RTDEBUG_KERNEL_TESTS") == "1" or os.environ.get("CI"):
        pytest.fail("kernel tests need root", pytrace=False)
    pytest.skip("kernel tests need root")


@pytest.fixture(scope="session", autouse=True)
def nothing_left_by_session() -> Iterator[None]:
    """Fail at the end of the session if something of ours is left on the host."""
    if os.geteuid() != 0:
        yield
        return
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        before = leftovers.snapshot()
        os.environ[leftovers.MARK] = leftovers.SESSION
        yield
        left = leftovers.left_since(before)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # another session runs at the same time: its things look like ours
            left = [line for line in left if line.startswith("process")]
    assert not left, "left behind by the kernel tests:\n" + "\n".join(left)


@pytest.fixture(autouse=True)
def nothing_left_by_test(nothing_left_by_session: None) -> Iterator[None]:
    """Fail the very test that leaves a process or a BPF object of ours."""
    if os.geteuid() != 0:
        yield
        return
    before = leftovers.ours()
    yield
    left = leftovers.left_since(before, look=leftovers.ours)
    assert not left, "left behind by this test:\n" + "\n".join(left)
