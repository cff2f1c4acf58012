"""The command line of scripts/build-box."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from lab.box import NAME, build_box
from lab.cache import check_space
from lab.ending import ended
from lab.host import need_root, prepare_host

_NEEDED_BYTES = 6 << 30
"""The root file system, the disk, the image of it and the box."""


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """What the user asks for. argparse exits with 2 when it is wrong."""
    parser = argparse.ArgumentParser(
        prog="build-box",
        usage="scripts/build-box [FILE]",
        description="Makes a Vagrant box (libvirt) of Debian 12, with all that rtdebug needs already in it: "
        "for machines that cannot download a box, or whose virtual machines have no network.",
        epilog=f"Then: vagrant box add --name {NAME} FILE && RTDEBUG_BOX={NAME} vagrant up",
    )
    parser.add_argument("file", nargs="?", type=Path, default=Path("rtdebug-bookworm.box"), metavar="FILE")
    return parser.parse_args(arguments)


def main() -> int:
    """Run; returns the exit status."""
    options = parse_arguments(sys.argv[1:])
    return ended("build-box", lambda: run(options.file.absolute()))


def run(target: Path) -> int:
    """Build the box. Raises LabProblem."""
    need_root()
    check_space(target.parent, _NEEDED_BYTES)
    prepare_host("--vagrant")
    build_box(target)
    print(f"box: {target}\nbox: vagrant box add --name {NAME} {target} && RTDEBUG_BOX={NAME} vagrant up", flush=True)
    return 0
