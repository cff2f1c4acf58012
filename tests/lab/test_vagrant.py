"""The Vagrantfile and the box, without a machine: scripts/vagrant-test brings one up."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tarfile
import time
from pathlib import Path

import pytest
from lab import apart, box, cache, root
from lab.problem import LabProblem

ROOT = Path(__file__).parents[2]


def program(name: str) -> str:
    """A missing program is a skip here, a failure in CI."""
    found = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if found is None and os.environ.get("CI"):
        pytest.fail(f"{name} is not installed (scripts/setup --test --vagrant)", pytrace=False)
    return found or pytest.skip(f"{name} is not installed (scripts/setup --test --vagrant)")


@pytest.mark.parametrize("name", [None, "rtdebug/bookworm"])
def test_vagrant_takes_the_vagrantfile(tmp_path: Path, name: str | None):
    environment = {**os.environ, "VAGRANT_HOME": str(tmp_path / "home"), "VAGRANT_DOTFILE_PATH": str(tmp_path / "dot")}
    environment |= {"VAGRANT_CHECKPOINT_DISABLE": "1"} | ({"RTDEBUG_BOX": name} if name else {})
    command = [program("vagrant"), "validate", "--no-tty"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "validated successfully" in done.stdout


# --- what goes into the box ---

PYPROJECT = """
[build-system]
requires = ["builder>=1"]
[project]
name = "thing"
dependencies = ["click>=8"]
[project.optional-dependencies]
small = ["arrow>=2"]
other = ["unwanted"]
all = ["thing[small,export]", "more"]
export = ["arrow>=2", "client"]
"""


def test_an_extra_brings_those_that_it_names():
    assert root.requirements(PYPROJECT, "all") == ["builder>=1", "editables", "click>=8", "more", "arrow>=2", "client"]
    assert "client" not in root.requirements(PYPROJECT, "small")


def test_the_projects_own_requirements_are_read():
    found = root.requirements((ROOT / "pyproject.toml").read_text(), "all")
    assert not [line for line in found if line.startswith("rtdebug")]
    assert [line for line in found if line.startswith("cffi")]


def test_setup_tells_what_the_box_needs():
    assert {"python3-bpfcc", "runc", "busybox-static"} <= set(root.setup_packages())
    assert "docker.io" not in root.setup_packages()


def test_without_vagrant_there_is_no_key(tmp_path: Path):
    with pytest.raises(LabProblem, match="is Vagrant installed"):
        box.insecure_key([f"{tmp_path}/*.pub"])


def test_the_archive_is_what_vagrant_takes(tmp_path: Path):
    (tmp_path / "box.img").write_bytes(b"disk")
    box.write_box(tmp_path / "box.img", tmp_path / "out.box")
    with tarfile.open(tmp_path / "out.box") as archive:
        assert archive.getnames() == ["metadata.json", "box.img"]
        metadata = archive.extractfile("metadata.json")
        assert metadata
        assert json.load(metadata) == {"provider": "libvirt", "format": "qcow2", "virtual_size": box.DISK_GIB}


def test_the_disk_has_a_partition_to_boot_and_the_root_file_system(tmp_path: Path):
    for each in ("sfdisk", "mkfs.fat", "mcopy", "syslinux", "mkfs.ext4"):
        program(each)
    made = tmp_path / "root"
    (made / "boot").mkdir(parents=True)
    for name in ("vmlinuz-7.1.0", "initrd.img-7.1.0"):
        (made / "boot" / name).write_bytes(name.encode() * 1000)
    disk = tmp_path / "disk"
    box.make_disk(made, disk, tmp_path)
    content = disk.open("rb").read(512)
    assert content[510:] == b"\x55\xaa"
    assert content[:440].strip(b"\0")
    dumped = subprocess.run([program("sfdisk"), "--dump", disk], capture_output=True, text=True, check=True).stdout
    partitions = [line for line in dumped.splitlines() if "start=" in line]
    assert [("bootable" in line, "type=83" in line) for line in partitions] == [(True, False), (False, True)]
    start = int(partitions[1].split("start=")[1].split(",")[0]) * 512
    listed = subprocess.run(
        ["debugfs", "-R", "ls -p /boot", f"{disk}?offset={start}"], capture_output=True, text=True, check=True
    )
    assert "/vmlinuz-7.1.0/" in listed.stdout


def test_a_root_with_two_kernels_is_refused(tmp_path: Path):
    with pytest.raises(LabProblem, match="should have one kernel, and has 2"):
        box.the_only([tmp_path / "a", tmp_path / "b"])


# --- what runs apart ---

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes namespaces")


@needs_root
def test_a_mount_and_a_daemon_end_with_the_command(tmp_path: Path):
    mounts = Path("/proc/self/mountinfo").read_text()
    pid = tmp_path / "pid"
    script = f"mount -t tmpfs x /mnt; setsid sleep 1000 & sed 's/ .*//' /proc/$!/stat; echo started >{pid}; exit 23"
    assert apart.run_apart(["bash", "-c", script], 20, apart.EVERYTHING) == 23
    assert pid.read_text() == "started\n"
    assert Path("/proc/self/mountinfo").read_text() == mounts


@needs_root
@pytest.mark.parametrize("namespaces", [apart.MOUNTS, apart.EVERYTHING])
def test_what_takes_too_long_is_turned_off_with_all_its_processes(tmp_path: Path, namespaces: tuple[str, ...]):
    script = f"exec -a 'sleep 1000 {tmp_path}' sleep 1000 & sleep 1000"
    with pytest.raises(LabProblem, match="turned off after 1 s"):
        apart.run_apart(["bash", "-c", script], 1, namespaces)
    assert subprocess.run(["pgrep", "--full", f"sleep 1000 {tmp_path}"], capture_output=True).stdout == b""


def cached_box() -> bool:
    try:
        return any(cache.lab_folder().glob("box-*"))
    except LabProblem:
        return False


def of_work_below(folder: Path) -> list[bytes]:
    """Command lines of processes that name a folder below `folder`."""
    listed = subprocess.run(["pgrep", "--list-full", "--full", f"{folder}/rtdebug-lab-"], capture_output=True)
    return listed.stdout.splitlines()


@needs_root
@pytest.mark.skipif(not cached_box(), reason="no box in the lab's cache (scripts/vagrant-test)")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_vagrant_test_leaves_no_daemon_and_no_machine(tmp_path: Path, number: signal.Signals):
    mounts = Path("/proc/self/mountinfo").read_text()
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([ROOT / "scripts/vagrant-test"], env=environment, stdout=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 300
        while not any(tmp_path.glob("rtdebug-lab-*/vagrant/boxes")):
            assert process.poll() is None
            assert time.monotonic() < deadline, "libvirt and Vagrant were not started"
            time.sleep(0.1)
        process.send_signal(number)
        process.wait(120)
    deadline = time.monotonic() + 60
    while of_work_below(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert of_work_below(tmp_path) == []
    assert Path("/proc/self/mountinfo").read_text() == mounts
    if number == signal.SIGTERM:
        assert process.returncode == 128 + number
        assert list(tmp_path.iterdir()) == []


def test_root_is_asked_for():
    command = ["setpriv", "--reuid=65534", "--clear-groups", ROOT / "scripts/vagrant-test"]
    if os.geteuid() != 0 or not os.access(ROOT, os.X_OK):
        pytest.skip("becomes another user")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (3, "vagrant-test: needs root\n")
