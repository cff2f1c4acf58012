"""Traces of real containers: found by any name, followed from outside in, ended with them.

The witness is the container itself: `execute` makes a file in its /dev/shm by a process that enters it, which
says its own pid.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from rtdebug.host.cgroup import memory_cgroup_of
from tests.kernel.runtime_fixtures import Box, Runc, wait_for
from tests.kernel.tracer import Ended, Trace, rtdebug, wait_until
from tests.kernel.tracing import Script
from tests.kernel.workload import MIB, memory_cgroup

pytestmark = pytest.mark.kernel

RUNTIMES = ("docker", "containerd", "podman", "runc", "crun")
EXECUTE: dict[str, Callable[[Any, Box, str], str]] = {
    "docker": lambda docker, box, script: docker.call("exec", box.id, "sh", "-c", script),
    "podman": lambda podman, box, script: podman.call("exec", box.id, "sh", "-c", script),
    "containerd": lambda ctr, box, script: ctr.call(
        "tasks", "exec", "--exec-id", f"exec-{os.urandom(4).hex()}", box.id, "sh", "-c", script
    ),
    "runc": lambda runc, box, script: runc._call("exec", box.id, "sh", "-c", script),
    "crun": lambda crun, box, script: crun._call("exec", box.id, "sh", "-c", script),
}
STOP: dict[str, Callable[[Any, Box], object]] = {
    "docker": lambda docker, box: docker.call("stop", "--time", "5", box.id),
    "podman": lambda podman, box: podman.call("stop", "--time", "5", box.id),
    "containerd": lambda ctr, box: ctr.call("tasks", "kill", "--signal", "SIGKILL", box.id),
    "runc": lambda runc, box: runc._call("kill", box.id, "TERM"),
    "crun": lambda crun, box: crun._call("kill", box.id, "KILL"),
}


DAEMON = {"docker": "dockerd", "containerd": "containerd_daemon", "podman": "podman_with_image"}


@pytest.fixture(scope="session", params=RUNTIMES)
def runtime(request: pytest.FixtureRequest) -> str:
    if request.param in DAEMON:  # runs for the whole session: must be there before a test looks for leftovers
        request.getfixturevalue(DAEMON[request.param])
    return str(request.param)


@pytest.fixture
def host(runtime: str, request: pytest.FixtureRequest) -> Any:
    """The fixture of that runtime."""
    return request.getfixturevalue(runtime)


def start(runtime: str, host: Any) -> Box:
    name = f"rtdebug-tests2-{os.getpid()}-{os.urandom(3).hex()}"
    box: Box = host.start(name, memory_bytes=96 * MIB)
    return box


def make_file(runtime: str, host: Any, box: Box, name: str) -> int:
    """Make a file in its /dev/shm; returns the pid of the process that did it, as the container numbers it."""
    script = f"echo $$; exec dd if=/dev/zero of=/dev/shm/{name} bs=4096 count=1 2>/dev/null"
    return int(EXECUTE[runtime](host, box, script))


def opened(ended: Ended, name: str) -> dict[str, Any]:
    (line,) = [line for line in ended.events("shm_open") if line["path"] == f"/dev/shm/{name}"]
    return line


def test_by_every_name_its_owner_knows_it_by(runtime, host) -> None:
    box = start(runtime, host)
    cgroup = memory_cgroup_of(box.pid)
    short = box.id[: 12 if len(box.id) == 64 else -2]
    targets = [box.id, short, f"pid:{box.pid}", f"cgroup:{cgroup}", f"runc:{box.id}"]
    if runtime in ("docker", "podman"):
        targets += [box.name, f"{runtime}:{box.name}", f"{runtime}:{short}"]
    if runtime == "containerd":
        targets.append(f"containerd:{box.id}")
    with ExitStack() as stack:
        traces = [stack.enter_context(Trace(target, "-o", "json")) for target in targets]
        ns_pid = make_file(runtime, host, box, "witness")
        for trace in traces:
            trace.wait_for_output("/dev/shm/witness")
        ends = [trace.stop() for trace in traces]
    for target, ended in zip(targets, ends, strict=True):
        line = opened(ended, "witness")
        assert ended.returncode == 0, target
        assert line["container_id"] == box.id, target
        assert line["container_name"] == box.name, target
        assert line["runtime"] == runtime, target
        assert line["cgroup"] == cgroup, target
        assert (line["ns_pid"], line["comm"]) == (ns_pid, "dd"), target
        assert line["pid"] not in (ns_pid, box.pid), target
        assert line["created"] is True


def test_the_whole_host_knows_whose_process_it_is(runtime, host) -> None:
    """One container that was there before, and one that is started while the trace runs: known a moment later."""
    before = start(runtime, host)
    with Trace("--all", "--event", "shm_open", "-o", "json") as trace:
        make_file(runtime, host, before, "before")
        trace.wait_for_output("/dev/shm/before")
        after = start(runtime, host)
        wait_until(lambda: is_known(trace, runtime, host, after), "the new container is known", 10)
        ended = trace.stop()
    line = opened(ended, "before")
    assert (line["container_id"], line["container_name"], line["runtime"]) == (before.id, before.name, runtime)
    assert line["cgroup"] == memory_cgroup_of(before.pid)


def is_known(trace: Trace, runtime: str, host: Any, box: Box) -> bool:
    name = f"after-{os.urandom(4).hex()}"
    make_file(runtime, host, box, name)
    trace.wait_for_output(f"/dev/shm/{name}")
    (line,) = [line for line in map(json.loads, trace.stdout().splitlines()) if name in line["path"]]
    assert line["cgroup"] == memory_cgroup_of(box.pid)
    return (line["container_id"], line["container_name"], line["runtime"]) == (box.id, box.name, runtime)


def test_its_stop_ends_the_trace(runtime, host) -> None:
    box = start(runtime, host)
    with Trace(box.id, "-o", "json") as trace:
        make_file(runtime, host, box, "witness")
        STOP[runtime](host, box)
        ended = trace.wait()
    assert ended.returncode == 0
    assert opened(ended, "witness")["container_id"] == box.id
    assert ended.summary["lost_events"] == 0
    assert ended.summary["shared_memory"][0]["container_id"] == box.id


def test_kill_9_of_its_init_ends_the_trace(runc) -> None:
    box = runc.start()
    with Trace(box.id, "-o", "json") as trace:
        os.kill(box.pid, signal.SIGKILL)
        assert trace.wait().returncode == 0


def test_a_paused_container_is_traced_all_the_same(runc) -> None:
    box = runc.start()
    runc.pause(box)
    try:
        with Trace(box.id) as trace:
            assert trace.stop().returncode == 0
    finally:
        runc.resume(box)


def test_a_restart_is_followed_by_name(docker) -> None:
    box = start("docker", docker)
    with Trace(box.name, "--follow", "-o", "json") as trace:
        make_file("docker", docker, box, "first")
        docker.call("restart", "--time", "1", box.name)
        trace.wait_for("was started again")
        make_file("docker", docker, box, "second")
        trace.wait_for_output("/dev/shm/second")
        docker.call("stop", "--time", "1", box.name)
        ended = trace.stop()
    assert ended.returncode == 0
    assert {opened(ended, name)["container_id"] for name in ("first", "second")} == {box.id}


def test_another_container_of_the_same_name_is_followed(runc) -> None:
    box = runc.start()
    with Trace(box.id, "--follow", "-o", "json") as trace:
        make_file("runc", runc, box, "first")
        runc.remove(box)
        runc._call("run", "--detach", "--bundle", runc.folder / box.id, box.id)
        trace.wait_for("was started again")
        again = Box(box.id, None, runc._state(box.id)["pid"])
        make_file("runc", runc, again, "second")
        trace.wait_for_output("/dev/shm/second")
        ended = trace.stop()
    assert ended.returncode == 0
    assert again.pid != box.pid
    first, second = (opened(ended, name) for name in ("first", "second"))
    assert first["container_id"] == second["container_id"] == box.id
    assert first["cgroup"] == second["cgroup"]


def test_follow_waits_without_a_container_and_can_be_stopped(runc) -> None:
    box = runc.start()
    with Trace(box.id, "--follow", "-o", "json") as trace:
        runc.remove(box)
        with pytest.raises(AssertionError):
            wait_until(lambda: trace.process.poll() is not None, "it ends", 1.5)
        assert trace.stop().returncode == 0


# --- those that cannot be traced ---


def refused(target: str, *words: str) -> None:
    ended = rtdebug("trace", target)
    assert ended.returncode == 4, ended.stderr
    assert ended.stdout == b""
    assert "\nhint: " in ended.stderr
    for word in words:
        assert word in ended.stderr


def test_a_stopped_container(docker) -> None:
    box = start("docker", docker)
    docker.call("stop", "--time", "1", box.name)
    refused(box.name, "is stopped")
    refused(box.id[:12], "is stopped")


def test_a_container_that_has_just_exited(runc) -> None:
    box = runc.start(script="exit 0")
    wait_for(lambda: runc._state(box.id)["status"] == "stopped", "it has exited")
    refused(box.id, "is stopped")
    runc.remove(box)
    refused(box.id, f"no container {box.id!r}")


def test_an_ambiguous_beginning_of_an_id_lists_all(runc) -> None:
    beginning = f"rtdebug-tests2-{os.getpid()}-{os.urandom(3).hex()}"
    boxes = [runc.start(f"{beginning}-{letter}") for letter in "ab"]
    refused(beginning, "is ambiguous: 2 running containers", *(box.id for box in boxes))
    with Trace(boxes[0].id) as trace:
        assert trace.stop().returncode == 0


def test_a_near_miss_is_named(runc) -> None:
    box = runc.start()
    refused(box.id.replace("runc", "rucn"), "do you mean", box.id)


def test_a_process_of_another_container(runc) -> None:
    one, two = runc.start(), runc.start()
    ended = rtdebug("trace", one.id, "--pid", two.pid)
    assert ended.returncode == 4
    assert f"process {two.pid} is not in {one.id}" in ended.stderr


# --- what they may call things ---

NASTY = "a\nb\x1b[31m\x07\"'\\\u202e\x9b\U0001f980"


def test_hostile_names_of_a_container(runc: Runc, tmp_path) -> None:
    annotations = {
        "io.kubernetes.cri.container-type": "container", "io.kubernetes.cri.container-name": NASTY,
        "io.kubernetes.cri.sandbox-name": NASTY, "io.kubernetes.cri.sandbox-namespace": NASTY,
    }  # fmt: skip
    box = runc.start(annotations=annotations)
    file = tmp_path / "recording"
    with (
        Trace(box.id, "--record", file) as table,
        Trace(box.id, "-o", "json") as lines,
        Trace("--all", "--event", "shm_open") as whole,
    ):
        make_file("runc", runc, box, "witness")
        for trace in (table, lines, whole):
            trace.wait_for_output("/dev/shm/witness")
        ends = [trace.stop() for trace in (table, lines, whole)]
    for ended in (ends[0], ends[2], rtdebug("report", file)):
        safe(ended)
    assert {line["container_name"] for line in ends[1].events("shm_open")} == {NASTY}
    assert ends[1].stdout.isascii()


HOSTILE_PROCESS = r"""
name = b"\x1b]0;x\n\"\\\xff\x07"
_libc.prctl(15, name, 0, 0, 0)                      # PR_SET_NAME
for path in (b"a\nb\x1b[31m", b"\xff\xfe\x80", b"\"'\\", "\u202e\u2028\U0001f980".encode(), b"x" * 255, b"  ", b"-rf"):
    path = b"/dev/shm/rtdebug-" + path[:240]
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    os.unlink(path)
    os.close(os.memfd_create(path.decode(errors="surrogateescape")[:200]))
    memory = mmap.mmap(-1, 4096)
    memory.madvise(4)
say(done=True)
"""


@pytest.mark.parametrize("options", [(), ("--every-call",), ("--stack",)], ids=str)
def test_hostile_names_of_processes_and_files(options, tmp_path) -> None:
    file = tmp_path / "recording"
    with memory_cgroup(limit_bytes=256 * MIB) as cgroup:
        target = f"cgroup:{cgroup}"
        with (
            Script(HOSTILE_PROCESS, "a\nb", b"\x1b[2J\xff", cgroup=cgroup) as script,
            Trace(target, "--record", file, *options) as table,
            Trace(target, "-o", "json", *options) as lines,
        ):
            script.go()
            assert script.hear() == {"done": True}
            assert script.finish() == 0
            ends = [table.stop(), lines.stop()]
    for ended in (ends[0], rtdebug("report", file)):
        safe(ended)
    assert ends[1].stdout.isascii()
    assert ends[1].total("shm_unlink")["count"] == 7
    assert ends[1].total("shm_open")["count"] == 7
    for line in ends[1].events("shm_open"):
        assert bytes.fromhex(line["comm_hex"]) == b'\x1b]0;x\n"\\\xff\x07'


def safe(ended: Ended) -> None:
    """No control character but the newlines of its lines reaches the terminal, and each line begins as it should."""
    text = ended.stdout.decode() + ended.stderr
    assert "Traceback" not in text
    assert all(character == "\n" or character.isprintable() for character in text), repr(text)
    assert not [line for line in text.splitlines() if line.startswith("b\\x1b")]
