"""Real machines: a command runs in one, and nothing of one is left, however it ends. Needs a kernel in the cache."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab import cache, debian, kernels, machine
from lab.problem import LabProblem

VM_TEST = Path(__file__).parents[2] / "scripts/vm-test"
BOOT_S = 900


def cached_kernel() -> str | None:
    """The first kernel of the list that needs no download."""
    try:
        folder = cache.lab_folder()
    except LabProblem:
        return None
    for kernel in kernels.read_kernels():
        if (folder / "kernels" / kernel.name / "complete").exists():
            debian.find_unpacked(folder / "kernels" / kernel.name)
            return kernel.name
    return None


KERNEL = cached_kernel() if os.geteuid() == 0 and shutil.which(machine.QEMU) else None
REQUIRED = os.environ.get("RTDEBUG_LAB_TESTS") == "1"
pytestmark = pytest.mark.skipif(
    KERNEL is None and not REQUIRED, reason="no kernel in the lab's cache (scripts/vm-test 6.12 --run true)"
)


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The machine's shared folder is made below tmp_path: its name tells our QEMU from others."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    mounts = Path("/proc/self/mountinfo").read_text()
    yield
    assert machines(tmp_path) == []
    assert Path("/proc/self/mountinfo").read_text() == mounts


def machines(folder: Path) -> list[int]:
    """Pids of the machines that share a folder below `folder`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes()
        except OSError:
            continue
        if b"qemu-system" in command and os.fsencode(folder) in command:
            found.append(int(path.parent.name))
    return found


def wait_for_machine(folder: Path) -> int:
    deadline = time.monotonic() + 300
    while not (found := machines(folder)):
        assert time.monotonic() < deadline, "no machine was started"
        time.sleep(0.1)
    return found[0]


def test_a_command_runs_there_and_its_status_comes_back(tmp_path: Path):
    assert KERNEL
    script = 'echo "on $(uname -r)"; grep -c . /sys/fs/cgroup/cgroup.controllers; touch /etc/rtdebug-lab; exit 23'
    command = [VM_TEST, KERNEL, "--run", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BOOT_S, check=False)
    assert done.returncode == 23, done.stderr
    assert f"on {KERNEL}." in done.stdout
    assert not Path("/etc/rtdebug-lab").exists()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_an_interrupted_boot_leaves_no_machine(number: signal.Signals, tmp_path: Path):
    assert KERNEL
    with subprocess.Popen([VM_TEST, KERNEL, "--run", "sleep 1000"], stdout=subprocess.DEVNULL) as process:
        wait_for_machine(tmp_path)
        process.send_signal(number)
        if number == signal.SIGTERM:  # twice, as timeout(1) does
            process.send_signal(number)
        process.wait(120)
    deadline = time.monotonic() + 60
    while machines(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.1)
    expected = {signal.SIGINT: 130, signal.SIGKILL: -9}.get(number, 128 + number)
    assert process.returncode == expected
    if number != signal.SIGKILL:
        assert list(tmp_path.iterdir()) == []


def test_a_machine_that_dies_is_told_with_its_console(tmp_path: Path):
    assert KERNEL
    with subprocess.Popen([VM_TEST, KERNEL, "--run", "sleep 1000"], stderr=subprocess.PIPE, text=True) as process:
        os.kill(wait_for_machine(tmp_path), signal.SIGKILL)
        _, said = process.communicate(timeout=120)
    assert process.returncode == 3
    assert "vm-test: the guest did not finish; the end of its console:" in said


def test_a_guest_that_takes_too_long_is_turned_off(tmp_path: Path):
    assert KERNEL
    command = [VM_TEST, KERNEL, "--timeout", "1", "--run", "sleep 1000"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BOOT_S, check=False)
    assert done.returncode == 3
    assert "turned off after 1 s; --timeout gives it more" in done.stderr
