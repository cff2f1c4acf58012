"""`rtdebug shm --watch` on real containers: peaks, requests that found no room, advice; also where none may trace."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys

import pytest

from tests.kernel.runtime_fixtures import IMAGE, MIB, call
from tests.kernel.tracing import PATIENCE_S

pytestmark = pytest.mark.kernel

COMMAND = [sys.executable, "-m", "rtdebug", "shm", "--watch", "-o", "json"]


@pytest.fixture
def box(docker):
    """A container with 16 MiB of /dev/shm."""
    return docker.call(
        "run", "--detach", "--network", "none", "--shm-size", "16m", "--memory", "64m", IMAGE, "/bin/sleep", "600"
    ).strip()


class Watching:
    """A watch that runs; `until()` waits for a line of it, `end()` sends a signal and gives all its lines."""

    def __init__(self, *arguments, prefix=()):
        self._process = subprocess.Popen(
            [*prefix, *COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.first = self._process.stderr.readline()
        self._lines = []

    def until(self, condition):
        """Read lines up to one that meets the condition."""
        for text in self._process.stdout:
            self._lines.append(json.loads(text))
            if condition(self._lines[-1]):
                return
        pytest.fail("the watch ended before")

    def end(self, signal_number=signal.SIGINT):
        self._process.send_signal(signal_number)
        return self.wait()

    def wait(self):
        """Wait for its end."""
        with self._process as process:
            self._lines += map(json.loads, process.stdout)
            said = process.stderr.read()
            assert process.wait(PATIENCE_S) == 0, said
        return self._lines


def dev_shm(line):
    (found,) = [mount for mount in line["mounts"] if mount["path"] == "/dev/shm"]
    return found


def test_a_request_that_found_no_room_is_the_demand(docker, box):
    watching = Watching(box)
    assert "watching events and sizes" in watching.first
    fill = "dd if=/dev/zero of=/dev/shm/model bs=1M count=20; rm /dev/shm/model"
    docker.call("exec", box, "/bin/sh", "-c", fill)
    watching.until(lambda line: line["event"] == "shm_unlink")
    watching.until(lambda line: line["event"] == "shm_sample")
    lines = watching.end()
    assert {"shm_open", "shm_full", "shm_unlink", "shm_sample"} <= {line["event"] for line in lines}
    summary = lines[-1]
    assert summary["event"] == "shm_summary"
    shm = dev_shm(summary)
    # it was full for a moment only, and empty at the end: the event tells what no look saw
    assert (shm["used_bytes"], shm["times_full"]) == (0, 1)
    assert (shm["peak_bytes"], shm["demand_bytes"]) == (16 * MIB, 17 * MIB)
    (advice,) = [each for each in summary["advice"] if each["path"] == "/dev/shm"]
    assert (advice["size_bytes"], advice["enough"]) == (64 * MIB, False)
    assert "docker run --shm-size=64m" in advice["change"]
    assert any("raise that by" in reason for reason in advice["reasons"])


def test_who_made_it_is_seen_live(docker, box):
    watching = Watching(box)
    docker.call("exec", box, "/bin/sh", "-c", "dd if=/dev/zero of=/dev/shm/model bs=1M count=7")
    watching.until(lambda line: line["event"] == "shm_open")
    watching.until(lambda line: line["event"] == "shm_sample" and dev_shm(line)["used_bytes"] == 7 * MIB)
    summary = watching.end(signal.SIGTERM)[-1]
    (found,) = [each for each in summary["objects"] if each["name"] == "/dev/shm/model"]
    assert (found["creator"]["comm"], found["orphan"]) == ("dd", True)
    assert dev_shm(summary)["peak_bytes"] == 7 * MIB
    (advice,) = [each for each in summary["advice"] if each["path"] == "/dev/shm"]
    assert advice["size_bytes"] == 64 * MIB


def test_sizes_alone_where_none_may_trace(docker, box):
    if shutil.which("setpriv") is None:
        pytest.skip("not installed: setpriv")
    watching = Watching(box, prefix=("setpriv", "--bounding-set", "-bpf,-perfmon,-sys_admin"))
    assert "watching sizes only" in watching.first
    docker.call("exec", box, "/bin/sh", "-c", "dd if=/dev/zero of=/dev/shm/model bs=1M count=5")
    watching.until(lambda line: dev_shm(line)["used_bytes"] == 5 * MIB)
    lines = watching.end()
    assert {line["event"] for line in lines} == {"shm_sample", "shm_summary"}
    assert dev_shm(lines[-1])["peak_bytes"] == 5 * MIB


def test_it_ends_with_the_container(docker, box):
    watching = Watching(box)
    call("docker", "--host", f"unix://{docker.socket}", "kill", box)
    assert watching.wait()[-1]["event"] == "shm_summary"
