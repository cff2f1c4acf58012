"""Kernels before 5.11 count BPF memory against RLIMIT_MEMLOCK: tracing must not stop at the default of 64 KiB."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

import pytest

from rtdebug.host import bpf, trials

pytestmark = pytest.mark.kernel

_CHILD = """
import os, resource
from rtdebug.host import bpf
hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, hard))
bpf.lift_memlock_limit()
assert resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] in (hard, resource.RLIM_INFINITY)
os.close(bpf.create_map(bpf.MAP_TYPE_RINGBUF, 0, 0, 1 << 20, 0, "ring"))
"""


def test_a_ring_of_one_mib_can_be_made_under_the_default_limit() -> None:
    done = subprocess.run([sys.executable, "-c", _CHILD], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_limit_counts_where_the_kernel_charges_it() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, hard))
    try:
        if trials.memlock_is_charged():
            with pytest.raises(bpf.BpfError, match="ring"):
                os.close(bpf.create_map(bpf.MAP_TYPE_RINGBUF, 0, 0, 1 << 20, 0, "ring"))
        else:
            os.close(bpf.create_map(bpf.MAP_TYPE_RINGBUF, 0, 0, 1 << 20, 0, "ring"))
    finally:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (soft, hard))
