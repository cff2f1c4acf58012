from __future__ import annotations

import http.server
import json
import os
import socket
import socketserver
import threading
import time
from pathlib import Path

import pytest

from rtdebug.containers import inventory
from rtdebug.containers.resolve import find_container
from rtdebug.containers.runtimes import ask, containerd, docker, labels, podman, records, runc
from rtdebug.containers.runtimes.daemons import Daemon, find_daemons, option
from rtdebug.errors import RtdebugError, TargetError, UsageProblem

from .trees import make_host, write_files

A = "a1" * 32
B = "b2" * 32
HOSTILE = "\x1b]0;own\x07\n\u202e\udcff"


def daemon(comm, *argv, uid=0, shares_mounts=True):
    return Daemon(1, comm, uid, argv, shares_mounts)


# Questions


def test_all_are_asked_at_once_and_none_keeps_us_waiting():
    def fails():
        raise RtdebugError("it broke")

    began = time.monotonic()
    questions = {"slow": lambda: time.sleep(30), "broken": fails, "good": lambda: 23}
    answers, notes = ask.ask_all(questions, timeout_s=0.2)
    assert time.monotonic() - began < 2
    assert answers == {"good": 23}
    assert notes == [
        "slow: no answer within 0.2 s; what it alone knows is missing",
        "broken: it broke; what it alone knows is missing",
    ]


def test_run_says_why_it_failed():
    assert ask.run(("echo", "a\udcffb")) == "a\udcffb\n"
    with pytest.raises(RtdebugError, match="not installed"):
        ask.run(("rtdebug-no-such-program",))
    with pytest.raises(RtdebugError, match=r"within 0\.1 s"):
        ask.run(("sleep", "30"), timeout_s=0.1)
    with pytest.raises(RtdebugError, match=r"status 3: 'no\\x1b") as caught:
        ask.run(("sh", "-c", "printf 'first\\nno\\033[1m' >&2; exit 3"))
    assert "\x1b" not in caught.value.message


@pytest.mark.parametrize("text", ["", "{", "7", '{"a": 1}', "\udcff"])
def test_answers_that_are_no_list(text):
    with pytest.raises(RtdebugError, match="podman"):
        records.parse_records(text, "id", "podman")


def test_wrong_types_count_as_not_said():
    assert records.parse_records('[1, {"id": 5}, {"id": ""}, {"id": "x"}, null]', "id", "x") == ({"id": "x"},)
    assert records.parse_records("null", "id", "x") == ()
    assert [records.as_pid(value) for value in (0, -1, True, "7", None, 7)] == [None] * 5 + [7]


# Daemons


def test_options_of_a_command_line():
    argv = ("dockerd", "--host=unix:///a", "-H", "unix:///b", "--hosts", "x", "--host")
    assert list(option(argv, "-H", "--host")) == ["unix:///a", "unix:///b"]


def test_daemons_of_the_host_only(tmp_path):
    host = make_host(tmp_path)
    host.add_process(10, "/system.slice/docker.service", "dockerd", argv=("dockerd", "-H", "unix:///x"))
    host.add_process(11, "/", "sleep")
    host.add_process(12, f"/docker/{A}", "dockerd", namespaces="inside")
    host.add_process(13, f"/docker/{A}", "containerd-shim", namespaces="inside")
    # --pid=host: our pid namespace, but mounts of its own, in a container's cgroup
    host.add_process(14, f"/docker/{A}", "conmon", argv=("conmon", "-n", "liar"))
    mounts = tmp_path / "proc/14/ns/mnt"
    mounts.unlink()
    (tmp_path / "namespaces/inside-mnt").touch()
    mounts.symlink_to(tmp_path / "namespaces/inside-mnt")
    assert find_daemons(host.roots.proc) == (Daemon(10, "dockerd", 0, ("dockerd", "-H", "unix:///x"), True),)


# runc


def test_known_roots_and_those_of_daemons(tmp_path):
    host = make_host(tmp_path)
    for name in (
        "run/runc",
        "run/docker/runtime-runc/moby",
        "run/containerd/runc/k8s.io",
        "run/containerd/runc/blue",
        "run/user/1000/crun",
        "exec/runtime-runc/moby",
        "shim/blue",
        "crio",
        "extra",
    ):
        (tmp_path / name).mkdir(parents=True)
    host.add_process(20, comm="containerd-shim", argv=("shim", "-namespace", "blue", "-id", "x"))
    (tmp_path / "bundle").mkdir()
    write_files(tmp_path / "bundle", {"options.json": json.dumps({"root": str(tmp_path / "shim")})})
    (tmp_path / "proc/20/cwd").symlink_to(tmp_path / "bundle")
    host.add_process(21, comm="dockerd", argv=("dockerd", f"--exec-root={tmp_path}/exec"))
    host.add_process(
        22, comm="conmon", argv=("conmon", "--runtime-arg", "--root", "--runtime-arg", f"{tmp_path}/crio")
    )
    found = runc.find_roots([tmp_path / "extra"], find_daemons(host.roots.proc), host.roots)
    named = {str(root.path.relative_to(tmp_path)): (root.runtime, root.namespace) for root in found}
    assert named == {
        "run/runc": (None, None),
        "run/docker/runtime-runc/moby": ("docker", "moby"),
        "run/containerd/runc/k8s.io": ("containerd", "k8s.io"),
        "run/containerd/runc/blue": ("containerd", "blue"),
        "run/user/1000/crun": (None, None),
        "exec/runtime-runc/moby": ("docker", "moby"),
        "shim/blue": ("containerd", "blue"),
        "crio": (None, None),
        "extra": (None, None),
    }
    assert len(found) == len(named)


def test_a_shim_without_options_uses_the_default_root(tmp_path):
    host = make_host(tmp_path)
    (tmp_path / "run/containerd/runc/red").mkdir(parents=True)
    (tmp_path / "proc/30/cwd").mkdir(parents=True)
    for options in ("", "{}", "[]", '{"root": 7}', "\ud7ff"):
        write_files(tmp_path, {"proc/30/cwd/options.json": options})
        shim = Daemon(30, "containerd-shim", 0, ("shim", "-namespace", "red"), True)
        (root,) = runc.find_roots([], [shim], host.roots)
        assert (root.path.name, root.runtime) == ("red", "containerd")


def test_runc_list_with_kubernetes_annotations():
    text = json.dumps(
        [
            {"ociVersion": "1.0.2", "id": A, "pid": 71, "status": "running", "bundle": "/b", "owner": "root",
             "annotations": {"io.kubernetes.cri.container-name": "app",
                             "io.kubernetes.cri.sandbox-name": "web-0",
                             "io.kubernetes.cri.sandbox-namespace": "shop",
                             "io.kubernetes.cri.image-name": "r/app:1",
                             "io.kubernetes.cri.container-type": "container"}},
            {"id": B, "pid": 0, "status": "stopped",
             "annotations": {"io.kubernetes.cri.container-type": "sandbox",
                             "io.kubernetes.cri.sandbox-name": "web-0",
                             "io.kubernetes.cri.sandbox-namespace": "shop"}},
        ]
    )  # fmt: skip
    root = runc.RuncRoot(Path("/run/containerd/runc/k8s.io"), "containerd", "k8s.io")
    app, pause = runc.parse_list(text, "runc", root)
    assert (app.id, app.name, app.pod, app.namespace, app.image) == (A, "app", "web-0", "shop", "r/app:1")
    assert (app.pid, app.status, app.bundle, app.runtime, app.sandbox) == (
        71,
        "running",
        "/b",
        "containerd",
        False,
    )
    assert (pause.pid, pause.status, pause.sandbox, pause.runc_root) == (
        None,
        "stopped",
        True,
        str(root.path),
    )


def test_crio_and_podman_are_told_by_their_annotations():
    def runtime(manager):
        record = [
            {"id": "x", "pid": 7, "status": "running", "annotations": {"io.container.manager": manager}}
        ]
        return runc.parse_list(json.dumps(record), "runc", runc.RuncRoot(Path("/run/runc")))[0].runtime

    assert [runtime(name) for name in ("libpod", "cri-o", "other")] == ["podman", "cri-o", "runc"]


def fake(folder: Path, program: str, script: str) -> None:
    path = folder / "bin" / program
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


RUNC_STATE = {
    "id": "box",
    "init_process_pid": 77,
    "init_process_start": 4711,
    "config": {"labels": ["nerdctl/name=web", "bundle=/b"]},
}
CRUN_STATE = {"pid": 78, "process-start-time": 4711, "bundle": "/c", "owner": "root"}


def make_roots(folder):
    host = make_host(folder)
    host.add_process(77)
    host.add_process(78)
    write_files(
        folder / "run/runc",
        {"box/state.json": json.dumps(RUNC_STATE), "hostile/state.json": "{", "other/nothing": ""},
    )
    write_files(
        folder / "run/crun",
        {
            "cbox/status": json.dumps(CRUN_STATE),
            "cbox/config.json": '{"annotations": {"io.container.manager": "libpod", "nerdctl/name": "c"}}',
        },
    )
    return host


def summary(root, proc):
    return [
        (container.id, container.name, container.runtime, container.pid, container.status, container.bundle)
        for container in runc.list_root(runc.RuncRoot(root), proc)
    ]


@pytest.mark.parametrize("program", [None, "exit 1", "echo not json", "echo null"])
def test_state_files_are_read_where_the_program_does_not_help(tmp_path, monkeypatch, program):
    host = make_roots(tmp_path)
    if program:
        fake(tmp_path, "runc", program)
        fake(tmp_path, "crun", program)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/bin" if program else f"{tmp_path}/bin")
    proc = host.roots.proc
    assert summary(tmp_path / "run/runc", proc) == [("box", "web", "runc", 77, "running", "/b")]
    assert summary(tmp_path / "run/crun", proc) == [("cbox", "c", "podman", 78, "running", "/c")]


def test_a_hung_runc_is_left_alone_and_files_are_read(tmp_path, monkeypatch):
    host = make_roots(tmp_path)
    fake(tmp_path, "runc", "exec sleep 30")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    began = time.monotonic()
    assert summary(tmp_path / "run/runc", host.roots.proc) == [("box", "web", "runc", 77, "running", "/b")]
    assert time.monotonic() - began < ask.TIMEOUT_S


def test_a_reused_pid_is_not_the_container(tmp_path, monkeypatch):
    host = make_roots(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    (tmp_path / "run/runc/box/state.json").write_text(json.dumps(RUNC_STATE | {"init_process_start": 4712}))
    assert summary(tmp_path / "run/runc", host.roots.proc) == [("box", "web", "runc", None, "stopped", "/b")]


def test_a_container_that_waits_to_be_started(tmp_path, monkeypatch):
    host = make_roots(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    os.mkfifo(tmp_path / "run/runc/box/exec.fifo")
    assert summary(tmp_path / "run/runc", host.roots.proc)[0][3:5] == (77, "created")


def test_what_runc_says_goes_before_its_files(tmp_path, monkeypatch):
    host = make_roots(tmp_path)
    (tmp_path / "run/runc/hostile/state.json").unlink()
    answer = json.dumps([{"id": "box", "pid": 77, "status": "paused", "bundle": "/b"}])
    fake(tmp_path, "runc", f"echo '{answer}'")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    assert summary(tmp_path / "run/runc", host.roots.proc) == [("box", None, "runc", 77, "paused", "/b")]


# docker


class Engine(socketserver.ThreadingUnixStreamServer):
    """A docker daemon that knows one answer."""

    daemon_threads = True

    def __init__(self, path: Path, body: bytes, status: int = 200) -> None:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

            def address_string(self):
                return ""

        super().__init__(str(path), Handler)
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()


ANSWER = [
    {"Id": A, "Names": ["/web", "/alias"], "Image": "shop:1", "State": "running", "Labels": {}},
    {"Id": B, "Names": [f"/{HOSTILE}"], "Image": None, "State": "exited", "Labels": None},
    {"Names": ["/no-id"]},
]


def test_docker_over_its_socket(tmp_path):
    with Engine(tmp_path / "s", json.dumps(ANSWER).encode()):
        web, hostile = docker.list_containers(tmp_path / "s")
    assert (web.id, web.name, web.image, web.status, web.runtime, web.pid) == (
        A, "web", "shop:1", "running", "docker", None,
    )  # fmt: skip
    assert (hostile.name, hostile.image, hostile.status) == (HOSTILE, None, "stopped")


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [(b"[]", 500, "answered 500"), (b"<html>", 200, "not JSON"), (b"{}", 200, "not a list")],
)
def test_docker_that_answers_something_else(tmp_path, body, status, message):
    with Engine(tmp_path / "s", body, status), pytest.raises(RtdebugError, match=message):
        docker.list_containers(tmp_path / "s")


def test_docker_that_is_gone(tmp_path):
    with socket.socket(socket.AF_UNIX) as left_over:
        left_over.bind(str(tmp_path / "s"))
    with pytest.raises(RtdebugError, match="refused"):
        docker.list_containers(tmp_path / "s")


def test_docker_sockets(tmp_path):
    host = make_host(tmp_path)
    (tmp_path / "run/user/1000").mkdir(parents=True)
    paths = [tmp_path / name for name in ("env", "run/docker.sock", "run/user/1000/docker.sock", "own")]
    for path in paths:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
    (tmp_path / "alias").symlink_to("own")
    (tmp_path / "file").touch()
    daemons = [
        daemon("dockerd", "dockerd", "-H", f"unix://{tmp_path}/own", "-H", f"unix://{tmp_path}/alias"),
        daemon("dockerd", "dockerd", "-H", "fd://", "-H", f"unix://{tmp_path}/file", "-H", "tcp://1.2.3.4:5"),
    ]
    found = docker.find_sockets(daemons, host.roots, {"DOCKER_HOST": f"unix://{tmp_path}/env"})
    assert found == tuple(paths)
    assert docker.find_sockets([], host.roots, {"DOCKER_HOST": "ssh://somewhere"}) == tuple(paths[1:3])


# containerd, podman, labels


def test_ctr_list():
    text = (
        "CONTAINER    IMAGE                          RUNTIME                  \n"
        "box-1        docker.io/library/busybox:1    io.containerd.runc.v2    \n"
        "bare         -                              io.containerd.runc.v2    \n"
    )
    box, bare = containerd.parse_list(text, "blue")
    assert (box.id, box.image, box.namespace, box.status) == (
        "box-1", "docker.io/library/busybox:1", "blue", "stopped",
    )  # fmt: skip
    assert (bare.id, bare.image) == ("bare", None)
    assert containerd.parse_list("", "x") == ()


def test_sockets_of_containerd(tmp_path):
    host = make_host(tmp_path)
    config = write_files(
        tmp_path, {"a.toml": '[grpc]\naddress = "/a.sock"\n', "bad.toml": "[", "c.toml": "grpc = 1"}
    )
    daemons = [
        *(
            daemon("containerd", "containerd", "--config", str(config / name))
            for name in ("a.toml", "bad.toml", "c.toml")
        ),
        daemon("containerd", "containerd", "--address=/b.sock", "-c", "/missing"),
        daemon("containerd-shim", "shim", "-namespace", "k8s.io", "-address", "/k8s.sock"),
        daemon("containerd-shim", "shim", "-namespace", "k8s.io", "-address", "/k8s.sock"),
        daemon("containerd-shim", "shim", "-namespace", "k8s.io", "-address", "/x.sock", shares_mounts=False),
    ]
    assert containerd.find_addresses(daemons, host.roots) == ("/a.sock", "/b.sock", "/k8s.sock")


CONMON = (
    "conmon", "-c", A, "-n", "pod-box", "--exit-command", "/usr/bin/podman", "--exit-command-arg", "--root",
    "--exit-command-arg", "/store", "--exit-command-arg", "--runroot", "--exit-command-arg", "/store-run",
    "--exit-command-arg", "--log-level", "--exit-command-arg", "warning", "--exit-command-arg", "container",
)  # fmt: skip


def test_podman_stores_from_conmon(tmp_path):
    host = make_host(tmp_path)
    root, user = daemon("conmon", *CONMON), daemon("conmon", *CONMON, uid=1000)
    assert podman.find_stores([root, root], host.roots) == (("--root", "/store", "--runroot", "/store-run"),)
    assert podman.find_stores([user], host.roots) == (), "a user's store is not read as root"
    (tmp_path / "var/lib/containers/storage/libpod").mkdir(parents=True)
    assert podman.find_stores([], host.roots) == ((),)
    (named,) = podman.named_by_conmon([user])
    assert (named.id, named.name, named.runtime) == (A, "pod-box", "podman")
    (crio,) = podman.named_by_conmon([daemon("conmon", "conmon", "-c", B, "-n", "k8s_x")])
    assert (crio.name, crio.runtime) == ("k8s_x", None)


def test_podman_ps():
    text = json.dumps(
        [
            {"Id": A, "Names": ["one"], "Image": "i:1", "State": "running", "Pid": 55, "PodName": "p",
             "IsInfra": False, "Labels": None},
            {"Id": B, "Names": [HOSTILE], "State": "exited", "Pid": 0, "IsInfra": True},
            {"Id": 5},
        ]
    )  # fmt: skip
    one, infra = podman.parse_ps(text)
    assert (one.name, one.image, one.status, one.pid, one.pod, one.sandbox) == (
        "one", "i:1", "running", 55, "p", False,
    )  # fmt: skip
    assert (infra.name, infra.status, infra.pid, infra.sandbox) == (HOSTILE, "stopped", None, True)
    assert podman.parse_ps("null") == ()


def test_labels_of_the_wrong_type_are_not_names():
    names = labels.names_in({"io.kubernetes.pod.name": 7, "nerdctl/name": "", "io.container.manager": ["x"]})
    assert names == labels.Names(None, None, None, None, None, False)


# All together


@pytest.fixture
def quiet_host(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    return make_roots(tmp_path)


def test_each_container_once_with_all_its_names(quiet_host, tmp_path):
    quiet_host.add_process(90, f"/docker/{A}/init.scope")
    state = RUNC_STATE | {"id": A, "init_process_pid": 90, "config": {}}
    write_files(tmp_path / "run/docker/runtime-runc/moby", {f"{A}/state.json": json.dumps(state)})
    with Engine(tmp_path / "run/docker.sock", json.dumps(ANSWER).encode()):
        found = inventory.list_containers(host=quiet_host.roots)
    assert found.notes == ()
    by_id = {container.id: container for container in found.containers}
    assert len(by_id) == len(found.containers)
    web = by_id[A]
    assert (web.name, web.runtime, web.pid, web.status, web.image) == (
        "web",
        "docker",
        90,
        "running",
        "shop:1",
    )
    assert web.cgroup == f"/docker/{A}", "the container's cgroup, not the one init moved to"
    assert web.runc_root == str((tmp_path / "run/docker/runtime-runc/moby").resolve())
    assert by_id[B].status == "stopped" and by_id["box"].runtime == "runc"
    assert [container.is_running for container in found.containers] == [True] * 3 + [False]


def test_a_hung_docker_costs_two_seconds_and_a_note(quiet_host, tmp_path):
    with socket.socket(socket.AF_UNIX) as hung:
        hung.bind(str(tmp_path / "run/docker.sock"))
        hung.listen()
        began = time.monotonic()
        found = inventory.list_containers(host=quiet_host.roots)
        assert time.monotonic() - began < 3
    assert {container.id for container in found.containers} == {"box", "cbox"}
    (note,) = found.notes
    assert "docker.sock" in note and "no answer" in note
    assert inventory.list_containers(host=quiet_host.roots, ask=frozenset()).notes == ()


def test_a_runtime_that_does_not_have_it_is_not_the_only_one_asked(quiet_host, tmp_path):
    with (
        Engine(tmp_path / "run/docker.sock", json.dumps(ANSWER).encode()),
        pytest.raises(TargetError) as caught,
    ):
        find_container(f"podman:{A[:10]}", host=quiet_host.roots)
    assert caught.value.hint == f"do you mean docker:{A[:12]}?"


def test_containers_that_only_cgroups_show(quiet_host, tmp_path):
    quiet_host.add_process(95, f"/docker/{B}", start_ticks=300)
    quiet_host.add_process(94, f"/docker/{B}/sub", start_ticks=400)
    quiet_host.add_process(96, "/lxc.payload.vm/init.scope")
    quiet_host.add_process(97, f"/docker/{B}/docker/{A}")
    quiet_host.add_cgroup(f"/docker/{'e5' * 32}")
    found = inventory.list_containers(host=quiet_host.roots)
    seen = {(c.id, c.name, c.runtime, c.pid, c.cgroup) for c in found.containers if c.runc_root is None}
    assert seen == {
        (B, None, "docker", 95, f"/docker/{B}"),
        ("vm", "vm", "lxc", 96, "/lxc.payload.vm"),
        (A, None, "docker", 97, f"/docker/{B}/docker/{A}"),
    }


def test_a_cgroup_with_a_known_id_is_no_second_container(quiet_host, tmp_path):
    """A container may call a cgroup of its own as it likes."""
    quiet_host.add_process(90, f"/docker/{A}")
    state = RUNC_STATE | {"id": A, "init_process_pid": 90}
    write_files(tmp_path / "run/runc", {f"{A}/state.json": json.dumps(state)})
    quiet_host.add_process(98, f"/evil/docker-{A}.scope")
    (found,) = [c for c in inventory.list_containers(host=quiet_host.roots).containers if c.id == A]
    assert (found.pid, found.cgroup) == (90, f"/docker/{A}")


def test_cgroup_that_the_container_sees_as_its_own(quiet_host, tmp_path):
    """runc with any cgroupsPath: no id in it, and init has moved below."""
    mount = "9 1 0:29 /my/box /sys/fs/cgroup ro - cgroup2 cgroup rw\n"
    quiet_host.add_process(91, "/my/box/init.scope", mountinfo=mount)
    found = inventory.container_cgroup(91, "box", quiet_host.hierarchy, quiet_host.roots.proc)
    assert found == "/my/box"
    quiet_host.add_process(92, "/my/box/init.scope", mountinfo=mount.replace("/my/box", "/other"))
    found = inventory.container_cgroup(92, "box", quiet_host.hierarchy, quiet_host.roots.proc)
    assert found == "/my/box/init.scope", "a mount that is no ancestor proves nothing"


def test_same_id_in_two_containerd_namespaces(tmp_path):
    def live(namespace, pid):
        root = runc.RuncRoot(Path(f"/run/containerd/runc/{namespace}"), "containerd", namespace)
        return runc.parse_list(json.dumps([{"id": "box", "pid": pid, "status": "running"}]), "runc", root)[0]

    named = containerd.parse_list("H\nbox  image:red  r\n", "red")
    merged = inventory.merge([live("red", 5), live("blue", 6)], named)
    assert [(c.pid, c.image, c.namespace) for c in merged] == [(5, "image:red", "red"), (6, None, "blue")]


def test_conmon_alone_is_no_container(quiet_host):
    quiet_host.add_process(99, comm="conmon", argv=CONMON)
    assert A not in {
        container.id for container in inventory.list_containers(host=quiet_host.roots).containers
    }


def test_runc_root_that_does_not_exist(quiet_host, tmp_path):
    with pytest.raises(UsageProblem, match="no such folder"):
        inventory.list_containers([tmp_path / "missing"], quiet_host.roots)
