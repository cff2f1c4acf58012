"""The Vagrant box: Debian 12 on a disk that boots, with the packages that rtdebug needs already in it."""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Sequence
from pathlib import Path

from lab.cache import work_folder
from lab.call import call
from lab.debian import host_sources
from lab.problem import LabProblem
from lab.root import add_wheels, make_root, setup_packages

NAME = "rtdebug/bookworm"
"""What the box is called in Vagrant."""
SUITE, PYTHON = "bookworm", "3.11"
DISK_GIB = 4
_MIB = 1 << 20
_BOOT_START, _BOOT_MIB = 1 * _MIB, 127
_ROOT_START = _BOOT_START + _BOOT_MIB * _MIB
_LABEL = "rtdebug-root"
_MBR = Path("/usr/lib/syslinux/mbr/mbr.bin")
_KEYS = (
    "/usr/share/rubygems-integration/all/gems/vagrant-*/keys/vagrant.pub",
    "/opt/vagrant/embedded/gems/gems/vagrant-*/keys/vagrant.pub",
)
_SYSTEM = (
    *("linux-image-cloud-amd64", "systemd-sysv", "systemd-resolved", "udev", "dbus", "openssh-server"),
    *("sudo", "rsync", "iproute2", "ca-certificates", "procps", "less"),
)
"""What a machine has that Vagrant can bring up."""
_FILES = {
    "etc/hostname": "rtdebug\n",
    "etc/hosts": "127.0.0.1 localhost\n",
    "etc/fstab": f"LABEL={_LABEL} / ext4 noatime 0 1\n",
    "etc/systemd/network/80-dhcp.network": "[Match]\nName=en* eth*\n[Network]\nDHCP=yes\n",
    "etc/sudoers.d/vagrant": "vagrant ALL=(ALL) NOPASSWD: ALL\n",
    "etc/ssh/sshd_config.d/vagrant.conf": "UseDNS no\nPasswordAuthentication no\n",
}
_HOOKS = (
    'chroot "$1" useradd --create-home --shell /bin/bash vagrant',
    'chroot "$1" systemctl --quiet enable systemd-networkd ssh',
    'chroot "$1" systemctl --quiet mask apt-daily.timer apt-daily-upgrade.timer',
)
_SYSLINUX = f"""default rtdebug
timeout 1
label rtdebug
  linux /vmlinuz
  initrd /initrd.img
  append root=LABEL={_LABEL} rw net.ifnames=0 console=tty0 console=ttyS0
"""


def build_box(target: Path) -> None:
    """Write the box. Raises LabProblem."""
    key = insecure_key()
    with work_folder() as work:
        root, disk, image = work / "root", work / "disk", work / "box.img"
        print("box: Debian's packages (a minute or two)", flush=True)
        make_root(root, SUITE, dict.fromkeys([*_SYSTEM, *setup_packages()]), _HOOKS)
        fill_root(root, key)
        print("box: what pip will install in it", flush=True)
        add_wheels(root, PYTHON, "all")
        print("box: the disk", flush=True)
        make_disk(root, disk, work)
        call("qemu-img", "convert", "-O", "qcow2", "-c", disk, image)
        write_box(image, target)


def insecure_key(patterns: Sequence[str] = _KEYS) -> str:
    """The public key that every box has and that Vagrant replaces when it brings one up."""
    found = [path for pattern in patterns for path in Path("/").glob(pattern.lstrip("/"))]
    if not found:
        raise LabProblem("Vagrant's insecure public key is not found; is Vagrant installed?")
    return found[0].read_text(encoding="ascii")


def fill_root(root: Path, key: str) -> None:
    """Configure the system for Vagrant."""
    for name, text in {**_FILES, "etc/apt/sources.list": host_sources(SUITE)}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="ascii")
    (root / "etc/sudoers.d/vagrant").chmod(0o440)
    home = root / "home/vagrant"
    (home / ".ssh").mkdir(mode=0o700)
    (home / ".ssh/authorized_keys").write_text(key, encoding="ascii")
    owner = home.stat()
    for path in (home / ".ssh", home / ".ssh/authorized_keys"):
        os.chown(path, owner.st_uid, owner.st_gid)
    (root / "etc/machine-id").write_text("")


def make_disk(root: Path, disk: Path, work: Path) -> None:
    """A disk with two partitions: one that syslinux boots from, and the root file system. No mount is needed."""
    (work / "syslinux.cfg").write_text(_SYSLINUX, encoding="ascii")
    with disk.open("wb") as file:
        file.truncate(DISK_GIB << 30)
        file.write(_MBR.read_bytes()[:440])
    (work / "partitions").write_text(partitions(), encoding="ascii")
    call("sh", "-c", 'sfdisk --quiet "$0" <"$1"', disk, work / "partitions")
    call("mkfs.fat", f"--offset={_BOOT_START // 512}", "-F", "16", disk, str(_BOOT_MIB << 10))
    kernel, initrd = (the_only(root.glob(f"boot/{name}-*")) for name in ("vmlinuz", "initrd.img"))
    for source, name in ((kernel, "vmlinuz"), (initrd, "initrd.img"), (work / "syslinux.cfg", "syslinux.cfg")):
        call("mcopy", "-i", f"{disk}@@{_BOOT_START}", source, f"::{name}")
    call("syslinux", "--install", f"--offset={_BOOT_START}", disk)
    size_kib = ((DISK_GIB << 30) - _ROOT_START) >> 10
    call("mkfs.ext4", "-q", "-L", _LABEL, "-d", root, "-E", f"offset={_ROOT_START}", disk, f"{size_kib}k")


def partitions() -> str:
    """The partition table as sfdisk(8) reads it, in sectors of 512 bytes."""
    boot = f"start={_BOOT_START // 512}, size={_BOOT_MIB * _MIB // 512}, type=c, bootable"
    return f"label: dos\n{boot}\nstart={_ROOT_START // 512}, type=83\n"


def the_only(paths: object) -> Path:
    """The one path there is. Raises LabProblem when there are more, or none."""
    found = list(paths)  # type: ignore[call-overload]
    if len(found) != 1:
        raise LabProblem(f"the box should have one kernel, and has {len(found)}")
    return found[0]


def write_box(image: Path, target: Path) -> None:
    """The archive that `vagrant box add` takes: https://vagrant-libvirt.github.io/vagrant-libvirt/boxes.html."""
    metadata = image.with_name("metadata.json")
    metadata.write_text(json.dumps({"provider": "libvirt", "format": "qcow2", "virtual_size": DISK_GIB}))
    making = target.with_name(f"{target.name}.new")
    with tarfile.open(making, "w") as archive:
        for file in (metadata, image):
            archive.add(file, arcname=file.name)
    making.replace(target)
