"""What of the lab needs no virtual machine."""

from __future__ import annotations

import gzip
import lzma
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from lab import cache, cli, debian, initramfs, kernels, machine, table
from lab.problem import LabProblem

ROOT = Path(__file__).parents[2]
VM_TEST = ROOT / "scripts/vm-test"


def vm_test(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run scripts/vm-test as its user does."""
    command, everything = [VM_TEST, *arguments], {**os.environ, **environment}
    return subprocess.run(command, env=everything, capture_output=True, text=True, timeout=60, check=False)


# --- the list of kernels ---


def test_the_list_has_a_kernel_of_each_kind():
    found = kernels.read_kernels()
    assert [(kernel.name, kernel.suite) for kernel in found] == [
        ("5.10", "bullseye"),
        ("6.1", "bookworm"),
        ("6.12", "trixie"),
    ]
    assert all(kernel.purpose for kernel in found)


def test_comments_and_empty_lines_are_no_kernels():
    text = "# name suite\n\n7.1  duke  has a fifth wheel\n"
    assert kernels.parse_kernels(text) == (kernels.Kernel("7.1", "duke", "has a fifth wheel"),)


def test_an_unknown_kernel_is_told_with_those_there_are(tmp_path: Path):
    done = vm_test("4.19", RTDEBUG_LAB=str(tmp_path))
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "vm-test: no kernel '4.19' in the lab; it has 5.10, 6.1, 6.12\n"
    assert list(tmp_path.iterdir()) == []


# --- the command line ---


def test_what_follows_the_dashes_goes_to_pytest(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    options = cli.parse_arguments(["6.1", "--cgroup", "v1", "--", "-k", "oom"])
    assert (options.kernel, options.cgroup, options.pytest) == ("6.1", "v1", ["-k", "oom"])
    assert cli.guest_command(options)[-3:] == ["tests/kernel", "-k", "oom"]
    one = cli.parse_arguments(["6.1", "--", "tests/kernel/test_ring.py"])
    assert "tests/kernel" not in cli.guest_command(one)


@pytest.mark.parametrize("arguments", [[], ["--all", "6.1"], ["6.1", "--cgroup", "v3"], ["6.1", "--timeout", "soon"]])
def test_wrong_usage_ends_with_2(arguments: list[str]):
    done = vm_test(*arguments)
    assert done.returncode == 2
    assert "usage: scripts/vm-test" in done.stderr


# --- the cache ---


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path):
    (tmp_path / "file").touch()
    done = vm_test("6.1", RTDEBUG_LAB=str(tmp_path / "file/lab"))
    assert done.returncode == 3
    assert str(tmp_path / "file/lab") in done.stderr
    assert "RTDEBUG_LAB" in done.stderr


def test_a_full_disk_is_told_before_anything_is_downloaded(tmp_path: Path):
    with pytest.raises(LabProblem, match=r"has \d+ MiB left, and the lab needs \d+ MiB"):
        cache.check_space(tmp_path, needed_bytes=1 << 60)


def test_a_work_folder_goes_and_what_a_killed_run_left_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    locks = {"used": "locked\n", "locking": "", "locking-long-ago": "", "made": None, "made-long-ago": None}
    left = {name: tmp_path / f"rtdebug-lab-{name}" for name in locks}
    for name, text in locks.items():
        left[name].mkdir()
        if text is not None:
            (left[name] / "lock").write_text(text)
        if name.endswith("long-ago"):
            os.utime(left[name], (0, 0))
    with cache.work_folder() as first:
        assert {path for path in left.values() if path.exists()} == {left["locking"], left["made"]}
        with cache.work_folder() as second:
            assert first.is_dir()
            assert first != second
    assert set(tmp_path.iterdir()) == {left["locking"], left["made"]}


# --- all kernels ---


def test_a_kernel_that_cannot_boot_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def boot(kernel: kernels.Kernel, *_: object) -> machine.Ended:
        if kernel.name == "6.1":
            raise LabProblem("the mirror has none")
        return machine.Ended(0, "7.1\tkprobe\tmmap\t23\n")

    for name, replaced in (("test_kernel", boot), ("prepare_host", lambda _: None), ("need_root", lambda: None)):
        monkeypatch.setattr(cli, name, replaced)
    monkeypatch.setenv("RTDEBUG_LAB", str(tmp_path / "lab"))
    options = cli.parse_arguments(["--all", "--table", str(tmp_path / "table")])
    assert cli.run_lab(options) == 3
    said = capsys.readouterr()
    assert said.err == "vm-test: 6.1: the mirror has none\n"
    assert said.out == "lab: 5.10 passed, 6.1 3, 6.12 passed\n"
    assert "23" in (tmp_path / "table").read_text()


# --- Debian's packages ---


def test_the_mirror_is_that_of_the_hosts_own_release():
    text = "http://mirror.test/debian-security trixie-security\nhttp://mirror.test/debian trixie\n"
    assert debian.parse_mirror(text, "trixie") == "http://mirror.test/debian"
    assert debian.parse_mirror(text, "bookworm") is None
    security, main = debian.parse_sites(text + text + "http://mirror.test/x trixie2\nbroken\n", "trixie")
    assert (security[1], main) == ("trixie-security", ("http://mirror.test/debian", "trixie"))
    assert debian.parse_sites(text, "bookworm") == []
    assert debian.sources("http://mirror.test/debian", ["duke"]).endswith(" http://mirror.test/debian duke main\n")


@pytest.mark.parametrize(
    ("depends", "package"),
    [
        ("Depends: linux-image-5.10.0-37-amd64 (= 5.10.247-1)", "linux-image-5.10.0-37-amd64"),
        ("Depends: linux-image-6.12.63+deb13-amd64 (= 6.12.63-1)", "linux-image-6.12.63+deb13-amd64"),
        ("Depends: linux-image-6.1.0-9-cloud-amd64-x (= 6)", None),
        ("Package: linux-image-amd64", None),
    ],
)
def test_which_package_the_newest_kernel_is(depends: str, package: str | None):
    assert debian.image_package(depends) == package


@pytest.mark.parametrize("top", ["lib/modules", "usr/lib/modules"])
def test_an_unpacked_kernel_is_found_in_the_old_and_the_new_place(tmp_path: Path, top: str):
    (tmp_path / "boot").mkdir()
    (tmp_path / "boot/vmlinuz-7.1.0-amd64").touch()
    (tmp_path / top / "7.1.0-amd64").mkdir(parents=True)
    found = debian.find_unpacked(tmp_path)
    assert (found.release, found.modules) == ("7.1.0-amd64", tmp_path / top / "7.1.0-amd64")


def test_half_a_kernel_is_told(tmp_path: Path):
    with pytest.raises(LabProblem, match="does not hold one kernel"):
        debian.find_unpacked(tmp_path)


# --- the initial file system ---

DEP = """kernel/net/9p/9pnet.ko.xz:
kernel/fs/netfs/netfs.ko.xz:
kernel/fs/9p/9p.ko.xz: kernel/net/9p/9pnet.ko.xz kernel/fs/netfs/netfs.ko.xz
kernel/net/9p/9pnet_virtio.ko.xz: kernel/net/9p/9pnet.ko.xz
"""


def test_modules_load_after_what_they_need_and_once():
    order = initramfs.load_order(("virtio_pci", "9pnet_virtio", "9p"), initramfs.parse_depends(DEP))
    names = [initramfs.module_name(file) for file in order]
    assert sorted(names) == ["9p", "9pnet", "9pnet_virtio", "netfs"]  # virtio_pci is built in
    for before, after in (("9pnet", "9pnet_virtio"), ("9pnet", "9p"), ("netfs", "9p")):
        assert names.index(before) < names.index(after)


def test_modules_are_unpacked(tmp_path: Path):
    (tmp_path / "a.ko").write_bytes(b"\x7fELF")
    (tmp_path / "b.ko.xz").write_bytes(lzma.compress(b"\x7fELF"))
    assert {initramfs.module_content(path) for path in tmp_path.iterdir()} == {b"\x7fELF"}


@pytest.mark.skipif(shutil.which("busybox") is None, reason="busybox is the second witness")
def test_the_archive_is_one_that_busybox_reads(tmp_path: Path):
    entries = {"dir": (0o040755, b""), "dir/odd": (0o100644, b"12345"), "run": (0o100755, b"")}
    archive = initramfs.cpio(entries)
    subprocess.run(["busybox", "cpio", "-i"], input=archive, cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "dir/odd").read_bytes() == b"12345"
    assert os.access(tmp_path / "run", os.X_OK)
    assert not os.access(tmp_path / "dir/odd", os.X_OK)


@pytest.mark.skipif(shutil.which("busybox") is None, reason="busybox goes into it")
def test_an_initramfs_holds_init_and_the_modules_in_order(tmp_path: Path):
    (tmp_path / "modules.dep").write_text("9p.ko: 9pnet.ko\n9pnet.ko:\n")
    for name in ("9p.ko", "9pnet.ko"):
        (tmp_path / name).write_bytes(name.encode())
    initramfs.make_initramfs(tmp_path, tmp_path / "out")
    archive = gzip.decompress((tmp_path / "out").read_bytes())
    assert archive.index(b"modules/00-9pnet.ko") < archive.index(b"modules/01-9p.ko")
    assert initramfs.INIT.read_bytes() in archive


# --- the machine ---

KERNEL = debian.Unpacked("7.1.0-amd64", Path("/lab/vmlinuz"), Path("/lab/modules"))
MACHINE = machine.Machine(KERNEL, Path("/lab/initramfs"), Path("/checkout"))


def test_emulation_is_the_default_and_the_hosts_files_are_read_only():
    command = machine.qemu_command(MACHINE, Path("/shared"))
    assert "tcg" in command
    assert "-enable-kvm" not in command
    shares = [word for word in command if word.startswith("local,")]
    assert [("readonly=on" in share, ",path=/," in share) for share in shares] == [(True, True), (False, False)]
    assert "lab.cgroup=v2" in command[command.index("-append") + 1].split()


def test_kvm_only_when_asked_for():
    command = machine.qemu_command(machine.Machine(KERNEL, Path(), Path(), kvm=True), Path("/shared"))
    assert "-enable-kvm" in command
    assert "-icount" not in command


def test_hostile_arguments_reach_the_guest_as_they_are():
    words = ["pytest", "-k", "a or 'b'; $(reboot)\n"]
    script = machine.guest_script(words, {"NAME": "it's\n$HOME"})
    *_, last = script.split("exec ", 1)
    assert shlex.split(last) == words
    show = script.split("exec ")[0] + 'printf %s "$NAME"'
    done = subprocess.run(["bash", "-c", show], capture_output=True, text=True)
    assert done.stdout == "it's\n$HOME"


@pytest.mark.skipif(os.geteuid() != 0, reason="hides programs under a layer of its own")
def test_without_qemu_where_it_cannot_be_installed_it_is_told(tmp_path: Path):
    script = """set -e
        mount -t tmpfs layer "$1" && mkdir "$1/upper" "$1/work"
        mount -t overlay -o "lowerdir=/usr/bin,upperdir=$1/upper,workdir=$1/work" layer /usr/bin
        rm -f /usr/bin/qemu-system-x86_64 /usr/bin/apt-get
        exec "$0" 6.1"""
    command = ["unshare", "--mount", "sh", "-c", script, VM_TEST, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3, done.stderr
    assert done.stderr.startswith("vm-test: what it needs is not here:\nsetup: this is not Debian; please install")
    assert "  qemu-system-x86: boots other kernels" in done.stderr


def test_setup_names_what_the_lab_needs():
    listed = subprocess.run([ROOT / "scripts/setup", "--list", "--lab"], capture_output=True, text=True, check=True)
    assert {"qemu-system-x86", "python3-bpfcc"} <= set(listed.stdout.split())
    assert "libvirt-daemon-system" not in listed.stdout.split()


def test_without_kvm_it_is_told(tmp_path: Path):
    with pytest.raises(LabProblem, match="leave --kvm out"):
        machine.check_kvm(tmp_path / "kvm")


def test_the_console_of_a_machine_that_died_is_told_without_escape_sequences(tmp_path: Path):
    (tmp_path / "console").write_bytes(b"\x1b[31mKernel panic - not syncing\xff\r\n")
    assert machine.last_words(tmp_path) == "[31mKernel panic - not syncing\\xff"


# --- the table ---


def test_the_table_of_a_run():
    rows = [("7.1.0", "raw tracepoint", "madvise", "23"), ("6.9.9", "raw tracepoint", "madvise", "23")]
    rows.append(("7.1.0", "kprobe", "oom_kill: cgroup", "1"))
    text = table.render(table.parse_rows("".join("\t".join(row) + "\n" for row in rows)))
    assert "| event | 6.9.9 raw tracepoint | 7.1.0 kprobe | 7.1.0 raw tracepoint |" in text.splitlines()
    assert "| `madvise` | 23 | - | 23 |" in text.splitlines()
    assert "| `oom_kill: cgroup` | - | 1 | - |" in text.splitlines()
