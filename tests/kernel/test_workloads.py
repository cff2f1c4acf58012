"""The workloads do what they say (witness: strace, the kernel), and the search for leftovers finds things."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernel import leftovers
from tests.kernel.workload import MIB, Workload, build, kill_count, memory_cgroup, run

pytestmark = pytest.mark.kernel


@pytest.mark.parametrize(
    ("command", "call", "count"),
    [
        pytest.param(["madvise", "23", "MADV_HUGEPAGE"], r"madvise\(.*, MADV_HUGEPAGE\)", 23, id="madvise"),
        pytest.param(["madvise", "7", "999"], r"madvise\(.*EINVAL", 7, id="madvise-fails"),
        pytest.param(["mmap", "29", "12288"], r"munmap\(.*, 12288\)", 29, id="munmap"),
        pytest.param(["mmap", "29", "12288"], r"mmap\(NULL, 12288,", 29, id="mmap"),
        pytest.param(["mmap", "31", "4096", "mremap"], r"mremap\(", 31, id="mremap"),
        pytest.param(["mmap", "11", "0", "fail"], r"mmap\(NULL, 0,.*EINVAL", 11, id="mmap-fails"),
        pytest.param(["shm_posix", "5", "4096"], r'openat\(.*"/dev/shm/.*O_CREAT', 5, id="shm_open"),
        pytest.param(["shm_posix", "5", "4096"], r'unlink\("/dev/shm/', 5, id="shm_unlink"),
        pytest.param(["shm_sysv", "13", "8192"], r"shmat\(", 13, id="shmat"),
        pytest.param(["memfd", "17", "4096"], r"memfd_create\(", 17, id="memfd_create"),
        pytest.param(["process_madvise", "19", "MADV_COLD"], r"process_madvise\(", 19, id="process_madvise"),
        pytest.param(["fork_exec", "3", "5", "7"], r"madvise\(.*, 4096, MADV_DONTNEED", 105, id="fork_exec"),
    ],
)
def test_the_number_of_calls_is_the_one_asked_for(
    command: list[str], call: str, count: int, tmp_path: Path
) -> None:
    log = tmp_path / "strace"
    strace = ["strace", "-f", "-e", "signal=none", "-o", str(log), str(build(command[0])), *command[1:]]
    subprocess.run(strace, check=True, capture_output=True)
    assert len(re.findall(call, log.read_text())) == count


def test_oom_is_killed_by_its_own_limit() -> None:
    with memory_cgroup(limit_bytes=24 * MIB) as cgroup:
        result = run("oom", 64 * MIB, cgroup=cgroup)
        kills = kill_count(cgroup)
    assert result.returncode == -signal.SIGKILL
    assert kills == 1
    assert "survived" not in [step.name for step in result.steps]


def test_oom_worker_dies_and_its_parent_survives() -> None:
    with memory_cgroup(limit_bytes=24 * MIB) as cgroup:
        result = run("oom", 64 * MIB, "shm", "worker", cgroup=cgroup)
    assert result.returncode == 0
    assert result.step("worker").values["signal"] == str(signal.SIGKILL.value)


def test_oom_below_the_limit_survives() -> None:
    with memory_cgroup(limit_bytes=64 * MIB) as cgroup:
        assert run("oom", 16 * MIB, cgroup=cgroup).returncode == 0


def in_small_tmpfs(*command: object) -> subprocess.CompletedProcess[str]:
    """Run in a mount namespace of its own, whose /dev/shm has 3 MiB."""
    script = 'mount -t tmpfs -o size=3m rtdebug-test-shm /dev/shm && exec "$@"'
    arguments = ["unshare", "--mount", "sh", "-c", script, "sh", *map(str, command)]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=30)


@pytest.mark.parametrize("mode", ["write", "fallocate"])
def test_shm_full_ends_with_enospc_at_the_size_of_the_tmpfs(mode: str) -> None:
    done = in_small_tmpfs(build("shm_full"), mode)
    assert f"{mode} length_bytes={3 * MIB} errno=ENOSPC" in done.stdout


def test_shm_full_by_touch_dies_of_sigbus() -> None:
    done = in_small_tmpfs(build("shm_full"), "touch")
    assert done.returncode == -signal.SIGBUS
    assert "survived" not in done.stdout


def test_shm_full_does_not_fill_the_hosts_own(tmp_path: Path) -> None:
    done = subprocess.run([build("shm_full"), "write", "/"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "larger than 1 GiB" in done.stderr


def test_sigbus_truncate_dies_of_sigbus(tmp_path: Path) -> None:
    result = run("sigbus_truncate", tmp_path)
    assert result.returncode == -signal.SIGBUS
    assert result.step("sigbus").values["file_length_bytes"] == str(os.sysconf("SC_PAGE_SIZE"))


def test_storm_counts_its_calls() -> None:
    result = run("storm", "getpid", 100_003)
    assert result.step("getpid").values["count"] == "100003"


def test_a_process_that_stays_is_found() -> None:
    before = leftovers.snapshot()
    with Workload("pause") as workload:
        left = leftovers.left_since(before, patience_s=0)
        assert [line for line in left if line.startswith(f"process {workload.pid}:")]
    assert not [line for line in leftovers.left_since(before) if line.startswith("process")]


def test_a_cgroup_that_stays_is_found() -> None:
    before = leftovers.snapshot()
    with memory_cgroup(limit_bytes=MIB) as cgroup:
        assert f"cgroup {cgroup}" in leftovers.left_since(before, patience_s=0)
    assert f"cgroup {cgroup}" not in leftovers.snapshot()


def test_shared_memory_that_stays_is_found() -> None:
    result = run("shm_posix", 1, 4096, "leak")
    path = Path("/dev/shm") / result.step("shm_open").values["name"]
    try:
        assert f"shared memory {path}" in leftovers.snapshot()
    finally:
        path.unlink()


HOLDER = r"""
import sys
from rtdebug.host import bpf
RETURN_0 = bytes([0xB7, *7 * [0], 0x95, *7 * [0]])
bpf.lift_memlock_limit()
program_fd = bpf.load_program(bpf.PROG_TYPE_RAW_TRACEPOINT, RETURN_0, "stays")
print("loaded", flush=True)
sys.stdin.read()
"""


def test_a_bpf_program_that_stays_is_found() -> None:
    before = leftovers.snapshot()
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "loaded\n"
        left = leftovers.left_since(before, patience_s=0)
        assert [line for line in left if line.startswith("BPF prog") and line.endswith(f"held by pid {holder.pid}")]
    assert not [line for line in leftovers.left_since(before) if line.startswith("BPF")]


def test_a_test_that_leaves_a_process_fails(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole check at work: a session of its own, with the conftest.py of the kernel tests."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    pytester.makepyfile(
        """
        import subprocess
        from tests.kernel.conftest import *  # noqa: F403

        def test_leaves_a_process():
            subprocess.Popen(["sleep", "5"], start_new_session=True)
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*left behind by this test:", "*process *: sleep 5*"])
