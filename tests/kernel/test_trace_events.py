"""Each kind of event: exact numbers of calls, every field, and a second witness outside rtdebug."""

from __future__ import annotations

import errno
import json
import mmap
import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.tracing import (
    PAGE,
    Event,
    Script,
    Trace,
    Traced,
    run_traced,
    script_traced,
    small_shm,
    target,
)
from tests.kernel.workload import MIB, Workload, memory_cgroup

pytestmark = pytest.mark.kernel

IDENTITY = ["time", "event", "container_id", "container_name", "runtime", "cgroup", "pid", "ns_pid", "tid", "comm"]
TIMED = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z")


@pytest.fixture
def cgroup() -> Iterator[Path]:
    with memory_cgroup(limit_bytes=256 * MIB) as folder:
        yield folder


# --- madvise and process_madvise ---


def test_madvise_calls_are_added_up(cgroup: Path) -> None:
    traced, said, pid = run_traced(cgroup, [], "madvise", 23, "MADV_DONTDUMP", 3 * PAGE)
    assert traced.returncode == 0
    assert traced.count("madvise") == 23
    line = traced.of("madvise")[0]
    assert list(line)[: len(IDENTITY)] == IDENTITY
    assert TIMED.fullmatch(line["time"])
    assert (line["pid"], line["comm"], line["cgroup"]) == (pid, "madvise", f"/{cgroup.name}")
    assert (line["advice"], line["errno"], line["failures"]) == ("MADV_DONTDUMP", None, 0)
    assert sum(event["length_bytes"] for event in traced.of("madvise")) == 23 * int(said["length_bytes"])
    assert traced.summary is not None
    assert traced.summary["advice"] == [
        {"advice": "MADV_DONTDUMP", "count": 23, "failures": 0, "length_bytes": 23 * 3 * PAGE}
    ]
    assert traced.summary["lost_events"] == 0


def test_madvise_calls_one_by_one(cgroup: Path) -> None:
    traced, said, pid = run_traced(cgroup, ["--every-call"], "madvise", 23, "MADV_DONTDUMP")
    lines = traced.of("madvise")
    assert len(lines) == 23
    assert {(line["address"], line["length_bytes"]) for line in lines} == {(int(said["address"], 16), PAGE)}
    assert {(line["pid"], line["tid"], line["ret"], line["errno"]) for line in lines} == {(pid, pid, 0, None)}
    times = [line["time"] for line in lines]
    assert times == sorted(times)


EVERY_ADVICE = """
outcomes = []
for advice in [*range(0, 31), 100, 101, 102, 103, 255, 256, 260, 999, -1]:
    if advice in (100, 101):  # MADV_HWPOISON, MADV_SOFT_OFFLINE: would take memory from the host
        continue
    area = mmap.mmap(-1, 2 * mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    address = ctypes.addressof(ctypes.c_char.from_buffer(area))
    for _ in range(3):
        outcomes.append([advice, call(MADVISE, address, mmap.PAGESIZE, advice)])
say(outcomes=outcomes)
""".replace("MADVISE", "28" if os.uname().machine == "x86_64" else "233")


def test_every_advice_has_its_name_and_its_result(cgroup: Path) -> None:
    from rtdebug.host.constants import MADV

    traced, said, _ = script_traced(EVERY_ADVICE, cgroup, "--every-call", "--event", "madvise")
    expected = Counter(
        (MADV.get(advice), errno.errorcode[-ret] if ret < 0 else None) for advice, ret in said["outcomes"]
    )
    seen = Counter(
        (line["advice"] if line["advice"] in MADV.values() else None, line["errno"])
        for line in traced.of("madvise")
        if line["length_bytes"] == PAGE
    )
    assert len(expected) > 20
    # what is no advice has no advice's name: 260 is not taken for 4, MADV_DONTNEED
    assert seen == expected


MADVISE_FAILS = """
import mmap
area = mmap.mmap(-1, 4 * mmap.PAGESIZE)
address = ctypes.addressof(ctypes.c_char.from_buffer(area))
unmapped = 1 << 44
results = [call(28, unmapped, 7 * mmap.PAGESIZE, 4) for _ in range(5)]
results += [call(28, address + 1, mmap.PAGESIZE, 4) for _ in range(7)]
say(results=results)
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="raw call numbers")
@pytest.mark.parametrize("every_call", [False, True])
def test_madvise_that_fails_says_why(cgroup: Path, every_call: bool) -> None:
    options = ["--event", "madvise", *(["--every-call"] if every_call else [])]
    traced, said, _ = script_traced(MADVISE_FAILS, cgroup, *options)
    assert said["results"] == [-errno.ENOMEM] * 5 + [-errno.EINVAL] * 7
    assert traced.count("madvise", errno="ENOMEM") == 5
    assert traced.count("madvise", errno="EINVAL") == 7
    assert traced.summary is not None
    assert traced.summary["failures"] == 12


@pytest.mark.parametrize("every_call", [False, True])
def test_process_madvise(cgroup: Path, every_call: bool) -> None:
    options = ["--every-call"] if every_call else []
    traced, said, pid = run_traced(cgroup, options, "process_madvise", 19, "MADV_COLD")
    assert said["failed"] == "0"
    assert traced.count("process_madvise", advice="MADV_COLD", errno=None, pid=pid) == 19
    assert sum(line["length_bytes"] for line in traced.of("process_madvise")) == 19 * 2 * PAGE
    if every_call:
        assert {line["target_pid"] for line in traced.of("process_madvise")} == {int(said["child_pid"])}


def test_process_madvise_that_fails(cgroup: Path) -> None:
    traced, said, _ = run_traced(cgroup, ["--every-call"], "process_madvise", 11, "MADV_HUGEPAGE")
    assert said["errno"] == "EINVAL"
    assert traced.count("process_madvise", errno="EINVAL", advice="MADV_HUGEPAGE") == 11


# --- mmap, munmap, mremap, brk ---


def test_mmap_and_munmap_are_added_up(cgroup: Path) -> None:
    traced, _, pid = run_traced(cgroup, [], "mmap", 29, 5 * PAGE)
    mapped = traced.of("mmap", prot=["PROT_READ", "PROT_WRITE"], flags=["MAP_PRIVATE", "MAP_ANONYMOUS"])
    assert sum(line["count"] for line in mapped) == 29
    assert sum(line["length_bytes"] for line in mapped) == 29 * 5 * PAGE
    assert traced.count("munmap", pid=pid) == 29
    assert sum(line["length_bytes"] for line in traced.of("munmap")) == 29 * 5 * PAGE


def test_mmap_and_munmap_one_by_one_agree(cgroup: Path) -> None:
    traced, _, _ = run_traced(cgroup, ["--every-call"], "mmap", 29, 5 * PAGE)
    mapped = [line["address"] for line in traced.of("mmap", length_bytes=5 * PAGE)]
    unmapped = [line["address"] for line in traced.of("munmap", length_bytes=5 * PAGE)]
    assert len(mapped) == 29
    assert sorted(mapped) == sorted(unmapped)
    assert {line["ret"] for line in traced.of("mmap")} == set(mapped)


MAPS = """
areas = []
for number in range(7):
    prot = [mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_WRITE][number % 2]
    areas.append(mmap.mmap(-1, (number + 3) * mmap.PAGESIZE, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS, prot))
say(done=True)
wait()
"""


def test_mmap_addresses_are_those_of_proc_maps(cgroup: Path) -> None:
    with Script(MAPS, cgroup=cgroup) as script, Trace(target(cgroup), "--every-call") as trace:
        script.go()
        script.hear()
        rows = [row.split() for row in Path(f"/proc/{script.pid}/maps").read_text().splitlines()]
        script.go()
        script.finish()
    found = {}
    for row in rows:
        start, end = (int(part, 16) for part in row[0].split("-"))
        found[start] = (end - start, row[1])
    lines = trace.result.of("mmap", flags=["MAP_SHARED", "MAP_ANONYMOUS"])
    assert [line["length_bytes"] for line in lines] == [(number + 3) * PAGE for number in range(7)]
    for line in lines:
        access = "rw-s" if "PROT_WRITE" in line["prot"] else "r--s"
        assert found[line["address"]] == (line["length_bytes"], access)


def test_mmap_that_fails(cgroup: Path) -> None:
    traced, said, _ = run_traced(cgroup, [], "mmap", 11, 0, "fail")
    assert said["failed"] == "11"
    assert traced.count("mmap", errno="EINVAL", failures=11, length_bytes=0) == 11


def test_mmap_out_of_address_space(cgroup: Path) -> None:
    text = """
failed = 0
for _ in range(13):
    try:
        mmap.mmap(-1, 1 << 47, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        failed += error.errno == errno.ENOMEM
say(failed=failed)
"""
    traced, said, _ = script_traced(text, cgroup, "--every-call", "--event", "mmap")
    assert said["failed"] == 13
    lines = traced.of("mmap", errno="ENOMEM")
    assert len(lines) == 13
    assert {(line["address"], line["length_bytes"], line["ret"]) for line in lines} == {
        (None, 1 << 47, -errno.ENOMEM)
    }


def test_mremap(cgroup: Path) -> None:
    traced, said, _ = run_traced(cgroup, ["--every-call"], "mmap", 31, PAGE, "mremap")
    lines = traced.of("mremap")
    assert [line["old_length_bytes"] for line in lines] == [number * PAGE for number in range(1, 32)]
    assert [line["length_bytes"] for line in lines] == [number * PAGE for number in range(2, 33)]
    assert lines[-1]["length_bytes"] == int(said["length_bytes"])
    # each call begins where the one before it ended
    assert [line["old_address"] for line in lines[1:]] == [line["address"] for line in lines[:-1]]
    assert {tuple(line["flags"]) for line in lines} == {("MREMAP_MAYMOVE",)}


def test_mremap_is_added_up(cgroup: Path) -> None:
    traced, _, _ = run_traced(cgroup, [], "mmap", 31, PAGE, "mremap")
    assert traced.count("mremap") == 31


def test_brk(cgroup: Path) -> None:
    traced, _, _ = run_traced(cgroup, ["--every-call"], "mmap", 17, 3 * PAGE, "brk")
    lines = traced.of("brk")
    assert len(lines) == 1 + 2 * 17  # the first only asks where the heap ends
    assert [line["length_bytes"] for line in lines[1:18]] == [3 * PAGE] * 17
    assert [line["length_bytes"] for line in lines[18:]] == [-3 * PAGE] * 17
    assert abs(lines[0]["length_bytes"]) < PAGE
    assert [line["ret"] - lines[0]["ret"] for line in lines[1:18]] == [n * 3 * PAGE for n in range(1, 18)]


def test_brk_is_added_up(cgroup: Path) -> None:
    traced, _, _ = run_traced(cgroup, ["--interval", "20ms"], "mmap", 17, 3 * PAGE, "brk")
    assert traced.count("brk") == 35
    assert abs(sum(line["length_bytes"] for line in traced.of("brk"))) < PAGE


# --- POSIX shared memory ---


def test_shm_posix(cgroup: Path) -> None:
    with (
        Workload("shm_posix", 5, 3 * PAGE, cgroup=cgroup) as workload,
        Trace(target(cgroup)) as trace,
    ):
        workload.go()
        done = workload.finish()
    traced = trace.result
    steps = [step.values for step in done.steps if step.name == "shm_open"]
    opened = traced.of("shm_open")
    assert [(line["path"], line["inode_id"]) for line in opened] == [
        (f"/dev/shm/{step['name']}", int(step["inode"])) for step in steps
    ]
    device = Path("/dev/shm").stat().st_dev
    for line in opened:
        assert {"O_RDWR", "O_CREAT", "O_EXCL"} <= set(line["flags"])
        assert (line["mode"], line["created"], line["length_bytes"]) == ("0600", True, 0)
        assert line["ret"] >= 0
        assert line["errno"] is None
        assert line["device_id"] == os.major(device) << 20 | os.minor(device)
    sized = traced.of("ftruncate", length_bytes=3 * PAGE, memfd=False, ret=0)
    assert [line["path"] for line in sized] == [line["path"] for line in opened]
    assert [line["inode_id"] for line in sized] == [line["inode_id"] for line in opened]
    assert [line["path"] for line in traced.of("shm_unlink", ret=0)] == [line["path"] for line in opened]
    assert traced.summary is not None
    assert traced.summary["shm_created"] == {"posix": 5, "sysv": 0, "memfd": 0}
    assert not [found for found in traced.summary["shared_memory"] if found["linked"]]


def test_shm_that_stays_is_there_and_known_as_linked(cgroup: Path) -> None:
    traced, _, pid = run_traced(cgroup, [], "shm_posix", 3, 7 * PAGE, "leak")
    paths = sorted(Path("/dev/shm").glob(f"rtdebug-posix-{pid}-*"))
    try:
        assert [(line["path"], line["inode_id"]) for line in traced.of("shm_open")] == [
            (str(path), path.stat().st_ino) for path in paths
        ]
        assert len(paths) == 3
        assert traced.summary is not None
        found = {memory["name"]: memory for memory in traced.summary["shared_memory"]}
        assert set(found) == {str(path) for path in paths}
        assert {memory["length_bytes"] for memory in found.values()} == {7 * PAGE}
        assert {memory["pid"] for memory in found.values()} == {pid}
    finally:
        for path in paths:
            path.unlink()


def shm_script(text: str) -> str:
    """Return a script that reports (name, inode) of what it opened, below a /dev/shm of its own."""
    return (
        """
opened = []
def note(fd, path):
    opened.append([os.fsencode(path).hex(), os.fstat(fd).st_ino])
    os.close(fd)
CREATE = os.O_CREAT | os.O_RDWR
HOW = (ctypes.c_uint64 * 3)(os.O_CREAT | os.O_RDWR | os.O_EXCL, 0o660, 0)
os.makedirs("/dev/shm/a/b/c/d")
"""
        + text
        + "\nsay(opened=opened)\n"
    )


def opened_paths(said: dict[str, Any]) -> list[tuple[bytes, int]]:
    return [(bytes.fromhex(path), inode) for path, inode in said["opened"]]


def path_bytes(event: Event) -> bytes:
    """Return the path's bytes, as the JSON line has them (render/jsonl.py)."""
    if "path_hex" in event:
        return bytes.fromhex(event["path_hex"])
    return str(event["path"]).encode()


WAYS = {
    "absolute": 'note(os.open("/dev/shm/x", CREATE), "/dev/shm/x")',
    "relative to the working directory": 'os.chdir("/dev/shm"); note(os.open("x", CREATE), "/dev/shm/x")',
    "relative to a directory's descriptor": """
fd = os.open("/dev/shm", os.O_RDONLY)
note(os.open("x", CREATE, dir_fd=fd), "/dev/shm/x")
""",
    "through a subdirectory": 'note(os.open("/dev/shm/a/x", CREATE), "/dev/shm/a/x")',
    "through four": 'note(os.open("/dev/shm/a/b/c/d/x", CREATE), "/dev/shm/.../c/d/x")',
    "through two": 'note(os.open("/dev/shm/a/b/x", CREATE), "/dev/shm/a/b/x")',
    "with dots": 'note(os.open("/dev/shm/../shm/./a/../x", CREATE), "/dev/shm/x")',
    "through a link from outside": """
import tempfile
with tempfile.TemporaryDirectory() as folder:
    os.symlink("/dev/shm/x", folder + "/link")
    note(os.open(folder + "/link", CREATE), "/dev/shm/x")
""",
    "by /proc/self/fd": """
fd = os.open("/dev/shm/x", CREATE); os.fstat(fd)
note(os.open(f"/proc/self/fd/{fd}", os.O_RDWR), "/dev/shm/x")
""",
    "name of 255 bytes": 'note(os.open("/dev/shm/" + 255 * "n", CREATE), "/dev/shm/" + 255 * "n")',
    "newline and escape": r'note(os.open("/dev/shm/a\n\x1b[31mb\rc", CREATE), "/dev/shm/a\n\x1b[31mb\rc")',
    "quotes and backslash": r"""note(os.open('/dev/shm/"\\u0041\'', CREATE), '/dev/shm/"\\u0041\'')""",
    "not UTF-8": r'note(os.open(b"/dev/shm/\xff\xfe\xc3(", CREATE), b"/dev/shm/\xff\xfe\xc3(")',
    "beyond ASCII": 'n = "/dev/shm/\U0001f40d\u2028\u202e"; note(os.open(n, CREATE), n)',
}


@pytest.mark.parametrize("way", WAYS)
def test_shm_open_by_any_way_has_the_real_path(cgroup: Path, way: str) -> None:
    traced, said, _ = script_traced(shm_script(WAYS[way]), cgroup, "--event", "shm_open", wrap=small_shm())
    (expected,) = opened_paths(said)
    lines = [line for line in traced.of("shm_open") if "O_DIRECTORY" not in line["flags"]]
    seen = [(path_bytes(line), line["inode_id"]) for line in lines if line["inode_id"] == expected[1]]
    assert expected in seen, lines
    assert set(seen) == {expected}


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="raw call numbers")
@pytest.mark.parametrize(
    ("opening", "flags", "mode"),
    [
        pytest.param("call(2, b'/dev/shm/x', 0o102, 0o640)", {"O_RDWR", "O_CREAT"}, "0640", id="open"),
        pytest.param("call(85, b'/dev/shm/x', 0o604)", {"O_WRONLY", "O_CREAT", "O_TRUNC"}, "0604", id="creat"),
        pytest.param(
            "call(257, -100, b'/dev/shm/x', 0o1102, 0o600)", {"O_RDWR", "O_CREAT", "O_TRUNC"}, "0600", id="openat"
        ),
        pytest.param(
            "call(437, -100, b'/dev/shm/x', ctypes.addressof(HOW), 24)",
            {"O_RDWR", "O_CREAT", "O_EXCL"},
            "0660",
            id="openat2",
        ),
    ],
)
def test_shm_open_by_any_call(cgroup: Path, opening: str, flags: set[str], mode: str) -> None:
    script = shm_script(f"note({opening}, '/dev/shm/x')")
    traced, said, _ = script_traced(script, cgroup, "--event", "shm_open", wrap=small_shm())
    ((path, inode),) = opened_paths(said)
    line = traced.one("shm_open", path=path.decode())
    assert (line["inode_id"], line["created"], line["mode"]) == (inode, True, mode)
    assert flags <= set(line["flags"])


def test_shm_open_of_what_exists_does_not_create(cgroup: Path) -> None:
    text = """
with open("/dev/shm/x", "wb") as file:
    file.write(b"x" * 12345)
note(os.open("/dev/shm/x", CREATE), "/dev/shm/x")
note(os.open("/dev/shm/x", os.O_RDONLY), "/dev/shm/x")
"""
    traced, _, _ = script_traced(shm_script(text), cgroup, "--event", "shm_open", wrap=small_shm())
    lines = traced.of("shm_open", path="/dev/shm/x")
    assert [line["created"] for line in lines] == [True, False, False]
    assert [line["length_bytes"] for line in lines] == [0, 12345, 12345]
    assert lines[2]["mode"] is None


def test_shm_calls_that_fail(cgroup: Path) -> None:
    text = """
def fails(function, *arguments, **named):
    try:
        function(*arguments, **named)
    except OSError as error:
        return errno.errorcode[error.errno]
note(os.open("/dev/shm/x", CREATE), "/dev/shm/x")
results = [fails(os.open, "/dev/shm/missing", os.O_RDWR), fails(os.open, "/dev/shm/x", CREATE | os.O_EXCL),
           fails(os.unlink, "/dev/shm/missing"), fails(os.open, "/dev/shm/" + 256 * "n", CREATE),
           fails(os.open, "/dev/shm/a", os.O_RDWR)]
os.chdir("/dev/shm")
results += [fails(os.open, "absent", os.O_RDWR), fails(os.unlink, "absent"), fails(os.open, "/tmp/rtdebug-absent", 0)]
say(results=results)
"""
    traced, said, _ = script_traced(
        shm_script(text), cgroup, "--event", "shm_open", "--event", "shm_unlink", wrap=small_shm()
    )
    assert said["results"] == [
        "ENOENT", "EEXIST", "ENOENT", "ENAMETOOLONG", "EISDIR", "ENOENT", "ENOENT", "ENOENT",
    ]
    failed = [(line["event"], line["path"][:20], line["errno"]) for line in traced.events if line["errno"]]
    assert failed == [
        ("shm_open", "/dev/shm/missing", "ENOENT"),
        ("shm_open", "/dev/shm/x", "EEXIST"),
        ("shm_unlink", "/dev/shm/missing", "ENOENT"),
        ("shm_open", "/dev/shm/" + 11 * "n", "ENAMETOOLONG"),
        ("shm_open", "/dev/shm/a", "EISDIR"),
        ("shm_open", "/dev/shm/absent", "ENOENT"),
        ("shm_unlink", "/dev/shm/absent", "ENOENT"),
    ]
    assert {line["length_bytes"] for line in traced.events if line["errno"]} == {None}
    assert {line["inode_id"] for line in traced.events if line["errno"]} == {None}


def test_shm_unlink_by_any_way(cgroup: Path) -> None:
    text = """
for name in ("1", "2", "3", "a/4", "5\\n"):
    os.close(os.open("/dev/shm/" + name, CREATE))
os.unlink("/dev/shm/1")
os.chdir("/dev/shm/a")
os.unlink("../2")
fd = os.open("/dev/shm", os.O_RDONLY)
os.unlink("3", dir_fd=fd)
os.unlink("4")
os.unlink(b"/dev/shm/5\\n")
"""
    traced, _, _ = script_traced(shm_script(text), cgroup, "--event", "shm_unlink", wrap=small_shm())
    assert [line["path"] for line in traced.of("shm_unlink", ret=0)] == [
        "/dev/shm/1", "/dev/shm/2", "/dev/shm/3", "/dev/shm/a/4", "/dev/shm/5\n",
    ]


def test_files_elsewhere_are_no_shared_memory(cgroup: Path, tmp_path: Path) -> None:
    text = f"""
os.chdir({str(tmp_path)!r})
os.mkdir("shm")
for path in ("x", "shm/y", "/dev/null"):
    fd = os.open(path, CREATE)
    if path != "/dev/null":
        os.ftruncate(fd, 4096)
        os.unlink(path)
"""
    traced, _, _ = script_traced(shm_script(text), cgroup, wrap=small_shm())
    assert not traced.of("shm_open", "shm_unlink", "ftruncate")


# --- memfds ---


def test_memfd(cgroup: Path) -> None:
    traced, _, _ = run_traced(cgroup, [], "memfd", 17, 5 * PAGE)
    made = traced.of("memfd_create", flags=["MFD_CLOEXEC"], errno=None)
    assert [line["path"] for line in made] == [f"/memfd:rtdebug-memfd-{number}" for number in range(17)]
    sized = traced.of("ftruncate", memfd=True, length_bytes=5 * PAGE)
    assert [(line["path"], line["inode_id"]) for line in sized] == [
        (line["path"], line["inode_id"]) for line in made
    ]
    assert traced.summary is not None
    assert traced.summary["shm_created"] == {"posix": 0, "sysv": 0, "memfd": 17}


MEMFDS = r"""
names = [b"plain", b"", b"n" * 249, b"a\nb\x1b[2J", b"\xff\xfe", b"memfd:twice", b"/x/../y"]
fds = [os.memfd_create(os.fsdecode(name), 0) for name in names]
failed = call(MEMFD_CREATE, b"x", 1 << 30)
say(failed=failed, found=[[name.hex(), os.fsencode(os.readlink(f"/proc/self/fd/{fd}")).hex(), os.fstat(fd).st_ino]
           for name, fd in zip(names, fds)])
""".replace("MEMFD_CREATE", "319" if os.uname().machine == "x86_64" else "279")


def test_memfd_names_are_those_of_proc_fd(cgroup: Path) -> None:
    traced, said, _ = script_traced(MEMFDS, cgroup, "--event", "memfd_create")
    links = [(bytes.fromhex(link).removesuffix(b" (deleted)"), inode) for _, link, inode in said["found"]]
    assert [(path_bytes(line), line["inode_id"]) for line in traced.of("memfd_create", errno=None)] == links
    assert said["failed"] == -errno.EINVAL
    assert traced.one("memfd_create", errno="EINVAL")["path"] == "/memfd:x"


# --- System V shared memory ---


SYSV = """
import ctypes
IPC_CREAT, IPC_EXCL, IPC_RMID, IPC_STAT = 0o1000, 0o2000, 0, 2
_libc.shmat.restype = ctypes.c_void_p
ids = [_libc.shmget(0x5eed + number, (number + 1) * 12345, IPC_CREAT | 0o640) for number in range(7)]
table = open("/proc/sysvipc/shm").read()
addresses = [_libc.shmat(shm_id, None, 0) for shm_id in ids]
maps = open("/proc/self/maps").read()
mapped = [f"{address:x}-" in maps for address in addresses]
detached = [_libc.shmdt(ctypes.c_void_p(address)) for address in addresses]
removed = [_libc.shmctl(shm_id, IPC_RMID, None) for shm_id in ids]
def fails(function, *arguments):
    ctypes.set_errno(0)
    function(*arguments)
    return errno.errorcode.get(ctypes.get_errno())
keep = _libc.shmget(0xabc, 4096, IPC_CREAT | 0o600)
failed = [fails(_libc.shmget, 0xdef, 4096, 0), fails(_libc.shmget, 0xabc, 4096, IPC_CREAT | IPC_EXCL),
          fails(_libc.shmat, 999999, None, 0), fails(_libc.shmdt, ctypes.c_void_p(mmap.PAGESIZE)),
          fails(_libc.shmctl, 999999, IPC_RMID, None)]
_libc.shmctl(keep, IPC_RMID, None)
say(ids=ids, table=table, addresses=addresses, mapped=mapped, detached=detached, removed=removed, failed=failed)
"""


def test_sysv_shared_memory(cgroup: Path) -> None:
    traced, said, _ = script_traced(SYSV, cgroup, wrap=["unshare", "--ipc"])
    assert (set(said["mapped"]), set(said["detached"]), set(said["removed"])) == ({True}, {0}, {0})
    rows = {int(row.split()[1]): row.split() for row in said["table"].splitlines()[1:]}
    got = traced.of("shmget", errno=None, mode="0640")
    # key and shmid and size of /proc/sysvipc/shm
    assert [(line["key"], line["shm_id"], line["length_bytes"]) for line in got] == [
        (int(rows[shm_id][0]), shm_id, int(rows[shm_id][3])) for shm_id in said["ids"]
    ]
    assert {tuple(line["flags"]) for line in got} == {("IPC_CREAT",)}
    attached = traced.of("shmat", errno=None)
    assert [(line["shm_id"], line["address"]) for line in attached] == list(
        zip(said["ids"], said["addresses"], strict=True)
    )
    assert [line["length_bytes"] for line in attached] == [(number + 1) * 12345 for number in range(7)]
    assert [line["address"] for line in traced.of("shmdt", ret=0)] == said["addresses"]
    removed = traced.of("shmctl", command="IPC_RMID", ret=0)
    assert [line["shm_id"] for line in removed[:7]] == said["ids"]
    assert len(removed) == 8
    assert said["failed"] == ["ENOENT", "EEXIST", "EINVAL", "EINVAL", "EINVAL"]
    assert [(line["event"], line["errno"]) for line in traced.events if line.get("errno")] == [
        ("shmget", "ENOENT"), ("shmget", "EEXIST"), ("shmat", "EINVAL"), ("shmdt", "EINVAL"), ("shmctl", "EINVAL"),
    ]
    failed = [line for line in traced.of("shmget") if line["errno"]]
    assert [(line["key"], line["shm_id"]) for line in failed] == [(0xDEF, None), (0xABC, None)]


def test_sysv_workload(cgroup: Path) -> None:
    traced, _, pid = run_traced(cgroup, [], "shm_sysv", 13, 2 * PAGE)
    for name in ("shmget", "shmat", "shmdt"):
        assert traced.count(name, pid=pid, errno=None) == 13, name
    assert traced.count("shmctl", command="IPC_RMID") == 13
    assert traced.summary is not None
    assert traced.summary["shm_created"] == {"posix": 0, "sysv": 13, "memfd": 0}


# --- a full tmpfs ---

FULL = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
fd = os.open("/dev/shm/full", os.O_CREAT | os.O_RDWR, 0o600)
def fails(function, *arguments):
    try:
        function(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]
os.posix_fallocate(fd, 0, 3 << 20)
os.lseek(fd, 0, os.SEEK_END)
{text}
status = os.statvfs("/dev/shm")
say(results=results, size=status.f_blocks * status.f_frsize, free=status.f_bfree * status.f_frsize,
    inode=os.fstat(fd).st_ino)
"""
FULL_BY = {
    "write": ("results = [fails(os.write, fd, b'x' * 7777)]", "write", 7777),
    "pwrite64": ("results = [fails(os.pwrite, fd, b'x' * 5555, 3 << 20)]", "pwrite64", 5555),
    "writev": ("results = [fails(os.writev, fd, [b'x' * 3333, b'y'])]", "writev", None),
    "fallocate": ("results = [fails(os.posix_fallocate, fd, 3 << 20, 9999)]", "fallocate", 9999),
    "sendfile": (
        """
source = os.memfd_create("source")
os.write(source, b"x" * 8888)
results = [fails(os.sendfile, fd, source, 0, 8888)]
""",
        "sendfile",
        8888,
    ),
}


@pytest.mark.parametrize("way", FULL_BY)
def test_shm_full_by_a_call(cgroup: Path, way: str) -> None:
    text, syscall, length_bytes = FULL_BY[way]
    traced, said, _ = script_traced(FULL.replace("{text}", text), cgroup, wrap=small_shm())
    assert said["results"] == ["ENOSPC"]
    line = traced.one("shm_full")
    assert (line["path"], line["syscall"], line["length_bytes"]) == ("/dev/shm/full", syscall, length_bytes)
    assert (line["size_bytes"], line["size_bytes"] - line["used_bytes"]) == (said["size"], said["free"])
    assert (line["inode_id"], line["by_fault"]) == (said["inode"], False)
    assert not traced.of("sigbus")
    assert traced.summary is not None
    assert traced.summary["shm_full"] == 1


@pytest.mark.parametrize("mode", ["write", "fallocate"])
def test_shm_full_workload(cgroup: Path, mode: str) -> None:
    traced, said, pid = run_traced_in_small_shm(cgroup, "shm_full", mode)
    assert said["errno"] == "ENOSPC"
    line = traced.one("shm_full", syscall=mode)
    assert line["path"] == f"/dev/shm/rtdebug-full-{pid}"
    assert line["size_bytes"] == int(said["length_bytes"]) == 3 * MIB
    # the kernel counts what a tmpfs uses per CPU, in batches of 32 pages (lib/percpu_counter.c)
    assert 0 <= line["size_bytes"] - line["used_bytes"] <= 32 * mmap.PAGESIZE * (os.cpu_count() or 1)


def run_traced_in_small_shm(cgroup: Path, name: str, *arguments: object) -> tuple[Traced, dict[str, str], int]:
    """Run a C workload in a traced cgroup, in a /dev/shm of 3 MiB."""
    from tests.kernel.workload import build

    command = json.dumps([str(build(name)), *map(str, arguments)])
    text = f"os.execv({str(build(name))!r}, {command})"
    with Script(text, cgroup=cgroup, wrap=small_shm()) as script, Trace(target(cgroup)) as trace:
        script.go()
        said = {}
        for line in script.lines():
            said = dict(pair.split("=", 1) for pair in line.split()[1:])
        status = script.finish()
    return trace.result, {**said, "status": str(status)}, script.pid


def test_shm_full_by_a_page_fault(cgroup: Path) -> None:
    traced, said, pid = run_traced_in_small_shm(cgroup, "shm_full", "touch")
    assert said["status"] == str(-signal.SIGBUS)
    full, bus = traced.one("shm_full"), traced.one("sigbus")
    start = int(said["address"], 16)
    assert bus["address"] == start + 3 * MIB  # the first page that the tmpfs has not
    assert (bus["signal_code"], bus["reason"]) == ("BUS_ADRERR", "tmpfs_full")
    assert (bus["mapping_start"], bus["mapping_end"]) == (start, start + int(said["length_bytes"]))
    assert (bus["file_offset_bytes"], bus["file_length_bytes"]) == (3 * MIB, 6 * MIB)
    assert bus["path"] == full["path"] == f"/dev/shm/rtdebug-full-{pid}"
    assert (full["by_fault"], full["syscall"]) == (True, None)
    assert bus["size_bytes"] == bus["used_bytes"] == full["used_bytes"] == 3 * MIB


LAST_PAGE = """
fd = os.open("/dev/shm/odd", os.O_CREAT | os.O_RDWR)
os.write(fd, b"x" * (3 << 20))
os.ftruncate(fd, (3 << 20) + 1)
child = os.fork()
if child == 0:
    import ctypes
    area = mmap.mmap(fd, (3 << 20) + 1)  # Python goes by its length, the kernel by pages
    ctypes.memset(ctypes.addressof(ctypes.c_char.from_buffer(area)) + (3 << 20) + 23, 1, 1)
    os._exit(0)
say(status=os.waitpid(child, 0)[1], child=child)
"""


def test_both_events_tell_of_the_last_page_of_a_file(cgroup: Path) -> None:
    """Its length ends in the middle of that page: what is touched lies behind it, and yet in the file."""
    traced, said, _ = script_traced(LAST_PAGE, cgroup, wrap=small_shm())
    assert said["status"] == signal.SIGBUS
    full, bus = traced.one("shm_full"), traced.one("sigbus")
    assert (bus["reason"], bus["file_offset_bytes"], bus["file_length_bytes"]) == (
        "tmpfs_full", 3 * MIB + 23, 3 * MIB + 1,
    )  # fmt: skip
    assert (full["by_fault"], full["pid"]) == (True, said["child"])


def test_the_summary_says_which_tmpfs_was_full_and_nothing_of_what_was_not_traced(cgroup: Path) -> None:
    traced, said, _ = script_traced(LAST_PAGE, cgroup, "--event", "sigbus", wrap=small_shm())
    assert traced.summary is not None
    (full,) = traced.summary["shared_memory_full"]
    assert (full["path"], full["size_bytes"], full["pid"]) == ("/dev/shm", 3 * MIB, said["child"])
    assert (full["sigbus"], full["shm_full"], traced.summary["oom_kills"]) == (1, None, None)
    assert traced.summary["shm_created"] == {"posix": None, "sysv": None, "memfd": None}
    assert {found["creation"] for found in traced.summary["shared_memory"]} <= {"not_traced"}


def test_shm_full_of_inodes(cgroup: Path) -> None:
    text = """
def fails(function, *arguments):
    try:
        function(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]
made = 0
while not (result := fails(os.mknod, f"/dev/shm/{made}")):
    made += 1
results = [result, fails(os.open, "/dev/shm/one-more", os.O_CREAT | os.O_RDWR), fails(os.mkdir, "/dev/shm/folder")]
say(results=results, free=os.statvfs("/dev/shm").f_ffree)
"""
    traced, said, _ = script_traced(text, cgroup, wrap=small_shm("3m", "nr_inodes=11"))
    assert said == {"results": ["ENOSPC"] * 3, "free": 0}
    lines = traced.of("shm_full")
    assert [line["path"] for line in lines if line["path"] in ("/dev/shm/one-more", "/dev/shm/folder")] == [
        "/dev/shm/one-more", "/dev/shm/folder",
    ]


def test_enospc_elsewhere_is_not_shm_full(cgroup: Path) -> None:
    text = """
fd = os.open("/dev/full", os.O_WRONLY)
try:
    os.write(fd, b"x")
except OSError as error:
    say(errno=error.errno)
"""
    traced, said, _ = script_traced(text, cgroup)
    assert said["errno"] == errno.ENOSPC
    assert not traced.of("shm_full")


# --- SIGBUS ---


def test_sigbus_beyond_the_end_of_a_truncated_file(cgroup: Path) -> None:
    traced, said, pid = run_traced_in_small_shm(cgroup, "sigbus_truncate")
    assert said["status"] == str(-signal.SIGBUS)
    line = traced.one("sigbus")
    assert line["address"] == int(said["address"], 16)
    assert (line["file_offset_bytes"], line["file_length_bytes"]) == (PAGE, PAGE)
    assert (line["reason"], line["signal_code"]) == ("beyond_end_of_file", "BUS_ADRERR")
    assert line["path"] == f"/dev/shm/rtdebug-truncated-{pid}"
    assert not traced.of("shm_full")


def test_sigbus_in_a_file_of_another_file_system(cgroup: Path, tmp_path: Path) -> None:
    assert os.statvfs(tmp_path).f_fsid != os.statvfs("/dev/shm").f_fsid
    traced, said, pid = run_traced(cgroup, [], "sigbus_truncate", tmp_path)
    line = traced.one("sigbus")
    assert line["address"] == int(said["address"], 16)
    assert line["path"].endswith(f"rtdebug-truncated-{pid}")
    assert line["reason"] == "beyond_end_of_file"
    assert (line["size_bytes"], line["used_bytes"]) == (None, None)


def test_sigbus_that_is_caught_counts_each_time(cgroup: Path) -> None:
    text = """
# a handler that jumps back needs C: children die of it one by one instead
fd = os.memfd_create("cut")
os.ftruncate(fd, mmap.PAGESIZE)
statuses = []
for _ in range(5):
    child = os.fork()
    if child == 0:
        area = mmap.mmap(fd, mmap.PAGESIZE)
        os.ftruncate(fd, 0)
        area[0]
        os._exit(0)
    statuses.append(os.waitpid(child, 0)[1])
    os.ftruncate(fd, mmap.PAGESIZE)
say(statuses=statuses)
"""
    traced, said, pid = script_traced(text, cgroup)
    assert said["statuses"] == [signal.SIGBUS] * 5
    lines = traced.of("sigbus", path="/memfd:cut", reason="beyond_end_of_file")
    assert len(lines) == 5
    assert len({line["pid"] for line in lines} - {pid}) == 5


def test_sigbus_sent_by_kill_is_no_memory_event(cgroup: Path) -> None:
    text = """
signal.signal(signal.SIGBUS, lambda *_: None)
os.kill(os.getpid(), signal.SIGBUS)
say(done=True)
"""
    traced, _, _ = script_traced(text, cgroup)
    assert not traced.of("sigbus")
