"""The programs of the host that the lab runs: installed when they are missing, as scripts/setup does."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from lab.problem import LabProblem

PROGRAMS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "busybox": "busybox-static",
    "depmod": "kmod",
    "mkfs.ext4": "e2fsprogs",
    "setpriv": "util-linux",
    "dpkg-deb": "dpkg",
}
"""Program -> Debian's package that has it."""
_PATH = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"


def missing_packages(search_path: str = _PATH) -> list[str]:
    """Packages whose programs are not found."""
    return [package for program, package in PROGRAMS.items() if shutil.which(program, path=search_path) is None]


def prepare_host(checkout: Path) -> None:
    """Install what is missing, and make the checkout's .venv. Raises LabProblem when that cannot be done here."""
    if os.uname().machine != "x86_64":
        raise LabProblem(f"the lab boots x86-64 kernels only, and this is {os.uname().machine}")
    packages = missing_packages()
    if packages:
        install = ["apt-get", "install", "--yes", "--no-install-recommends", *packages]
        if os.geteuid() != 0 or shutil.which("apt-get") is None:
            raise LabProblem(f"missing: {', '.join(packages)}; as root: {' '.join(install)}")
        for command in (["apt-get", "update", "-qq"], install):
            _run(command)
    _run([str(checkout / "scripts/setup"), "--test"])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise LabProblem(f"{' '.join(command)} fails: {done.stderr[-2000:].strip()}")
