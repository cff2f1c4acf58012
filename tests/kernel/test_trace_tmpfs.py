"""A tmpfs that is not /dev/shm (docker --tmpfs, an emptyDir in memory) is named by where the container sees it."""

from __future__ import annotations

import pytest

from tests.kernel.runtime_fixtures import IMAGE
from tests.kernel.tracing import Trace
from tests.kernel.workload import MIB

pytestmark = pytest.mark.kernel

NAME = "rtdebug-tmpfs"


def test_a_full_tmpfs_is_named_by_its_mount_point(docker) -> None:
    mount = ("--tmpfs", "/cache:size=2m")
    docker.call("run", "--detach", "--network", "none", "--name", NAME, *mount, IMAGE, "/bin/sleep", "600")
    with Trace(f"docker:{NAME}", "--event", "shm_full") as trace:
        docker.call("exec", NAME, "/bin/sh", "-c", "dd if=/dev/zero of=/cache/model bs=1M count=3; true")
        trace.wait_for("shm_full")
        trace.stop()
    full = trace.result.of("shm_full")[0]
    assert (full["path"], full["size_bytes"]) == ("/cache/model", 2 * MIB)
