from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
import yaml

from rtdebug.host import inside, mounts


def one(text):
    (mount,) = mounts.parse_mountinfo(text)
    return mount


def test_optional_fields_vary():
    base = "526 521 0:159 / /dev/shm rw,nosuid {} - tmpfs shm rw,size=131072k,inode64\n"
    plain = one("526 521 0:159 / /dev/shm rw,nosuid - tmpfs shm rw,size=131072k,inode64\n")
    for optional in ("shared:1868", "shared:7 master:3", "master:3 propagate_from:2 unbindable"):
        assert one(base.format(optional)) == plain
    assert plain.mount_point == "/dev/shm"
    assert plain.source == "shm"
    assert plain.options == {"rw": None, "nosuid": None}
    assert mounts.tmpfs_size_bytes(plain) == 128 << 20


def test_escapes_are_undone():
    mount = one(r"1 0 8:1 /a\040b /new\012line\134040 rw - ext4 /dev/x\011y rw" + "\n")
    assert (mount.root, mount.mount_point, mount.source) == ("/a b", "/new\nline\\040", "/dev/x\ty")


@pytest.mark.parametrize("separator", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028"])
def test_only_newline_ends_a_line(separator):
    """A container may mount onto a folder with any name: it must not forge a second line."""
    forged = f"/x{separator}9 0 0:9 / /dev/shm rw - tmpfs evil rw"
    text = f"1 0 0:5 / {forged.replace(' ', chr(92) + '040')} rw - tmpfs tmpfs rw\n"
    assert one(text).mount_point == forged


def test_lines_cut_short_are_left_out():
    text = "31 25 0:28 / /a rw - tmpfs tmpfs rw\n32 25 0:28 / /b rw -\n33 25\n\n34 25 0:28 / /c rw - tmpfs"
    assert [mount.mount_point for mount in mounts.parse_mountinfo(text)] == ["/a"]


def test_last_mount_covers_the_first():
    text = "1 0 0:1 / /dev/shm rw - tmpfs old rw\n2 0 0:2 / /dev/shm rw - tmpfs new rw\n"
    found = mounts.parse_mountinfo(text)
    covering = mounts.mount_at(found, "/dev/shm")
    assert covering is not None and covering.source == "new"
    assert mounts.mount_at(found, "/nowhere") is None


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("65536k", 64 << 20),
        ("8036328K", 8036328 << 10),
        ("2g", 2 << 30),
        ("17", 17),
        ("50%", None),
        ("", None),
    ],
)
def test_sizes(text, size_bytes):
    assert mounts.parse_size(text) == size_bytes


def test_size_of_a_tmpfs_without_size_is_unknown():
    assert mounts.tmpfs_size_bytes(one("1 0 0:1 / /dev/shm rw - tmpfs shm rw\n")) is None
    assert mounts.tmpfs_size_bytes(one("1 0 0:1 / /m rw - hugetlbfs none rw,size=4k\n")) is None


def test_case_095_shm_mountinfo_formats(cases):
    expected = yaml.safe_load((cases / "095-shm-mountinfo-formats.yaml").read_text())["expected"]["entries"]
    found = mounts.parse_mountinfo((cases / "095-shm-mountinfo-formats.txt").read_text())
    lines = [entry for entry in expected if "format" not in entry]
    assert len(found) == len(lines) == 3, "the mount(8) and df lines are not mountinfo"
    for mount, entry in zip(found, lines, strict=True):
        assert (mount.source, mount.fstype) == (entry["source"], entry["fstype"])
        assert mounts.tmpfs_size_bytes(mount) == entry["size_kb"] << 10


def test_own_mounts_are_read():
    assert any(mount.mount_point == "/proc" for mount in mounts.read_mountinfo())
    assert mounts.read_mountinfo(2**22 + 5) == ()


def test_dev_shm_agrees_with_statvfs():
    status = os.statvfs("/dev/shm")
    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="rtdebug-") as file:
        file.write(bytes(1 << 20))
        file.flush()
        usage = inside.read_dev_shm(os.getpid())
    assert usage is not None
    assert usage.size_bytes == status.f_blocks * status.f_frsize
    assert usage.used_bytes is not None and usage.used_bytes >= 1 << 20


def test_nothing_leads_out_of_the_root(tmp_path):
    """The same call that snapshots a container, on a root of ours: links and `..` end at that root."""
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (tmp_path / "secret").write_text("host")
    (root / "secret").write_text("inside")
    (root / "up").symlink_to("../../../secret")
    (root / "absolute").symlink_to("/secret")
    (root / "magic").symlink_to("/proc/self/cwd/pyproject.toml")
    (root / "proc").symlink_to("/proc")
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "proc/7/root").symlink_to(root)

    def read(path):
        with os.fdopen(inside.open_inside(7, path, os.O_RDONLY, tmp_path / "proc")) as file:
            return file.read()

    assert read("up") == read("absolute") == read("../secret") == read("/etc/../../secret") == "inside"
    for path in ("magic", "proc/self/exe", "missing"):
        with pytest.raises(OSError):
            read(path)


def test_dev_shm_of_something_else_is_none(tmp_path):
    """A folder that is no tmpfs of its own: whatever file system it lies on, mountinfo does not say tmpfs."""
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "root/dev/shm").mkdir(parents=True)
    (tmp_path / "proc/7/root").symlink_to(tmp_path / "root")
    (tmp_path / "proc/7/mountinfo").write_text("1 0 8:1 / / rw - ext4 /dev/sda rw\n")
    (tmp_path / "proc/self").symlink_to("/proc/self")
    assert inside.read_dev_shm(7, tmp_path / "proc") is None
    assert inside.read_dev_shm(8, tmp_path / "proc") is None


def test_paths_are_relative_to_a_parameter():
    assert mounts.read_mountinfo(proc=Path("/nonexistent")) == ()


def test_a_process_that_has_exited_has_no_mounts():
    """The kernel says EINVAL for one that its parent has not waited for."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    try:
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        with pytest.raises(OSError):
            Path(f"/proc/{child}/mountinfo").read_text()
        assert mounts.read_mountinfo(child) == ()
    finally:
        os.waitpid(child, 0)
