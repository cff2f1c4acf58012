"""`rtdebug ps` and targets, on real containers. Witnesses: the runtimes, /proc, cgroupfs, statvfs."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rtdebug.containers.resolve import find_container, note_on
from rtdebug.containers.runtimes.ask import TIMEOUT_S
from rtdebug.errors import TargetError
from rtdebug.host.cgroup import find_memory_hierarchy, memory_cgroup_of
from tests.kernel.runtime_fixtures import FILL_BYTES, IMAGE, MIB, Box, make_rootfs, wait_for

pytestmark = pytest.mark.kernel


def run_ps(*arguments, env=None):
    return subprocess.run(
        [sys.executable, "-m", "rtdebug", "ps", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={key: value for key, value in os.environ.items() if key != "DOCKER_HOST"} | (env or {}),
    )


def ps(*arguments, env=None):
    done = run_ps("-o", "json", *arguments, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    document = json.loads(done.stdout)
    assert set(document) == {"containers", "notes"}
    return document


def row_of(box, document):
    (row,) = [row for row in document["containers"] if row["id"] == box.id]
    return row


def check(box: Box, row, *, runtime, memory_bytes):
    """What ps says of a container that filled its /dev/shm, against other witnesses."""
    folder = find_memory_hierarchy().path(row["cgroup"])
    assert row["runtime"] == runtime
    assert (row["name"], row["pid"], row["status"]) == (box.name, box.pid, "running")
    assert row["cgroup"] == memory_cgroup_of(box.pid)
    assert str(box.pid) in (folder / "cgroup.procs").read_text().split()
    assert (row["memory_limit_bytes"], row["memory_limit_cgroup"]) == (memory_bytes, row["cgroup"])
    assert FILL_BYTES <= row["memory_usage_bytes"] <= memory_bytes
    shm = os.statvfs(f"/proc/{box.pid}/root/dev/shm")
    assert row["shm_used_bytes"] == FILL_BYTES
    assert row["shm_size_bytes"] == shm.f_blocks * shm.f_frsize


def test_runc(runc):
    box = runc.start(memory_bytes=96 * MIB, shm_bytes=41 * MIB)
    row = row_of(box, ps())
    check(box, row, runtime="runc", memory_bytes=96 * MIB)
    assert row["shm_size_bytes"] == 41 * MIB
    assert (row["image"], row["pod"], row["namespace"]) == (None, None, None)


def test_crun(crun):
    box = crun.start(memory_bytes=96 * MIB)
    check(box, row_of(box, ps()), runtime="crun", memory_bytes=96 * MIB)


def test_docker(docker):
    box = docker.start("rtdebug-web", memory_bytes=80 * MIB, shm_bytes=48 * MIB)
    document = ps()
    row = row_of(box, document)
    check(box, row, runtime="docker", memory_bytes=80 * MIB)
    assert (row["image"], row["namespace"], row["shm_size_bytes"]) == (IMAGE, "moby", 48 * MIB)
    assert document["notes"] == []
    docker.remove(box)


def test_containerd(containerd):
    box = containerd.start("rtdebug-job", memory_bytes=72 * MIB)
    row = row_of(box, ps())
    check(box, row, runtime="containerd", memory_bytes=72 * MIB)
    assert (row["image"], row["namespace"]) == (IMAGE, containerd.namespace)
    containerd.kill(box.id)
    with pytest.raises(TargetError, match="is stopped"):
        find_container(box.id)


def test_podman(podman):
    box = podman.start("rtdebug-pod-box", memory_bytes=88 * MIB)
    row = row_of(box, ps())
    check(box, row, runtime="podman", memory_bytes=88 * MIB)
    assert row["image"] == IMAGE


def test_all_at_once_each_once_and_found_by_every_name(runc, docker, containerd, podman):
    plain = runc.start()
    web = docker.start("rtdebug-all-web")
    job = containerd.start("rtdebug-all-job")
    pod = podman.start("rtdebug-all-pod")
    ids = [row["id"] for row in ps()["containers"]]
    assert len(ids) == len(set(ids)) and {plain.id, web.id, job.id, pod.id} <= set(ids)

    hierarchy = find_memory_hierarchy()
    cgroup = memory_cgroup_of(web.pid)
    for target, box in (
        (plain.id, plain),
        (plain.id[:-2], plain),
        (f"runc:{plain.id}", plain),
        (web.id, web),
        (web.id[:10], web),
        ("rtdebug-all-web", web),
        ("docker:rtdebug-all-web", web),
        (f"runc:{web.id[:12]}", web),
        (f"cgroup:{cgroup}", web),
        (f"cgroup:{hierarchy.path(cgroup)}", web),
        (f"pid:{web.pid}", web),
        (job.id, job),
        (f"containerd:{job.id}", job),
        ("rtdebug-all-pod", pod),
        (f"podman:{pod.id[:12]}", pod),
    ):
        found, notes = find_container(target)
        assert (found.id, found.pid, found.status, notes) == (box.id, box.pid, "running", ()), target
    with pytest.raises(TargetError, match="ambiguous") as caught:
        find_container("rtdebug-")
    assert plain.id in caught.value.hint and job.id in caught.value.hint
    docker.remove(web)


def test_child_of_a_container_and_a_process_of_the_host(runc):
    box = runc.start()
    child = int(Path(f"/proc/{box.pid}/task/{box.pid}/children").read_text().split()[0])
    assert find_container(f"pid:{child}")[0].id == box.id
    found, notes = find_container(f"pid:{os.getpid()}")
    assert (found.id, found.runtime) == (f"pid:{os.getpid()}", None)
    assert notes == (note_on(found),)


def test_root_of_our_own(runc, tmp_path):
    runc.root = tmp_path / "state"
    box = runc.start(memory_bytes=96 * MIB)
    assert box.id not in {row["id"] for row in ps()["containers"]}
    check(box, row_of(box, ps("--runc-root", str(runc.root))), runtime="runc", memory_bytes=96 * MIB)
    found, _ = find_container(f"runc:{box.id}", [runc.root])
    assert (found.pid, found.runc_root) == (box.pid, str(runc.root))


def test_limit_of_an_ancestor_is_the_one_that_binds(runc):
    name = f"/rtdebug-above-{os.getpid()}"
    box = runc.start(cgroup=f"{name}/box", memory_bytes=96 * MIB)
    hierarchy = find_memory_hierarchy()
    limit_file = "memory.max" if hierarchy.version == 2 else "memory.limit_in_bytes"
    (hierarchy.path(name) / limit_file).write_text(str(64 * MIB))
    row = row_of(box, ps())
    assert (row["memory_limit_bytes"], row["memory_limit_cgroup"]) == (64 * MIB, name)
    table = run_ps().stdout
    assert f"* {box.id}: the limit is that of cgroup {name}" in table


def test_no_limit_is_null(runc):
    row = row_of(runc.start(), ps())
    assert (row["memory_limit_bytes"], row["memory_limit_cgroup"]) == (None, None)


@pytest.mark.parametrize(
    "link", ["/proc/1/root/dev/shm", "../../../../../../dev/shm", "/proc/self/cwd", "/etc", "/missing", None]
)
def test_dev_shm_cannot_lead_out_of_the_container(runc, tmp_path, link):
    """A container without a tmpfs at /dev/shm; the links would lead to the host's, or to no tmpfs at all."""
    command = f"mkdir -p /dev && ln -s {link} /dev/shm; " if link else ""
    box = runc.start(shm=False, script=f"{command} exec sleep 1000", rootfs=make_rootfs(tmp_path / "root"))
    wait_for(lambda: not link or os.path.lexists(f"/proc/{box.pid}/root/dev/shm"), "the link")
    row = row_of(box, ps())
    assert (row["shm_used_bytes"], row["shm_size_bytes"]) == (None, None)


def test_dev_shm_that_is_a_link_inside_is_followed(runc, tmp_path):
    """Debian once had /dev/shm -> /run/shm; here it is the tmpfs on the container's own /dev."""
    box = runc.start(shm=False, script="mkdir /dev/x; ln -s /dev/x /dev/shm; exec sleep 1000")
    wait_for(lambda: os.path.lexists(f"/proc/{box.pid}/root/dev/shm"), "the link")
    shm = os.statvfs(f"/proc/{box.pid}/root/dev")
    row = row_of(box, ps())
    assert row["shm_size_bytes"] == shm.f_blocks * shm.f_frsize


def test_paused_container_is_listed(runc):
    box = runc.start()
    runc.pause(box)
    assert row_of(box, ps())["status"] == "paused"
    runc.resume(box)


def test_stopped_and_removed_docker_container(docker):
    box = docker.start("rtdebug-gone")
    docker.call("kill", box.id)
    docker.call("wait", box.id)
    assert box.id not in {row["id"] for row in ps()["containers"]}
    with pytest.raises(TargetError, match="is stopped") as caught:
        find_container("rtdebug-gone")
    assert caught.value.exit_code == 4
    docker.remove(box)
    with pytest.raises(TargetError, match="no container"):
        find_container("rtdebug-gone")


def test_kubernetes_names_from_the_annotations(containerd):
    """ctr copies labels into the bundle's annotations, as containerd's CRI plugin writes them."""
    box = containerd.start(
        "rtdebug-k8s",
        labels=(
            "io.kubernetes.cri.container-name=app",
            "io.kubernetes.cri.sandbox-name=web-0",
            "io.kubernetes.cri.sandbox-namespace=shop",
        ),
    )
    row = row_of(box, ps())
    assert (row["name"], row["pod"], row["namespace"]) == ("app", "web-0", "shop")
    assert find_container("pod/shop/web-0")[0].pid == box.pid
    assert "shop/web-0" in run_ps().stdout


def test_hostile_names_reach_no_terminal(runc):
    name = "\x1b]0;pwned\x07\x1b[2J\n\u202ename"
    box = runc.start(annotations={"nerdctl/name": name})
    done = run_ps()
    assert done.returncode == 0 and "\x1b" not in done.stdout and "\u202e" not in done.stdout
    assert r"\x1b]0;pwned\x07" in done.stdout
    assert row_of(box, ps())["name"] == name
    assert find_container(name)[0].id == box.id


def test_a_hung_docker_does_not_hang_us(docker):
    box = docker.start("rtdebug-hung", memory_bytes=80 * MIB)
    docker.process.send_signal(signal.SIGSTOP)
    try:
        began = time.monotonic()
        document = ps()
        assert time.monotonic() - began < 4
        (note,) = document["notes"]
        assert str(docker.socket) in note and "no answer" in note
        row = row_of(box, document)
        assert (row["pid"], row["runtime"], row["name"]) == (box.pid, "docker", None)
        assert row["memory_limit_bytes"] == 80 * MIB
        done = run_ps()
        assert done.returncode == 0 and "note: docker at" in done.stderr and box.id[:12] in done.stdout
        began = time.monotonic()
        assert find_container(f"runc:{box.id}")[0].pid == box.pid
        assert time.monotonic() - began < 2 * TIMEOUT_S  # docker is asked for the name, and not waited for longer
    finally:
        docker.process.send_signal(signal.SIGCONT)
    docker.remove(box)


def test_without_any_program_of_a_runtime(runc, docker, podman):
    """State files, sockets and conmon's command line tell enough."""
    boxes = {
        "runc": runc.start(memory_bytes=96 * MIB),
        "docker": docker.start("rtdebug-bare", memory_bytes=96 * MIB),
        "podman": podman.start("rtdebug-bare-pod", memory_bytes=96 * MIB),
    }
    document = ps(env={"PATH": "/nowhere"})
    for runtime, box in boxes.items():
        check(box, row_of(box, document), runtime=runtime, memory_bytes=96 * MIB)
    docker.remove(boxes["docker"])


def test_without_root_the_cgroups_tell(docker, runc):
    """Nothing of a runtime may be read then; what is missing is said."""
    as_nobody = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", sys.executable)
    if subprocess.run([*as_nobody, "-c", "import rtdebug.cli"], capture_output=True, check=False).returncode:
        pytest.skip("nobody may not run this Python")
    box = docker.start("rtdebug-seen", memory_bytes=80 * MIB)
    runc.start()
    done = subprocess.run(
        [*as_nobody, "-m", "rtdebug", "ps", "-o", "json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    row = row_of(box, document)
    assert (row["pid"], row["memory_limit_bytes"], row["name"]) == (box.pid, 80 * MIB, None)
    assert (row["shm_used_bytes"], row["shm_size_bytes"]) == (None, None)
    assert any("runc root" in note and "run rtdebug as root" in note for note in document["notes"])


def test_json_is_given_up_quietly_when_the_reader_goes(runc):
    runc.start()
    done = subprocess.run(
        ["sh", "-c", f"{shlex.quote(sys.executable)} -m rtdebug ps -o json | true"],
        capture_output=True,
        check=False,
        timeout=30,
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_resolving_is_quick(runc):
    """No docker is asked, and no podman; the limit is for a host without them."""
    box = runc.start()
    began = time.monotonic()
    find_container(f"runc:{box.id}")
    assert time.monotonic() - began < 0.3


def test_a_root_that_does_not_exist(tmp_path):
    done = run_ps("--runc-root", str(tmp_path / "missing"))
    assert done.returncode == 2 and "missing" in done.stderr and "Traceback" not in done.stderr


def test_table_fits_a_terminal(runc):
    box = runc.start(memory_bytes=96 * MIB)
    lines = run_ps().stdout.splitlines()
    (line,) = [line for line in lines if line.startswith(box.id)]
    assert "96 MiB" in line and "23 MiB" in line and "64 MiB" in line
    assert len(line) <= 120
