"""The command line of scripts/debian13-test."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from lab.apart import MOUNTS, run_apart
from lab.cache import check_space, keyed, lab_folder, locked, work_folder
from lab.cli import guest_command
from lab.ending import ended
from lab.host import CHECKOUT, need_root, prepare_host
from lab.root import add_wheels, make_root, setup_packages

SUITE, PYTHON = "trixie", "3.13"
_NEEDED_BYTES = 5 << 30
"""The root file system, and what the tests write into it."""
_INSIDE = Path(__file__).with_name("root-host")
_MORE = ("docker-cli", "ca-certificates", "procps", "iproute2", "util-linux", "libcap2-bin", "xz-utils")
"""What the tests use and Debian 12's packages bring along."""


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """What the user asks for. argparse exits with 2 when it is wrong."""
    parser = argparse.ArgumentParser(
        prog="debian13-test",
        usage="scripts/debian13-test [--run COMMAND] [--fresh] [--timeout SECONDS] [-- pytest arguments]",
        description="Runs the kernel tests on this kernel with Debian 13 around them: its bcc, Python and runtimes.",
    )
    parser.add_argument("--run", metavar="COMMAND", help="run this instead of the tests, with bash")
    parser.add_argument("--fresh", action="store_true", help="make Debian 13's root anew; else the last one is used")
    parser.add_argument("--timeout", type=float, default=3600, metavar="SECONDS", help="default: 3600")
    parser.add_argument("pytest", nargs="*", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main() -> int:
    """Run; returns the exit status."""
    options = parse_arguments(sys.argv[1:])
    return ended("debian13-test", lambda: run(guest_command(options), options.fresh, options.timeout))


def run(command: Sequence[str], fresh: bool, timeout_s: float) -> int:
    """Make the root if there is none for this checkout, and run the command in it. Raises LabProblem."""
    need_root()
    folder = lab_folder()
    check_space(folder, _NEEDED_BYTES)
    prepare_host("--vagrant")
    with locked(folder):
        root = keyed(folder, "debian13", [__file__, CHECKOUT / "pyproject.toml", CHECKOUT / "scripts/setup"], fresh)
        if not root.exists():
            build(root)
    with work_folder() as work:
        return run_apart([str(_INSIDE), str(work), str(root), str(CHECKOUT), *command], timeout_s, MOUNTS)


def build(root: Path) -> None:
    """Debian 13 with what scripts/setup --test wants, and rtdebug's requirements."""
    making = root.with_name(f"{root.name}.new")
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir()
    print("debian13: Debian's packages (a few minutes)", flush=True)
    make_root(making, SUITE, dict.fromkeys([*setup_packages("--test"), *_MORE]))
    print("debian13: what pip will install in it", flush=True)
    add_wheels(making, PYTHON, "dev")
    making.rename(root)
