"""The command line of scripts/vm-test."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from lab.cache import lab_folder, locked
from lab.debian import unpacked_kernel
from lab.ending import ended
from lab.host import CHECKOUT, need_root, prepare_host
from lab.initramfs import make_initramfs
from lab.kernels import Kernel, find_kernel, read_kernels
from lab.machine import GUEST_TABLE, Ended, Machine, check_kvm, run
from lab.problem import LabProblem
from lab.table import parse_rows, write_table

_PASSED_ON = ("RTDEBUG_CASES", "CI", "TERM", "COLUMNS", "LANG")


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """What the user asks for. argparse exits with 2 when it is wrong."""
    before, _, after = (list(part) for part in _split(arguments))
    parser = argparse.ArgumentParser(
        prog="vm-test",
        usage="scripts/vm-test (KERNEL | --all) [options] [-- pytest arguments]",
        description="Runs the kernel tests on another kernel, in a virtual machine on this host's file system.",
        epilog="Kernels: " + "; ".join(f"{kernel.name} ({kernel.purpose})" for kernel in read_kernels()),
    )
    parser.add_argument("kernel", nargs="?", metavar="KERNEL", help="a name of the list scripts/lab/kernels")
    parser.add_argument("--all", action="store_true", help="each kernel of the list, one after the other")
    parser.add_argument("--cgroup", choices=("v2", "v1", "hybrid"), default="v2", help="default: v2")
    parser.add_argument("--kvm", action="store_true", help="use /dev/kvm; else the processor is emulated")
    parser.add_argument("--run", metavar="COMMAND", help="run this instead of the tests, with bash")
    parser.add_argument("--fresh", action="store_true", help="download the newest kernel again")
    parser.add_argument("--table", type=Path, metavar="FILE", help="write what each way of attaching gave to FILE")
    parser.add_argument("--timeout", type=float, default=3600, metavar="SECONDS", help="default: 3600")
    options = parser.parse_args(before)
    if options.all == bool(options.kernel):
        parser.error("name a kernel, or --all")
    options.pytest = after
    return options


def _split(arguments: Sequence[str]) -> tuple[Sequence[str], Sequence[str], Sequence[str]]:
    if "--" not in arguments:
        return arguments, (), ()
    place = list(arguments).index("--")
    return arguments[:place], ("--",), arguments[place + 1 :]


def guest_command(options: argparse.Namespace) -> list[str]:
    """What runs in the guest."""
    if options.run:
        return ["bash", "-c", options.run]
    paths = [] if any(Path(word.partition("::")[0]).exists() for word in options.pytest) else ["tests/kernel"]
    return [".venv/bin/python", "-m", "pytest", "-p", "no:cacheprovider", *paths, *options.pytest]


def guest_environment(kvm: bool) -> dict[str, str]:
    """What the guest's tests are told."""
    passed_on = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    emulated = {} if kvm else {"RTDEBUG_EMULATED": "1"}
    return passed_on | emulated | {
        "HOME": "/root",
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "RTDEBUG_KERNEL_TESTS": "1",
        "RTDEBUG_ATTACH_TABLE": str(GUEST_TABLE),
    }


def test_kernel(kernel: Kernel, options: argparse.Namespace, folder: Path) -> Ended:
    """One kernel; raises LabProblem when it does not come to its tests."""
    with locked(folder):
        unpacked = unpacked_kernel(kernel, folder, options.fresh)
        initramfs = folder / "kernels" / kernel.name / "initramfs"
        make_initramfs(unpacked.modules, initramfs)
    print(f"lab: {kernel.name} ({unpacked.release}), cgroup {options.cgroup}", flush=True)
    began = time.monotonic()
    machine = Machine(unpacked, initramfs, CHECKOUT, options.cgroup, options.kvm, timeout_s=options.timeout)
    end = run(machine, guest_command(options), guest_environment(options.kvm))
    print(f"lab: {kernel.name} ended with status {end.status} after {time.monotonic() - began:.0f} s", flush=True)
    return end


def main() -> int:
    """Run; returns the exit status: that of the tests, the first bad one with --all, 3 when the lab cannot run."""
    options = parse_arguments(sys.argv[1:])
    return ended("vm-test", lambda: run_lab(options))


def run_lab(options: argparse.Namespace) -> int:
    """All that the user asks for. Raises LabProblem when the lab cannot run here, or its only kernel does not."""
    kernels = read_kernels()
    chosen = kernels if options.all else (find_kernel(options.kernel, kernels),)
    need_root()
    if options.kvm:
        check_kvm()
    folder = lab_folder()
    prepare_host("--lab")
    if not options.all:
        done = {chosen[0].name: test_kernel(chosen[0], options, folder)}
    else:
        done = {kernel.name: _or_problem(kernel, options, folder) for kernel in chosen}
        print("lab: " + ", ".join(f"{name} {end.status or 'passed'}" for name, end in done.items()), flush=True)
    if options.table:
        write_table((row for end in done.values() for row in parse_rows(end.table)), options.table)
    return next((end.status for end in done.values() if end.status), 0)


def _or_problem(kernel: Kernel, options: argparse.Namespace, folder: Path) -> Ended:
    """One of many kernels: the others are tested also when it cannot be."""
    try:
        return test_kernel(kernel, options, folder)
    except LabProblem as problem:
        print(f"vm-test: {kernel.name}: {problem}", file=sys.stderr, flush=True)
        return Ended(3, "")
