"""Real programs that fail for want of shared memory or memory, in real containers, and what the diagnosis says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rtdebug.diagnose.ask import diagnose_all
from rtdebug.host.fds import FileUses, read_file_uses
from tests.conftest import ROOT
from tests.kernel.runtime_fixtures import IMAGE, MIB, Box, Docker, Runc, bind, host_programs, wait_for
from tests.kernel.workload import kill_count, memory_mount

pytestmark = pytest.mark.kernel
RTDEBUG = str(Path(sys.executable).parent / "rtdebug")
PYTHON = Path("/usr/bin/python3")
PACKAGES = next(Path(sys.prefix).glob("lib/python3*/site-packages"))
TORCH = os.environ.get("RTDEBUG_TORCH", "")
"""The site-packages of an environment with PyTorch: 2 GB, so it is not installed for a test that few need."""
POSTGRES = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"))), None)


def diagnose(*arguments: object) -> tuple[int, dict[str, Any]]:
    """Return the exit status and the document."""
    argv = [RTDEBUG, "diagnose", *map(str, arguments), "-o", "json"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, json.loads(done.stdout)


def findings(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return them by rule."""
    return {finding["rule"]: finding for finding in document["findings"]}


class Programs:
    """Containers in which this host's programs run, with a folder for their output."""

    def __init__(self, runc: Runc, folder: Path) -> None:
        self._runc = runc
        self.work = folder / "work"
        self.work.mkdir()
        self.work.chmod(0o777)
        self._rootfs, self._mounts = host_programs(folder / "host-rootfs")

    def start(self, script: str, *mounts: dict[str, Any], **options: Any) -> Box:
        """Run a shell script; what it prints is in output()."""
        places = [*self._mounts, bind(self.work, "/box", writable=True), *mounts]
        return self._runc.start(
            script=f"exec >/box/out 2>&1; {script}", rootfs=self._rootfs, mounts=places, **options
        )

    def output(self) -> str:
        """Return what it has printed so far."""
        path = self.work / "out"
        return path.read_text(errors="replace") if path.exists() else ""

    def python(self, program: str, *arguments: object, packages: Path = PACKAGES, **options: Any) -> Box:
        """Run a program of tests/workloads/python with the packages of this test's environment."""
        mounts = (bind(packages, "/packages"), bind(ROOT / "tests/workloads/python", "/programs"))
        (self._rootfs / "packages").mkdir(exist_ok=True)
        (self._rootfs / "programs").mkdir(exist_ok=True)
        words = " ".join(map(str, arguments))
        script = f"PYTHONPATH=/packages OPENBLAS_NUM_THREADS=1 {PYTHON} /programs/{program} {words}"
        return self.start(script, *mounts, **options)


@pytest.fixture
def programs(runc: Runc, tmp_path: Path) -> Programs:
    """Containers with this host's programs."""
    return Programs(runc, tmp_path)


same_python = pytest.mark.skipif(
    Path(sys.executable).resolve() != PYTHON.resolve(), reason="the environment has another Python than the container"
)


@same_python
def test_a_pool_that_fills_dev_shm(programs: Programs) -> None:
    box = programs.python("pool.py", 20, 8, "keep", shm_bytes=64 * MIB)
    full = Path(f"/proc/{box.pid}/root/dev/shm")

    def used_bytes() -> int:
        status = os.statvfs(full)
        return (status.f_blocks - status.f_bfree) * status.f_frsize

    wait_for(lambda: used_bytes() > 63 * MIB, "/dev/shm to be full")
    status, document = diagnose(box.id)
    assert status == 1
    found = findings(document)
    assert found["shm-full"]["severity"] == "critical"
    assert found["shm-full"]["evidence"]["size_bytes"] == 64 * MIB
    assert any("--shm-size" in change for change in found["shm-full"]["change"])
    assert "done" not in programs.output()  # a worker died of it: the pool waits for ever


@same_python
def test_a_pool_with_room_enough(programs: Programs) -> None:
    box = programs.python("pool.py", 20, 8, "keep", shm_bytes=512 * MIB)
    wait_for(lambda: "done" in programs.output(), "the pool to be done")
    status, document = diagnose(box.id)
    assert (status, document["findings"]) == (0, [])


@same_python
def test_killed_workers_leave_segments_behind(programs: Programs) -> None:
    box = programs.python("pool.py", 7, 4, "die", shm_bytes=128 * MIB)
    wait_for(lambda: "done" in programs.output(), "the workers to be dead")
    status, document = diagnose(box.id)
    orphans = findings(document)["shm-orphans"]
    assert status == 1
    assert orphans["evidence"]["orphans"] == 7
    assert orphans["evidence"]["orphan_bytes"] == 28 * MIB


@pytest.mark.skipif(not TORCH, reason="slow: needs RTDEBUG_TORCH=/path/to/site-packages with torch")
def test_a_data_loader_that_fills_dev_shm(programs: Programs) -> None:
    box = programs.python("dataloader.py", 64, 4, packages=Path(TORCH), shm_bytes=64 * MIB)
    wait_for(lambda: "done" in programs.output(), "the loader to fail", 90)
    assert "shared memory" in programs.output() or "Bus error" in programs.output()
    status, document = diagnose(box.id, "--app-log", programs.work / "out")
    assert status == 1
    assert findings(document)["shm-refused"]["evidence"]["app"] == "pytorch"
    assert findings(document)["shm-refused"]["evidence"]["shm_size_bytes"] == 64 * MIB


@pytest.mark.skipif(not TORCH, reason="slow: needs RTDEBUG_TORCH=/path/to/site-packages with torch")
def test_a_data_loader_with_room_enough(programs: Programs) -> None:
    box = programs.python("dataloader.py", 64, 4, packages=Path(TORCH), shm_bytes=1024 * MIB)
    wait_for(lambda: "done 64" in programs.output(), "the loader to be done", 90)
    assert diagnose(box.id, "--app-log", programs.work / "out")[0] == 0


@pytest.mark.skipif(POSTGRES is None, reason="needs postgresql")
def test_postgresql_with_a_small_dev_shm(programs: Programs) -> None:
    # a parallel hash join keeps its table in segments of dynamic shared memory
    sql = (
        "create table t as select i, md5(i::text) as m from generate_series(1, 300000) as i; analyze t; "
        "set max_parallel_workers_per_gather = 4; set parallel_setup_cost = 0; set parallel_tuple_cost = 0; "
        "set min_parallel_table_scan_size = 0; set work_mem = '64MB'; set enable_mergejoin = off; "
        "select count(*) from t as a join t as b on a.m = b.m;"
    )
    (programs.work / "query.sql").write_text(sql)
    options = "-k /box -c listen_addresses= -c shared_buffers=1MB"
    script = (
        f"cd /box; export PATH={POSTGRES}:/usr/bin HOME=/box; "
        "initdb -D /box/data -A trust -U nobody --no-sync --locale=C >/dev/null && "
        f"pg_ctl -D /box/data -w -o '{options}' start >/dev/null; "
        "psql -h /box -U nobody -d postgres -q -f /box/query.sql; echo done; sleep 1000"
    )
    box = programs.start(script, shm_bytes=2 * MIB, uid=65534)
    wait_for(lambda: "done" in programs.output().splitlines(), "the query to be over", 60)
    assert "could not resize shared memory segment" in programs.output()
    status, document = diagnose(box.id, "--app-log", programs.work / "out")
    found = findings(document)
    assert status == 1
    refused = found["shm-refused"]
    assert refused["evidence"]["app"] == "postgresql"
    assert refused["evidence"]["largest_request_bytes"] > 0
    assert refused["evidence"]["shm_size_bytes"] == 2 * MIB
    # without its log: a risk by what runs there, and no claim of more
    risk = findings(diagnose(box.id)[1])
    assert risk["shm-small"]["evidence"]["program"] == "postgres"
    assert "shm-refused" not in risk


def test_a_volume_in_memory_beyond_the_limit_is_an_oom_kill(runc: Runc, tmp_path: Path) -> None:
    volume = {"destination": "/cache", "type": "tmpfs", "source": "tmpfs", "options": ["size=256m"]}
    script = "dd if=/dev/zero of=/cache/data bs=1048576 count=100 2>/dev/null; echo $? > /cache/status; sleep 1000"
    box = runc.start(script=script, memory_bytes=48 * MIB, mounts=[volume])
    wait_for(lambda: kill_count(memory_mount()[0] / box.id) > 0, "the kill")
    time.sleep(0.2)
    status, document = diagnose(box.id)
    found = findings(document)
    assert status == 1
    assert {"oom-killed", "oom-killed-before"} & set(found)  # the kernel prints ten dumps in five seconds, no more
    assert found["tmpfs-not-below-limit"]["evidence"]["tmpfs"] == "/cache"
    assert found["shm-fills-memory"]["evidence"]["shmem_bytes"] > 40 * MIB
    assert "shm-full" not in found


def test_a_container_that_is_down_is_found_in_the_kernel_log(runc: Runc, tmp_path: Path) -> None:
    name = "0123456789abcdef" * 4
    log = tmp_path / "kern.log"
    log.write_text(
        "[    1.000000] memory: usage 65536kB, limit 65536kB, failcnt 3\n"
        "[    1.100000] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=x,mems_allowed=0,"
        f"oom_memcg=/docker/{name},task_memcg=/docker/{name},task=app,pid=77,uid=0\n"
        "[    1.200000] Memory cgroup out of memory: Killed process 77 (app) total-vm:90000kB, anon-rss:60000kB, "
        "file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:100kB oom_score_adj:0\n"
    )
    status, document = diagnose(name[:12], "--kernel-log", log)
    assert status == 1
    assert findings(document)["oom-killed"]["evidence"]["victim"] == "app (pid 77)"
    assert document["container_id"] is None
    argv = [RTDEBUG, "diagnose", "nothing-of-that-name", "--kernel-log", str(log)]
    assert subprocess.run(argv, capture_output=True, timeout=60, check=False).returncode == 4


def test_a_container_that_is_down_is_known_by_its_name(docker: Docker, tmp_path: Path) -> None:
    name = "rtdebug-crashed"
    argv = ("run", "--detach", "--network", "none", "--memory", "24m", "--name", name, IMAGE, "/bin/sh", "-c")
    container_id = docker.call(*argv, "exec dd if=/dev/zero of=/dev/null bs=100M count=3").strip()
    wait_for(lambda: docker.call("inspect", "--format", "{{.State.Status}}", name).strip() == "exited", "its death")
    log = tmp_path / "kern.log"  # the kernel's own may have left it out: it prints ten dumps in five seconds
    path = f"/docker/{container_id}"
    log.write_text(
        f"[    1.100000] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=x,mems_allowed=0,oom_memcg={path},"
        f"task_memcg={path},task=dd,pid=77,uid=0\n"
        "[    1.200000] Memory cgroup out of memory: Killed process 77 (dd) total-vm:90000kB, anon-rss:23000kB, "
        "file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:100kB oom_score_adj:0\n"
    )
    for target in (name, f"docker:{name}", container_id[:12]):
        status, document = diagnose(target, "--kernel-log", log)
        assert (status, document["container_id"], document["container_name"]) == (1, container_id, name)
        assert findings(document)["oom-killed"]["evidence"]["victim"] == "dd (pid 77)"
    (tmp_path / "empty.log").touch()
    argv = (RTDEBUG, "diagnose", name, "--kernel-log", str(tmp_path / "empty.log"))
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "has no OOM kill of it" in done.stderr) == (4, True)


def test_a_docker_container_that_is_well(docker: Docker) -> None:
    box = docker.start("rtdebug-well", memory_bytes=256 * MIB, shm_bytes=128 * MIB)
    status, document = diagnose(box.name)
    # the shell of the fixture leaves 23 MiB in /dev/shm that nobody has open
    assert set(findings(document)) == {"shm-orphans"}
    assert status == 1
    subprocess.run(["rm", f"/proc/{box.pid}/root/dev/shm/fill"], check=True)
    assert diagnose(box.name)[0] == 0


def test_all_containers_take_one_look_at_the_processes(runc: Runc, monkeypatch: pytest.MonkeyPatch) -> None:
    boxes = {box.id: box for box in (runc.start(), runc.start())}
    looks = []

    def look(*arguments: Any) -> FileUses:
        looks.append(read_file_uses(*arguments))
        return looks[-1]

    monkeypatch.setattr("rtdebug.shm.uses.read_file_uses", look)
    found = {name: facts for name, facts, _ in diagnose_all((), (), 0.1, print, lambda *_: None)}
    assert boxes.keys() <= found.keys()
    assert all(found[name].shm is not None for name in boxes)
    assert len(looks) == 1


@pytest.mark.parametrize(
    ("arguments", "status"),
    [((), 2), (("x", "--all"), 2), (("no-such-container-at-all",), 4), (("x", "--app-log", "/nowhere"), 2)],
)
def test_bad_input(arguments: tuple[str, ...], status: int) -> None:
    done = subprocess.run([RTDEBUG, "diagnose", *arguments], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == status
    assert "Traceback" not in done.stderr
