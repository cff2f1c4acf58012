"""`rtdebug leaks watch` beside a recording: a container whose /dev/shm fills leaves its usual band, and stays there."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernel.runtime_fixtures import MIB, Runc, make_rootfs
from tests.kernel.workload import UNCOUNTED_BYTES

pytestmark = pytest.mark.kernel

SCRIPT = "while [ ! -e /dev/shm/go ]; do sleep 0.1; done; dd if=/dev/zero of=/dev/shm/big bs=1M count=41; sleep 600"
BEFORE_S, AFTER_S = 7, 5


def rtdebug(*arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "rtdebug", "leaks", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process, signal_number=None):
    if signal_number is not None:
        process.send_signal(signal_number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out


@pytest.fixture
def box(tmp_path):
    runc = Runc(tmp_path, make_rootfs(tmp_path / "rootfs"))
    try:
        yield runc.start(script=SCRIPT, memory_bytes=128 * MIB)
    finally:
        runc.close()


def test_a_jump_is_told_and_then_its_new_level(box, tmp_path):
    store = tmp_path / "store"
    record = ("record", box.id, "--store", store, "--interval", "200ms")
    ended(rtdebug(*record, "--duration", "1s"))  # a store to watch
    watch = rtdebug("watch", store, "--every", "500ms", "--window", "4s", "-o", "json")
    assert "Watching" in watch.stderr.readline()
    assert "What is usual is known of 0 of " in watch.stderr.readline()
    recording = rtdebug(*record, "--duration", f"{BEFORE_S + AFTER_S}s")
    assert "Recording" in recording.stderr.readline()
    with pytest.raises(subprocess.TimeoutExpired):
        recording.wait(BEFORE_S)
    Path(f"/proc/{box.pid}/root/dev/shm/go").touch()
    ended(recording)
    with pytest.raises(subprocess.TimeoutExpired):
        watch.wait(2)
    lines = [json.loads(line) for line in ended(watch, signal.SIGINT).splitlines()]
    shmem = [line for line in lines if line["event"] == "baseline" and line["kind"] == "shmem"]
    assert [line["state"] for line in shmem] == ["outside", "new level"]
    outside, level = shmem
    assert {outside["container_id"], level["container_id"]} == {box.id}
    assert outside["centre"] == 0
    assert outside["half_width"] == 4 * MIB
    assert 4 * MIB < outside["value"] <= 41 * MIB + 4096
    assert level["since"] == outside["time"] < level["time"]
    assert 41 * MIB - UNCOUNTED_BYTES <= level["furthest"] <= 41 * MIB + 4096
    assert {line["kind"] for line in lines if line["event"] == "baseline"} == {"shmem", "usage"}
