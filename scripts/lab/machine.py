"""The virtual machine: QEMU with this host's files below it, and nothing of it left afterwards."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lab.cache import work_folder
from lab.debian import Unpacked
from lab.problem import LabProblem

CgroupMode = Literal["v2", "v1", "hybrid"]
QEMU = "qemu-system-x86_64"
GUEST_TABLE = Path("/run/lab/table")
"""Where tests in the guest leave lines for the table."""
BOOT_S = 600
"""Twenty times what it takes on an idle host."""
_LAST_LINES = 25


@dataclass(frozen=True, slots=True)
class Machine:
    """What is booted, and how."""

    kernel: Unpacked
    initramfs: Path
    checkout: Path
    cgroup: CgroupMode = "v2"
    kvm: bool = False
    memory_mib: int = 3072
    timeout_s: float = 3600


def qemu_command(machine: Machine, shared: Path) -> list[str]:
    """QEMU's command line; `shared` is the folder that both sides write."""
    parameters = {
        "console": "ttyS0",
        "panic": "-1",
        "mitigations": "off",
        "random.trust_cpu": "on",
        # docker would ask for its profile, which a host without AppArmor lacks
        "apparmor": "0",
        "lab.checkout": machine.checkout,
        "lab.cgroup": machine.cgroup,
        "lab.modules": machine.kernel.modules,
    }
    # One processor: emulated ones take turns anyhow. An old model, without AVX, which libraries use where it is there:
    # to emulate it takes a fifth more time. It is the least that numpy and pyarrow run on (x86-64-v2). The emulated
    # clock goes by instructions (1 ns each): what runs in the guest, and its patience, does not feel the emulation.
    emulated = ["-accel", "tcg", "-cpu", "Nehalem", "-icount", "shift=0,sleep=on"]
    cpu = ["-enable-kvm", "-cpu", "host"] if machine.kvm else emulated
    return [
        # ends with us, also when we are killed
        *("setpriv", "--pdeathsig", "KILL", "nice", "-n", "10"),
        *(QEMU, "-machine", "q35", *cpu, "-smp", "1", "-m", f"{machine.memory_mib}M"),
        *("-nodefaults", "-no-user-config", "-display", "none", "-monitor", "none", "-no-reboot"),
        *("-kernel", str(machine.kernel.image), "-initrd", str(machine.initramfs)),
        *("-append", " ".join(f"{name}={value}" for name, value in parameters.items())),
        *("-serial", f"file:{shared / 'console'}", "-serial", "stdio"),
        *_share("host", Path("/"), "readonly=on"),
        *_share("lab", shared, "readonly=off"),
    ]


def _share(tag: str, folder: Path, access: str) -> list[str]:
    options = f"local,id={tag},path={folder},security_model=none,multidevs=remap,{access}"
    return ["-fsdev", options, "-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]


def guest_script(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """What the guest runs, as a shell script."""
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in environment.items())
    return f"{exports}exec {shlex.join(command)}\n"


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended in the guest."""

    status: int
    table: str
    """What it wrote to GUEST_TABLE."""


def run(machine: Machine, command: Sequence[str], environment: Mapping[str, str]) -> Ended:
    """Boot, run `command` in the checkout with its output on ours, turn off.

    Raises LabProblem when the machine does not get that far; the last lines of its console are in the text.
    """
    with work_folder() as shared:
        (shared / "command").write_text(guest_script(command, environment), encoding="utf-8")
        _run_qemu(machine, shared)
        table = shared / GUEST_TABLE.name
        try:
            status = int((shared / "status").read_text(encoding="ascii"))
            return Ended(status, table.read_text(encoding="utf-8") if table.exists() else "")
        except (OSError, ValueError) as error:
            raise LabProblem(f"the guest did not finish; the end of its console:\n{last_words(shared)}") from error


def check_kvm(kvm_device: Path = Path("/dev/kvm")) -> None:
    """Raise LabProblem when there is no hardware virtualisation for us."""
    if not os.access(kvm_device, os.R_OK | os.W_OK):
        raise LabProblem(f"{kvm_device} cannot be opened: leave --kvm out, and the processor is emulated")


def _run_qemu(machine: Machine, shared: Path) -> None:
    """Until it ends, or an exception ends us: then it is ended first."""
    command = qemu_command(machine, shared)
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stdout, stderr=subprocess.STDOUT)
    try:
        _wait(process, machine, shared)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _wait(process: subprocess.Popen[bytes], machine: Machine, shared: Path) -> None:
    """For its end. Raises LabProblem when it takes too long to boot, or in all."""
    began = time.monotonic()
    while True:
        try:
            process.wait(1)
            return
        except subprocess.TimeoutExpired:
            passed_s = time.monotonic() - began
        if passed_s > machine.timeout_s:
            raise LabProblem(f"the guest was turned off after {machine.timeout_s:g} s; --timeout gives it more")
        if passed_s > BOOT_S and not (shared / "booted").exists():
            hint = "; leave --kvm out, and the processor is emulated" if machine.kvm else ""
            raise LabProblem(f"the guest has not booted after {BOOT_S} s{hint}; its console:\n{last_words(shared)}")


def last_words(shared: Path) -> str:
    """The end of the kernel's console, fit for a terminal."""
    try:
        text = (shared / "console").read_text(encoding="utf-8", errors="backslashreplace")
    except OSError:
        return "(nothing)"
    printable = "".join(char if char.isprintable() or char == "\n" else "" for char in text)
    return "\n".join(printable.splitlines()[-_LAST_LINES:]) or "(nothing)"
