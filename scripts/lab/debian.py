"""Kernels out of Debian's packages: downloaded with an apt of the lab's own and unpacked, not installed.

The mirror is the one that the host is configured for; other suites are asked of the same mirror.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from lab.call import call
from lab.kernels import Kernel
from lab.problem import LabProblem

_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_ARCHITECTURE = "amd64"


@dataclass(frozen=True, slots=True)
class Unpacked:
    """A kernel on disk."""

    release: str
    """As `uname -r` says it."""
    image: Path
    modules: Path
    """The folder of /lib/modules/<release>."""


def unpacked_kernel(kernel: Kernel, folder: Path, fresh: bool = False) -> Unpacked:
    """The newest kernel of the suite as the cache has it; downloaded if it has none, or if `fresh`.

    Raises LabProblem when the mirror has none, or does not answer.
    """
    target = folder / "kernels" / kernel.name
    if fresh or not (target / "complete").exists():
        _download(kernel, folder / "apt", target)
    return find_unpacked(target)


def find_unpacked(target: Path) -> Unpacked:
    """What lies in an unpacked package. Raises LabProblem when that is not one kernel."""
    images = list(target.glob("boot/vmlinuz-*"))
    if len(images) != 1:
        raise LabProblem(f"{target} does not hold one kernel: remove it, and it is downloaded again")
    release = images[0].name.removeprefix("vmlinuz-")
    # Debian 13 has no /lib of its own any more
    places = [target / top / release for top in ("lib/modules", "usr/lib/modules")]
    return Unpacked(release, images[0], next((place for place in places if place.is_dir()), places[0]))


def parse_mirror(text: str, codename: str) -> str | None:
    """The mirror of the host's own release, out of `apt-get indextargets` lines `SITE RELEASE`."""
    for line in text.splitlines():
        site, _, release = line.partition(" ")
        if release == codename:
            return site
    return None


def parse_sites(text: str, codename: str) -> list[tuple[str, str]]:
    """Sites and releases of one Debian, its updates and security included, out of the same lines."""
    pairs = dict.fromkeys(tuple(line.split(" ", 1)) for line in text.splitlines() if " " in line)
    return [(site, release) for site, release in pairs if release == codename or release.startswith(f"{codename}-")]


def image_package(depends: str) -> str | None:
    """The package that linux-image-amd64 stands for, out of its `Depends:`."""
    found = re.search(rf"\b(linux-image-\d[^\s(,]*-{_ARCHITECTURE})(?![\w.+-])", depends)
    return found[1] if found else None


def sources(mirror: str, suites: Iterable[str]) -> str:
    """Text of a sources.list."""
    return "".join(f"deb [arch={_ARCHITECTURE} signed-by={_KEYRING}] {mirror} {suite} main\n" for suite in suites)


class Apt:
    """An apt with lists, cache and sources of its own, and the host's way to the mirror."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for part in ("state/lists/partial", "cache/archives/partial", "parts"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        (folder / "status").touch()
        places = {
            "Dir::State": "state",
            "Dir::State::status": "status",
            "Dir::Cache": "cache",
            "Dir::Etc::sourcelist": "sources.list",
            "Dir::Etc::sourceparts": "parts",
        }
        self._options = [f"-o{name}={folder / place}" for name, place in places.items()]
        # as the user _apt it could not write below root's folders
        self._options += ["-oAPT::Sandbox::User=root", "-oAcquire::Languages=none"]

    def update(self, mirror: str, suite: str) -> None:
        """Read the suite's list of packages."""
        (self._folder / "sources.list").write_text(sources(mirror, [suite]), encoding="ascii")
        self.run("apt-get", "update", "-qq")

    def run(self, program: str, *arguments: str, cwd: Path | None = None) -> str:
        """Standard output of apt-get or apt-cache. Raises LabProblem with what it said."""
        return call(program, *self._options, *arguments, cwd=cwd)


def _download(kernel: Kernel, apt_folder: Path, target: Path) -> None:
    apt = Apt(apt_folder)
    apt.update(host_mirror(), kernel.suite)
    package = image_package(apt.run("apt-cache", "show", "--no-all-versions", f"linux-image-{_ARCHITECTURE}"))
    if package is None:
        raise LabProblem(f"the mirror's suite {kernel.suite} has no linux-image-{_ARCHITECTURE}")
    making = target.with_name(f"{target.name}.new")
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(parents=True)
    apt.run("apt-get", "download", "-qq", package, cwd=making)
    for archive in making.glob("*.deb"):
        call("dpkg-deb", "-x", archive, making)
        archive.unlink()
    unpacked = find_unpacked(making)
    call("depmod", "-b", unpacked.modules.parents[2], unpacked.release)
    (making / "complete").write_text(time.strftime(f"{package} %F\n"))
    shutil.rmtree(target, ignore_errors=True)
    making.rename(target)


def host_mirror() -> str:
    """The mirror of Debian that this host's apt uses. Raises LabProblem when it has none."""
    codename = re.search(r"^VERSION_CODENAME=(\S+)", Path("/etc/os-release").read_text(), re.MULTILINE)
    mirror = parse_mirror(_targets(), codename[1] if codename else "")
    if mirror is None:
        raise LabProblem("this host's apt has no Debian mirror: the lab takes its packages from there")
    return mirror


def host_sources(suite: str) -> str:
    """Text of a sources.list for a suite, as this host's apt has it; of another Debian, from the host's mirror."""
    sites = parse_sites(_targets(), suite) or [(host_mirror(), suite)]
    return "".join(sources(site, [release]) for site, release in sites)


def _targets() -> str:
    return call("apt-get", "indextargets", "--format", "$(SITE) $(RELEASE)", "Created-By: Packages")
