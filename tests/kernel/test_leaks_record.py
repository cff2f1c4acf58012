"""`rtdebug leaks record` on real containers with real leakers, as its user runs it."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pytest

from rtdebug.leaks.site_maps import SAMPLE_BYTES
from rtdebug.leaks.store import read_series
from tests.conftest import ROOT
from tests.kernel.runtime_fixtures import Box, Docker, Runc, make_rootfs, wait_for
from tests.kernel.workload import MIB, UNCOUNTED_BYTES, memory_cgroup

pytestmark = pytest.mark.kernel

# Every step is made in a function of its own, with frame pointers, and as often as its name says.
SOURCE = r"""
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))

static char *map_bytes(size_t length)
{
	return mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

NOINLINE void leak_small(void)
{
	memset(malloc(5003), 1, 5003);
	__asm__ volatile("");
}

NOINLINE void give_back(void)
{
	char *memory = malloc(70001);

	memset(memory, 2, 70001);
	free(memory);
	__asm__ volatile("");
}

NOINLINE void leak_map(void)
{
	memset(map_bytes(3 << 20), 1, 3 << 20);
	__asm__ volatile("");
}

NOINLINE void unmap_all(void)
{
	munmap(map_bytes(7 << 20), 7 << 20);
	__asm__ volatile("");
}

NOINLINE void unmap_ends(void)
{
	char *memory = map_bytes(8 << 20);

	munmap(memory, 2 << 20);
	munmap(memory + (7 << 20), 1 << 20);
	__asm__ volatile("");
}

NOINLINE void unmap_unknown(void *memory)
{
	munmap(memory, 11 << 20);
	__asm__ volatile("");
}

int main(void)
{
	char *early = map_bytes(11 << 20);

	while (access("/tmp/go", F_OK))
		usleep(20000);
	for (int step = 0; step < 8000; step++) {
		leak_small();
		give_back();
		if (step < 13)
			leak_map();
		if (step < 17) {
			unmap_all();
			unmap_ends();
		}
	}
	unmap_unknown(early);
	fclose(fopen("/tmp/done", "w"));
	pause();
	return 0;
}
"""


@pytest.fixture(scope="module")
def glibc_rootfs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root file system with a C library of its own (another file than the host's), and the program above."""
    rootfs = make_rootfs(tmp_path_factory.mktemp("rtdebug-leaks") / "rootfs")
    compile_leaker(rootfs / "bin/leaker")
    compile_leaker(rootfs / "bin/blind", "-static", "-s")
    for line in subprocess.run(
        ["ldd", rootfs / "bin/leaker"], capture_output=True, text=True, check=True
    ).stdout.split():
        if line.startswith("/"):
            target = rootfs / line.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(line, target)
    return rootfs


def compile_leaker(program: Path, *options: str) -> None:
    flags = ("-O1", "-fno-builtin", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls")
    subprocess.run(["gcc", "-x", "c", *flags, "-o", program, *options, "-"], input=SOURCE.encode(), check=True)


@contextmanager
def recording(store: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """`rtdebug leaks record ...`, from the first sample on; ended by SIGTERM if it still runs."""
    process = subprocess.Popen(
        [sys.executable, "-m", "rtdebug", "leaks", "record", "--store", str(store), *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        before = ""
        for line in process.stderr:
            before += line
            if line.startswith("Recording"):
                break
        else:
            pytest.fail("it did not begin to record")
        yield process
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        stdout, stderr = process.communicate(timeout=60)
        process.said = before + stdout + stderr  # type: ignore[attr-defined]
        assert process.returncode in (0, -signal.SIGKILL), stderr
    finally:
        process.kill()
        process.wait()


def run_leaker(runc: Runc, rootfs: Path, program: str) -> Box:
    for name in ("go", "done"):
        (rootfs / "tmp" / name).unlink(missing_ok=True)
    return runc.start(rootfs=rootfs, script=f"exec {program}", memory_bytes=512 * MIB)


def let_it_leak(rootfs: Path) -> None:
    (rootfs / "tmp/go").touch()
    wait_for((rootfs / "tmp/done").exists, "the leaker", timeout_s=60)


def last_of(sites: pd.DataFrame, kind: str, function: str) -> pd.Series:
    """The last row of the one site that has that function in its stack."""
    of_kind = sites[(sites["kind"] == kind) & sites["stack"].notna()]
    found = of_kind[of_kind["stack"].astype(str).str.contains(f"\n{function}+", regex=False)]
    assert found["stack"].nunique() == 1, of_kind["stack"].unique().tolist()
    return found.iloc[-1]


def test_sites_of_a_leaker(runc: Runc, glibc_rootfs: Path, tmp_path: Path) -> None:
    box = run_leaker(runc, glibc_rootfs, "/bin/leaker")
    with recording(tmp_path / "store", box.id, "--interval", "500ms", "--stacks", "--malloc") as process:
        let_it_leak(glibc_rootfs)
        time.sleep(1.5)
    series = read_series([tmp_path / "store"])
    assert series.notes == ()
    sites = series.sites
    assert set(sites["container_id"]) == {box.id}
    assert set(sites["pid"]) == {box.pid}
    (identity,) = set(sites["identity"])
    assert identity.startswith("leaker-")
    assert identity in set(series.processes["identity"])

    leaked = last_of(sites, "mmap", "leak_map")
    assert (leaked["live_bytes"], leaked["allocations"], leaked["frees"]) == (13 * 3 * MIB, 13, 0)
    whole = last_of(sites, "mmap", "unmap_all")
    assert (whole["live_bytes"], whole["allocated_bytes"], whole["frees"]) == (0, 17 * 7 * MIB, 17)
    ends = last_of(sites, "mmap", "unmap_ends")
    assert (ends["live_bytes"], ends["freed_bytes"], ends["frees"]) == (17 * 5 * MIB, 17 * 3 * MIB, 34)
    unpaired = sites[sites["stack"].isna() & (sites["kind"] == "mmap")].iloc[-1]
    assert (unpaired["unpaired"], unpaired["freed_bytes"]) == (1, 11 * MIB)

    # samples: 8000 x 5003 bytes are 76 of them, 8000 x 70001 bytes 1068: 4 standard deviations
    leak = last_of(sites, "malloc", "leak_small")
    assert leak["live_bytes"] == leak["allocated_bytes"] == pytest.approx(8000 * 5003, rel=4 / 76**0.5)
    churn = last_of(sites, "malloc", "give_back")
    assert churn["live_bytes"] == 0
    assert churn["allocated_bytes"] == pytest.approx(8000 * 70001, rel=4 / 1068**0.5)
    touched = sites[(sites["kind"] == "fault") & sites["stack"].astype(str).str.contains("leak_map+", regex=False)]
    assert touched["live_bytes"].isna().all()

    frame = series.cgroups
    growth = frame["anon_bytes"].iloc[-1] - frame["anon_bytes"].iloc[0]
    assert growth > 8000 * 5003 + 13 * 3 * MIB
    assert set(frame["limit_bytes"]) == {512 * MIB}
    assert "1 container, 1 process" in process.said


ALLOCATIONS = r"""
#include <stdlib.h>
#include <unistd.h>

void *volatile keep;

#define CALLER(name, body) \
	__attribute__((noinline, noclone)) void name(void) { void *memory = 0; body; keep = memory; __asm__ volatile(""); }

CALLER(by_calloc, memory = calloc(3, 4001))
CALLER(by_realloc, memory = realloc(realloc(malloc(1001), 9001), 40009))
CALLER(by_posix_memalign, if (posix_memalign(&memory, 64, 7001)) abort())
CALLER(by_aligned_alloc, memory = aligned_alloc(64, 6400))

int main(int argc, char **argv)
{
	while (access(argv[1], F_OK))
		usleep(20000);
	for (int call = 0; call < 5000; call++) {
		by_calloc();
		by_realloc();
		by_posix_memalign();
		by_aligned_alloc();
	}
	unlink(argv[argc - 1]);
	pause();
}
"""
ALLOCATED_BYTES = {
    "by_calloc": 5000 * 12003,
    "by_realloc": 5000 * 40009,
    "by_posix_memalign": 5000 * 7001,
    "by_aligned_alloc": 5000 * 6400,
}


@pytest.mark.parametrize("compiler", ["gcc", "gcc -static", "musl-gcc", "musl-gcc -static"])
def test_every_way_to_allocate_with_every_c_library(tmp_path: Path, compiler: str) -> None:
    program, go = tmp_path / "program", tmp_path / "go"
    flags = ("-O1", "-fno-builtin", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls")
    command = [*compiler.split(), "-x", "c", *flags, "-o", program, "-"]
    subprocess.run(command, input=ALLOCATIONS.encode(), check=True)
    with subprocess.Popen([program, go]) as process:
        try:
            with recording(tmp_path / "store", f"pid:{process.pid}", "--interval", "500ms", "--malloc"):
                go.touch()
                wait_for(lambda: not go.exists(), "the program")
                time.sleep(1)
        finally:
            process.kill()
    sites = read_series([tmp_path / "store"]).sites
    assert set(sites["pid"]) == {process.pid}
    for function, allocated_bytes in ALLOCATED_BYTES.items():
        of_function = sites[sites["stack"].astype(str).str.contains(f"\n{function}+", regex=False)]
        live_bytes = of_function.drop_duplicates("stack", keep="last")["live_bytes"].sum()
        assert live_bytes == pytest.approx(allocated_bytes, rel=4 / (allocated_bytes / SAMPLE_BYTES) ** 0.5)


def test_a_program_that_shows_no_malloc_is_named(runc: Runc, glibc_rootfs: Path, tmp_path: Path) -> None:
    box = run_leaker(runc, glibc_rootfs, "/bin/blind")
    with recording(tmp_path / "store", box.id, "--interval", "500ms", "--malloc") as process:
        time.sleep(1.5)
    assert f"{box.id}: /bin/blind shows no malloc" in process.said


def test_neighbours_with_the_same_library_are_not_touched(runc: Runc, glibc_rootfs: Path, tmp_path: Path) -> None:
    """A uprobe lies in the file's page: only the target's mapping of it may be changed."""
    box = run_leaker(runc, glibc_rootfs, "/bin/leaker")
    other = run_leaker(runc, glibc_rootfs, "/bin/leaker")
    with recording(tmp_path / "store", box.id, "--interval", "500ms", "--malloc"):
        time.sleep(1.5)
        assert own_code(box.pid) > 0
        assert own_code(other.pid) == 0
    assert own_code(other.pid) == 0


def own_code(pid: int) -> int:
    """KiB of libc's code that the process has of its own: a breakpoint makes a copy."""
    total, in_code = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if "-" in line.split(" ")[0]:
            in_code = " r-xp " in line and "libc.so" in line
        elif in_code and line.startswith("Anonymous:"):
            total += int(line.split()[1])
    return total


def test_all_containers_with_names_and_restarts(docker: Docker, tmp_path: Path) -> None:
    box = docker.start("rtdebug-rec-web")
    try:
        with recording(tmp_path / "store", "--interval", "300ms") as process:
            time.sleep(1)
            docker.call("restart", "--time", "0", "rtdebug-rec-web")
            time.sleep(1)
            assert process.poll() is None
    finally:
        docker.remove(box)
    series = read_series([tmp_path / "store"])
    web = series.cgroups[series.cgroups["container_id"] == box.id]
    assert set(web["container_name"]) == {"rtdebug-rec-web"}
    assert web["image"].astype(str).str.contains("rtdebug-busybox").all()
    assert web["time_ns"].is_monotonic_increasing
    assert (web["shmem_bytes"] >= 23 * MIB - UNCOUNTED_BYTES).any(), "the container's shell fills its /dev/shm"
    shells = series.processes[(series.processes["container_id"] == box.id) & (series.processes["comm"] == "sh")]
    assert shells["start_time_ns"].nunique() == 2, "it was restarted"
    assert shells["identity"].nunique() == 1, "and is the same program"


def test_a_target_that_is_started_again_under_its_name_is_found(docker: Docker, tmp_path: Path) -> None:
    first = docker.start("rtdebug-rec-again")
    with recording(tmp_path / "store", "rtdebug-rec-again", "--interval", "300ms"):
        time.sleep(0.7)
        docker.remove(first)
        second = docker.start("rtdebug-rec-again")
        time.sleep(12)
    docker.remove(second)
    ids = read_series([tmp_path / "store"]).cgroups["container_id"].unique().tolist()
    assert ids == [first.id, second.id]


def test_killed_and_started_again(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with memory_cgroup(64 * MIB) as cgroup, subprocess.Popen(["sleep", "1000"]) as sleeper:
        try:
            (cgroup / "cgroup.procs").write_text(str(sleeper.pid))
            with recording(store, f"cgroup:/{cgroup.name}", "--interval", "50ms") as process:
                wait_for(lambda: any(path.stat().st_size for path in store.glob("cg*.arrows")), "the first flush")
                process.kill()
            before = read_series([store])
            assert len(before.cgroups) == 1
            with recording(store, f"cgroup:/{cgroup.name}", "--interval", "100ms", "--duration", "1s") as process:
                process.wait(30)
        finally:
            sleeper.kill()
    after = read_series([store])
    assert len(after.cgroups) >= len(before.cgroups) + 2
    assert {path.suffix for path in store.iterdir()} == {".parquet", ".lock"}
    assert set(after.processes["pid"]) == {sleeper.pid}
    assert after.processes["identity"].nunique() == 1


def test_the_summary_as_json_and_the_signal(tmp_path: Path) -> None:
    with (
        memory_cgroup(64 * MIB) as cgroup,
        recording(tmp_path / "store", f"cgroup:/{cgroup.name}", "--interval", "200ms", "-o", "json") as process,
    ):
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
        assert process.stdout is not None
        summary = json.loads(process.stdout.read())
    assert (summary["containers"], summary["processes"]) == (1, 0)
    assert summary["samples"] >= 3
    assert summary["cpu_ns"] > 0


def test_what_is_asked_for_wrongly(tmp_path: Path) -> None:
    def status(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "rtdebug", "leaks", "record", "--store", str(tmp_path / "s"), *arguments]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
        return done.returncode, done.stderr

    code, said = status("--malloc")
    assert (code, "name the containers" in said) == (2, True)
    code, said = status("no-such-container")
    assert (code, "no container 'no-such-container'" in said) == (4, True)
    assert not (tmp_path / "s").exists()


def test_a_store_that_is_full_is_an_error_at_the_end(runc: Runc, tmp_path: Path) -> None:
    words = ["leaks", "record", runc.start().id, "--store", tmp_path, "--interval", "500ms", "--duration", "2s"]
    record = " ".join(map(str, [sys.executable, "-m", "rtdebug", *words, "-o", "json"]))
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", f"mount -t tmpfs -o size=4k store {tmp_path} && exec {record}"],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    lost = json.loads(done.stdout)["lost_rows"]
    assert lost > 0
    assert f"rtdebug: {lost:,} rows are not in {tmp_path}" in done.stderr
    assert "cannot write to" in done.stderr and "Traceback" not in done.stderr
