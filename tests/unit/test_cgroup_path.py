from __future__ import annotations

import re

import pytest
import yaml

from rtdebug.containers.cgroup_path import container_id_of_mounts, identify, parse_cgroup_path
from rtdebug.host.cgroup import parse_proc_cgroup
from rtdebug.host.mounts import parse_mountinfo

A = "a1" * 32
B = "b2" * 32
POD = "0f8c641e-1111-2222-3333-444455556666"
POD_ = POD.replace("-", "_")
TASK = "c3" * 16


@pytest.mark.parametrize(
    ("path", "container_id", "runtime"),
    [
        (f"/docker/{A}", A, "docker"),
        (f"/system.slice/docker-{A}.scope", A, "docker"),
        (f"/machine.slice/libpod-{A}.scope", A, "podman"),
        (f"/libpod_parent/libpod-{A}", A, "podman"),
        (f"/machine.slice/libpod-payload-{A}", A, "podman"),
        (f"/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{A}.scope/container", A, "podman"),
        (f"/system.slice/nerdctl-{A}.scope", A, "containerd"),
        (f"/default/{A}", A, None),
        (f"/actions_job/{A}", A, None),
        (f"/x/unheard-of-{A}.scope", A, None),
        (f"/system.slice:docker:{A}", A, "docker"),
        ("/user.slice/runc-my-box.1.scope", "my-box.1", "runc"),
        (f"/ecs/{TASK}/{A}", A, None),
        (f"/ecs/{TASK}/{TASK}-1234567890", f"{TASK}-1234567890", None),
        ("/garden/7a9d8a58-0000-4111-8222-333344445555", "7a9d8a58-0000-4111-8222-333344445555", "garden"),
        ("/docker/buildkit/rq1v3n0k2m4p5s6t7u8w9x0yz", "rq1v3n0k2m4p5s6t7u8w9x0yz", "buildkit"),
        ("/mesos/7a9d8a58-0000-4111-8222-333344445555", "7a9d8a58-0000-4111-8222-333344445555", "mesos"),
        (f"/libpod_parent/{B}/libpod-{A}", A, "podman"),
        (f"/kata_{A}", A, "kata"),
        (f"/kata_overhead/{A}", A, "kata"),
        (f"/nomad.slice/share.slice/{POD}.my.task.scope", f"{POD}.my.task", "nomad"),
        (f"/nomad.slice/{POD}.db.scope", f"{POD}.db", "nomad"),
        ("/system.slice/system.slice:docker:rq1v3n0k2m4p5s6t7u8w9x0yz", "rq1v3n0k2m4p5s6t7u8w9x0yz", "buildkit"),
        ("/system.slice/buildkit-rq1v3n0k2m4p5s6t7u8w9x0yz.scope", "rq1v3n0k2m4p5s6t7u8w9x0yz", "buildkit"),
        (r"/machine.slice/machine-a\x2db.scope/payload/system.slice/x.service", "a-b", "systemd-nspawn"),
        ("/machine.slice/systemd-nspawn@box.service/payload/init.scope", "box", "systemd-nspawn"),
        ("/machine.slice/container@nix.service/payload", "nix", "systemd-nspawn"),
        (r"/machine.slice/machine-lxc\x2d77\x2da\x2db.scope/libvirt", "a-b", "libvirt-lxc"),
        ("/machine/old.libvirt-lxc", "old", "libvirt-lxc"),
        ("/machine.slice/machine-rkt\\x2d" + POD.replace("-", "\\x2d") + ".scope/system.slice/a.service", POD, "rkt"),
    ],
)
def test_containers(path, container_id, runtime):
    found = parse_cgroup_path(path)
    assert (found.kind, found.container_id, found.runtime) == ("container", container_id, runtime)
    assert found.outer_container_id is None


@pytest.mark.parametrize(
    ("path", "pod_uid", "qos"),
    [
        (f"/kubepods/besteffort/pod{POD}/{A}", POD, "besteffort"),
        (f"/kubepods/pod{POD}/{A}", POD, "guaranteed"),
        (f"/kubepods/guaranteed/pod{POD}/{A}", POD, "guaranteed"),
        (f"/kubepods.slice/kubepods-pod{POD_}.slice/crio-{A}.scope", POD, "guaranteed"),
        (f"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/"
         f"kubelet-kubepods-burstable-pod{POD_}.slice/cri-containerd-{A}.scope", POD, "burstable"),
        (f"/kubelet/kubepods/burstable/pod{TASK}/{A}", TASK, "burstable"),
        (f"/x.service/kubepods-besteffort-pod{POD_}.slice:cri-containerd:{A}", POD, "besteffort"),
    ],
)  # fmt: skip
def test_pods(path, pod_uid, qos):
    found = parse_cgroup_path(path)
    assert (found.container_id, found.pod_uid, found.qos) == (A, pod_uid, qos)


def test_pod_itself_is_no_container():
    found = parse_cgroup_path(f"/kubepods/burstable/pod{POD}")
    assert (found.kind, found.container_id, found.pod_uid) == ("pod", None, POD)


def test_innermost_container_and_the_one_around_it():
    found = parse_cgroup_path(f"/docker/{A}/kubelet/kubepods/pod{POD}/{B}/worker/7")
    assert (found.container_id, found.outer_container_id, found.pod_uid) == (B, A, POD)
    assert found.container_cgroup == f"/docker/{A}/kubelet/kubepods/pod{POD}/{B}"
    assert found.sub_cgroup == "worker/7"


def test_docker_in_lxc():
    found = parse_cgroup_path(f"/lxc/101/ns/system.slice/docker-{A}.scope")
    assert (found.kind, found.runtime, found.container_id, found.lxc_name) == (
        "container",
        "docker",
        A,
        "101",
    )


@pytest.mark.parametrize(
    "path", ["/lxc/p1", "/lxc.payload.p1", "/lxc.payload/p1", "/lxc/p1/ns/.lxc/init.scope"]
)
def test_lxc(path):
    found = parse_cgroup_path(path)
    assert (found.kind, found.runtime, found.lxc_name, found.container_id) == ("lxc", "lxc", "p1", None)


@pytest.mark.parametrize(
    "path",
    [
        "/lxc.monitor.p1",
        "/lxc.monitor/p1",
        "/libpod_parent/conmon",
        f"/machine.slice/libpod-conmon-{A}.scope",
        f"/system.slice/crio-conmon-{A}.scope",
        f"/machine.slice/libpod-{A[:60]}.scope/conmon",
        f"/libpod_parent/{A}/conmon",
        "/lxc.pivot",
        "/machine.slice/systemd-nspawn@box.service/supervisor",
    ],
)
def test_monitors_are_not_the_container(path):
    found = parse_cgroup_path(path)
    assert (found.kind, found.container_id, found.container_cgroup) == ("monitor", None, None)


@pytest.mark.parametrize(
    "inner",
    ["conmon", "lxc.monitor.x", "system.slice/sshd.service", "session-3.scope", "machine-x.scope/payload"],
)
def test_what_a_container_makes_inside_stays_its_own(inner):
    found = parse_cgroup_path(f"/docker/{A}/{inner}")
    assert (found.kind, found.container_id, found.sub_cgroup) == ("container", A, inner)


@pytest.mark.parametrize(
    "path",
    [
        f"/docker/{A}f",
        f"/docker/{A[:63]}",
        f"/docker/{A.upper()}",
        f"/system.slice/docker-{A}f.scope",
        f"/docker/{A}\x1b[31m",
        "/docker/buildkit",
        "/garden",
        "/kubepods/burstable",
        f"/libpod_parent/{A}",
        "/system.slice/foo.service/payload",
        "/system.slice/system.slice:docker:rq1v3n0k2m4p5s6t7u8w9x0yzz",
        "",
    ],
)
def test_almost_an_id(path):
    assert parse_cgroup_path(path).container_id is None


@pytest.mark.parametrize(
    ("path", "kind", "unit"),
    [
        ("/", "host", None),
        ("/init.scope", "host", None),
        ("/system.slice/nginx.service", "service", "nginx.service"),
        (r"/system.slice/a\x2db.service/sub", "service", "a-b.service"),
        ("/user.slice/user-1000.slice/session-5.scope", "session", "session-5.scope"),
        ("/kubepods.slice", "service", "kubepods.slice"),
        ("/user.slice/user-7.slice/user@7.service/init.scope", "service", "user@7.service"),
        (r"/machine.slice/machine-qemu\x2d3\x2dvm.scope/libvirt/emulator", "service", "machine-qemu-3-vm.scope"),
        ("/rtdebug-try/x", "unknown", None),
    ],
)
def test_what_is_no_container(path, kind, unit):
    found = parse_cgroup_path(path)
    assert (found.kind, found.unit, found.container_id) == (kind, unit, None)


def test_memory_in_the_root_leaves_only_the_id():
    """docker 0.9: the memory of `/` is the host's, so no cgroup of the container is named."""
    found = identify(parse_proc_cgroup(f"7:devices:/docker/{A}\n6:memory:/\n"))
    assert (found.container_id, found.path, found.container_cgroup) == (A, "/", None)


def test_case_044(cases):
    expected = yaml.safe_load((cases / "044-cgroup-paths-k8s-docker-lxc.yaml").read_text())["expected"][
        "paths"
    ]
    paths = (cases / "044-cgroup-paths-k8s-docker-lxc.paths").read_text().splitlines()
    assert paths == [case["path"] for case in expected]
    for case in expected:
        found = parse_cgroup_path(case["path"])
        for key in ("kind", "container_id", "runtime", "pod_uid", "qos"):
            assert getattr(found, key) == case[key], (case["path"], key)
        for key in ("unit", "lxc_name", "sub_cgroup"):
            if key in case:
                assert getattr(found, key) == case[key], (case["path"], key)


def test_case_046(cases):
    name = "046-proc-cgroup-v1-docker-history"
    expected = yaml.safe_load((cases / f"{name}.yaml").read_text())["expected"]["files"]
    for file, values in expected.items():
        found = identify(parse_proc_cgroup((cases / f"{name}.{file}.txt").read_text()))
        assert found.container_id == values["container_id"], file
        assert found.lxc_name == values.get("lxc_name"), file


def test_case_047(cases):
    name = "047-mountinfo-v2-container-id"
    expected = yaml.safe_load((cases / f"{name}.yaml").read_text())["expected"]["files"]
    for file, values in expected.items():
        mounts = parse_mountinfo((cases / f"{name}.{file}.mountinfo").read_text())
        assert container_id_of_mounts(mounts) == values["container_id"], file
        cgroup = cases / f"{name}.{file}.cgroup"
        if "pod_uid" in values:
            found = identify(parse_proc_cgroup(cgroup.read_text()))
            for key in ("container_id", "pod_uid", "runtime", "qos"):
                assert getattr(found, key) == values[key], (file, key)


def test_case_049(cases):
    expected = yaml.safe_load((cases / "049-cgroupns-relative-path-session.yaml").read_text())["expected"]
    found = parse_cgroup_path(expected["resolved_path"])
    assert found.container_id is None
    assert f"user {found.kind}" == expected["kind"]
    mounts = parse_mountinfo((cases / "049-cgroupns-relative-path-session.mountinfo").read_text())
    assert container_id_of_mounts(mounts) is None


def test_case_050(cases):
    name = "050-hybrid-v1-with-0-line"
    expected = yaml.safe_load((cases / f"{name}.yaml").read_text())["expected"]["files"]
    for file, values in expected.items():
        found = identify(parse_proc_cgroup((cases / f"{name}.{file}.cgroup").read_text()))
        for key in ("container_id", "pod_uid", "qos", "runtime", "unit"):
            if key in values:
                assert getattr(found, key) == values[key], (file, key)


def test_cgroups_of_all_kernel_logs(cases):
    """Every victim's cgroup in the logs: one container at most is named, as the case says."""
    checked = 0
    for path in cases.glob("0[0-4]*.yaml"):
        text = path.read_text()
        for cgroup in re.findall(r"task_memcg: (/\S+)", text):
            found = parse_cgroup_path(cgroup)
            for name in re.findall("[0-9a-f]{64}", cgroup):
                assert name in (found.container_id, found.outer_container_id)
                checked += 1
    assert checked


def test_podmans_mounts_give_its_id_and_volumes_do_not():
    line = "1 0 8:1 {} {} rw - ext4 /dev/sda rw\n"
    podman = line.format(f"/c/storage/overlay-containers/{A}/userdata/hosts", "/etc/hosts")
    volume = line.format(f"/var/lib/docker/volumes/x/_data/containers/{B}/hosts", "/etc/hosts")
    elsewhere = line.format(f"/var/lib/docker/containers/{B}/hosts", "/mnt/hosts")
    assert container_id_of_mounts(parse_mountinfo(volume + elsewhere + podman)) == A
    assert container_id_of_mounts(parse_mountinfo(volume + elsewhere)) is None


@pytest.mark.parametrize(
    ("files", "container_id"),
    [
        pytest.param({"/etc/hostname": f"/c/vfs-containers/{A}/userdata/hostname"}, A, id="podman, another driver"),
        pytest.param({"/run/.containerenv": f"/c/overlay-containers/{A}/userdata/.containerenv"}, A, id="podman"),
        pytest.param(
            {"/etc/resolv.conf": f"/containers/{B}/resolv.conf", "/etc/hostname": f"/containers/{A}/hostname"},
            A,
            id="in the network of another",
        ),
        pytest.param({"/etc/hosts": f"/{A}/hosts"}, A, id="docker's containers on a disk of their own"),
        pytest.param({"/etc/hosts": f"/x/{A}/hosts"}, None, id="any folder"),
        pytest.param(
            {"/etc/hostname": f"/docker/containers/{A}/hostname", "/etc/hosts": f"/kubelet/pods/{POD}/etc-hosts"},
            None,
            id="a pod's sandbox is not the container",
        ),
        pytest.param(
            {
                "/run/.containerenv": f"/c/overlay-containers/{A}/userdata/.containerenv",
                "/etc/hosts": f"/pods/{POD}/etc-hosts",
            },
            None,
            id="a sandbox of CRI-O",
        ),
    ],
)
def test_files_of_the_runtime_mounted_inside(files, container_id):
    text = "".join(f"1 0 8:1 {root} {path} rw - ext4 /dev/sda rw\n" for path, root in files.items())
    assert container_id_of_mounts(parse_mountinfo(text)) == container_id
    cgroup = f"2 0 0:9 /kubepods/pod{POD}/{B} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    assert container_id_of_mounts(parse_mountinfo(text + cgroup)) == B, "the cgroup it sees is its own"
