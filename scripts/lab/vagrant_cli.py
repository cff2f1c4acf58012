"""The command line of scripts/vagrant-test."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from lab import box
from lab.apart import EVERYTHING, run_apart
from lab.cache import check_space, keyed, lab_folder, locked, work_folder
from lab.ending import ended
from lab.host import CHECKOUT, need_root, prepare_host

_NEEDED_BYTES = 8 << 30
"""Building the box, then the box in Vagrant's and in libvirt's folder, and what the machine writes."""
_INSIDE = Path(__file__).with_name("vagrant-host")


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """What the user asks for. argparse exits with 2 when it is wrong."""
    parser = argparse.ArgumentParser(
        prog="vagrant-test",
        usage="scripts/vagrant-test [--fresh] [--timeout SECONDS]",
        description="Brings the Vagrantfile's machine up from a box made by scripts/build-box (libvirt, emulated "
        "processor, no network), traces a container in it, and destroys it. Takes 20 minutes or so.",
    )
    parser.add_argument("--fresh", action="store_true", help="build the box anew; else that of the last time is used")
    parser.add_argument("--timeout", type=float, default=5400, metavar="SECONDS", help="default: 5400")
    return parser.parse_args(arguments)


def main() -> int:
    """Run; returns the exit status."""
    options = parse_arguments(sys.argv[1:])
    return ended("vagrant-test", lambda: run(options.fresh, options.timeout))


def run(fresh: bool, timeout_s: float) -> int:
    """Build the box if there is none for this checkout, and test it. Raises LabProblem."""
    need_root()
    folder = lab_folder()
    check_space(folder, _NEEDED_BYTES)
    prepare_host("--vagrant")
    with locked(folder):
        file = keyed(folder, "box", [box.__file__, CHECKOUT / "pyproject.toml", CHECKOUT / "scripts/setup"], fresh)
        if not file.exists():
            box.build_box(file)
    with work_folder() as work:
        return run_apart([str(_INSIDE), str(work), str(CHECKOUT), str(file), box.NAME], timeout_s, EVERYTHING)
