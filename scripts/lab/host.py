"""What the lab needs on the host: installed by scripts/setup, which says what is missing where it cannot."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from lab.problem import LabProblem

CHECKOUT = Path(__file__).resolve().parents[2]


def prepare_host(option: str, checkout: Path = CHECKOUT) -> None:
    """Make the checkout's .venv with what the tests need, and install what `option` of scripts/setup stands for.

    Raises LabProblem when that cannot be done here.
    """
    if os.uname().machine != "x86_64":
        raise LabProblem(f"the lab boots x86-64 kernels only, and this is {os.uname().machine}")
    command = [str(checkout / "scripts/setup"), "--test", option]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise LabProblem(f"what it needs is not here:\n{done.stderr[-2000:].strip()}")


def need_root() -> None:
    """Raise LabProblem for anybody else."""
    if os.geteuid() != 0:
        raise LabProblem("needs root")
