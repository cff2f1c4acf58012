from __future__ import annotations

import pytest

from rtdebug.containers.model import Container
from rtdebug.containers.owners import owners
from rtdebug.containers.resolve import called, note_on, resolve
from rtdebug.errors import RtdebugError, TargetError, UsageProblem

from .trees import make_host

A = "a1b2" * 16
B = "a1b3" * 16
HOSTILE = "\x1b[31mweb\n\u202e"


def container(container_id, pid=None, **fields):
    status = "running" if pid else "stopped"
    return Container(
        **{
            "id": container_id,
            "name": None,
            "runtime": "docker",
            "pid": pid,
            "status": status,
            "cgroup": None,
        }
        | fields
    )


@pytest.fixture(params=[1, 2])
def host(request, tmp_path):
    host = make_host(tmp_path, request.param)
    for pid in range(10, 30):
        host.add_process(pid, f"/docker/{pid}")
    return host


def failure(target, inventory, kind=TargetError):
    with pytest.raises(kind) as caught:
        resolve(target, inventory)
    error = caught.value
    shown = error.message + error.hint
    assert not [c for c in shown.replace("\n", "") if not c.isprintable()], "nothing raw of a container's"
    return error


def test_by_id_prefix_and_name(host):
    web, other = container(A, 10, name="web"), container(B, 11, name="db")
    inventory = host.inventory(web, other)
    for target in (A, "a1b2", "web", f"docker:{A[:12]}", "docker:web"):
        assert resolve(target, inventory) is web, target


def test_exact_id_goes_before_name_and_name_before_prefix(host):
    short = container("a1", 10, runtime="runc", runc_root="/run/runc")
    named = container(B, 11, name="a1")
    prefix = container(A, 12)
    assert resolve("a1", host.inventory(prefix, named, short)) is short
    assert resolve("a1", host.inventory(prefix, named)) is named
    assert resolve("a1", host.inventory(prefix)) is prefix


def test_ambiguous_lists_all_with_targets_that_work(host):
    inventory = host.inventory(
        container(A, 10, name="web", runtime="docker"),
        container(B, 11, name="web", runtime="podman"),
        container(HOSTILE, 12, name="webby"),
    )
    error = failure("web", inventory)
    assert "ambiguous: 2 running" in error.message and error.exit_code == 4
    for id_, runtime in ((A, "docker"), (B, "podman")):
        assert f"  {id_[:12]}  {runtime} web running" in error.hint
        assert resolve(id_[:12], inventory).id == id_
    assert failure("a1b", inventory).message.startswith("'a1b' is ambiguous")
    assert resolve("podman:web", inventory).id == B


def test_ambiguous_ids_are_told_apart_by_pid(host):
    inventory = host.inventory(
        container("box", 10, runtime="runc", runc_root="/run/runc", cgroup="/docker/10"),
        container("box", 11, runtime="containerd", runc_root="/run/containerd/runc/x", cgroup="/docker/11"),
    )
    error = failure("box", inventory)
    for pid in (10, 11):
        assert f"pid:{pid}" in error.hint
        assert resolve(f"pid:{pid}", inventory).pid == pid
    assert resolve("containerd:box", inventory).pid == 11


def test_many_candidates_are_cut(host):
    inventory = host.inventory(*(container(f"{'c' * 62}{n}", n, name="web") for n in range(10, 30)))
    error = failure("web", inventory)
    assert error.hint.count("\n") < 15 and "and 8 more" in error.hint


def test_running_goes_before_stopped(host):
    old, new = container(A, name="web"), container(B, 11, name="web")
    assert resolve("web", host.inventory(old, new)) is new
    error = failure("web", host.inventory(old))
    assert "is stopped" in error.message


def test_called_finds_those_that_do_not_run_too(host):
    old, new = container(A, name="web", runtime="docker"), container(B, 11, name="web", runtime="podman")
    pause = container("c" * 64, pod="p", namespace="n", sandbox=True)
    app = container("d" * 64, pod="p", namespace="n", name="app")
    inventory = host.inventory(old, new, pause, app)
    assert called("web", inventory) == (old, new)
    assert called("docker:web", inventory) == (old,)
    assert called(A[:12], inventory) == (old,)
    assert called("pod/n/p", inventory) == (app,)
    assert called("pod/n/other", inventory) == called("docker:", inventory) == called("nobody", inventory) == ()


def test_a_cgroup_that_is_gone_is_owned_by_the_stopped_container_of_its_id(host):
    owner = owners([container(A, name="web", runtime="docker"), container(B, 11, name="db", cgroup="/docker/11")])
    found = owner(f"/docker/{A}/below")
    assert (found.name, found.id, found.cgroup) == ("web", A, f"/docker/{A}")
    assert owner("/docker/11/below").name == "db"
    assert owner(f"/docker/{'c' * 64}").name is None


def test_just_exited(host):
    assert "just exited" in failure("web", host.inventory(container(A, 999, name="web"))).message


def test_running_but_not_on_this_host(host):
    elsewhere = container(A, name="web", status="running")
    assert "shows no process" in failure("web", host.inventory(elsewhere)).message


def test_unknown_with_near_misses(host):
    inventory = host.inventory(container(A, 10, name="postgres-main"), container(B, 11, name=HOSTILE))
    assert "postgres-main" in failure("postgres-man", inventory).hint
    assert "postgres-main" in failure("main", inventory).hint
    assert "rtdebug ps" in failure("zzz", inventory).hint
    assert "no container runs" in failure("zzz", host.inventory()).hint
    assert r"\x1b[31mweb\n\u202e" in failure("mweb", inventory).hint


@pytest.mark.parametrize(
    ("target", "hint"),
    [
        ("podman:web", "do you mean docker:web?"),
        ("runc:web", "do you mean docker:web?"),
        ("podman:a1b2", f"do you mean docker:{A[:12]}?"),
        ("docker:box", "do you mean runc:box?"),
        ("podman:both", "do you mean docker:both or containerd:both?"),
    ],
)
def test_of_another_runtime(host, target, hint):
    inventory = host.inventory(
        container(A, 10, name="web"),
        container("box", 11, runtime="crun", runc_root="/run/crun"),
        container(B, 12, name="both"),
        container("c" * 64, 13, name="both", runtime="containerd"),
    )
    error = failure(target, inventory)
    assert (error.message, error.hint) == (f"no container {target!r}", hint)
    for better in hint.removeprefix("do you mean ").removesuffix("?").split(" or "):
        assert resolve(better, inventory)


def test_of_another_runtime_twice_or_with_a_hostile_name(host):
    twins = host.inventory(
        container("box", 10, runtime="runc", runc_root="/run/runc"),
        container("box", 11, runtime="runc", runc_root="/run/other"),
    )
    assert failure("docker:box", twins).hint == "do you mean pid:10 or pid:11?"
    hostile = host.inventory(container(A, 10, name=HOSTILE))
    assert r"docker:\x1b[31mweb\n\u202e" in failure(f"podman:{HOSTILE}", hostile).hint


def test_near_misses_of_another_runtime_say_whose_they_are(host):
    error = failure("podman:postgres-man", host.inventory(container(A, 10, name="postgres-main")))
    assert "docker postgres-main running" in error.hint


@pytest.mark.parametrize("target", ["runc:zzz", "zzz", "runc:bix"])
def test_not_found_may_be_in_another_root(host, target):
    inventory = host.inventory(container("box", 10, runtime="runc", runc_root="/run/runc"))
    assert "--runc-root DIR" in failure(target, inventory).hint
    assert "--runc-root" in failure(target, host.inventory()).hint


def test_hostile_name_is_found_by_its_exact_text(host):
    inventory = host.inventory(container(A, 10, name=HOSTILE))
    assert resolve(HOSTILE, inventory).id == A


def test_runc_means_whatever_runc_started(host):
    inventory = host.inventory(
        container(A, 10, name="web", runc_root="/run/docker/runtime-runc/moby"),
        container("box", 11, runtime="runc", runc_root="/run/runc"),
        container("vm", 12, runtime="lxc"),
    )
    assert resolve(f"runc:{A[:8]}", inventory).pid == 10
    assert resolve("runc:box", inventory).pid == 11
    failure("runc:vm", inventory)
    failure("containerd:box", inventory)


# Pods


def pod_of(name, pid, namespace="shop", pod="web-0", **fields):
    return container(name * 64, pid, name=name, pod=pod, namespace=namespace, runtime="containerd", **fields)


def test_pod_with_one_application(host):
    inventory = host.inventory(
        pod_of("a", 10),
        pod_of("p", 11, sandbox=True),
        pod_of("o", 12, namespace="other"),
        pod_of("q", 13, pod="x"),
    )
    assert resolve("pod/shop/web-0", inventory).pid == 10
    assert resolve("pod/other/web-0", inventory).pid == 12


def test_pod_with_several(host):
    error = failure(
        "pod/shop/web-0", host.inventory(pod_of("a", 10), pod_of("b", 11), pod_of("p", 12, sandbox=True))
    )
    assert "ambiguous: 2" in error.message
    assert "a" * 12 in error.hint and "pod/shop/web-0" in error.hint and "p" * 12 not in error.hint


def test_pod_with_finished_init_container(host):
    assert resolve("pod/shop/web-0", host.inventory(pod_of("i", None), pod_of("a", 10))).pid == 10


def test_pod_that_is_only_its_sandbox(host):
    assert resolve("pod/shop/web-0", host.inventory(pod_of("p", 10, sandbox=True))).pid == 10


def test_unknown_pod(host):
    inventory = host.inventory(pod_of("a", 10))
    assert "pod/shop/web-0" in failure("pod/shop/web-1", inventory).hint
    assert "no pod runs" in failure("pod/shop/web-1", host.inventory()).hint
    for target in ("pod/web-0", "pod//", "pod/a/b/c"):
        failure(target, inventory, UsageProblem)


# Cgroups


def test_cgroup_of_a_container_and_a_bare_one(host):
    host.add_cgroup("/batch/job-7")
    web = container(A, 10, cgroup="/docker/10")
    inventory = host.inventory(web)
    absolute = f"{host.hierarchy.mount_point}/docker/10"
    for target in ("cgroup:/docker/10", "cgroup:docker/10/", f"cgroup:{absolute}"):
        assert resolve(target, inventory) is web, target
        assert note_on(web) is None
    bare = resolve("cgroup:/batch/job-7", inventory)
    assert (bare.id, bare.cgroup, bare.runtime, bare.pid) == ("/batch/job-7", "/batch/job-7", None, None)
    assert "not a container's" in (note_on(bare) or "")
    assert resolve("cgroup:/docker", inventory).status == "running", "its descendants have processes"


def test_cgroup_that_is_not_there(host):
    host.add_cgroup("/batch/job-7")
    assert "/batch/job-7" in failure("cgroup:/batch/job-8", host.inventory()).hint
    failure("cgroup:/batch/\x1b[1m", host.inventory())
    assert (
        "is not in the memory controller's"
        in failure("cgroup:/sys/fs/cgroup/cpu/x", host.inventory()).message
    )


@pytest.mark.parametrize("path", ["../etc", "/docker/../../etc", "a\0b"])
def test_cgroup_path_cannot_climb(host, path):
    (host.folder / "etc").mkdir()
    failure(f"cgroup:{path}", host.inventory(), UsageProblem)


# Processes


def test_process_in_a_container(host):
    host.add_process(40, "/docker/10/worker")
    outer, inner = container(A, 10, cgroup="/docker"), container(B, 11, cgroup="/docker/10")
    assert resolve("pid:40", host.inventory(outer, inner)) is inner, "the innermost"


def test_cgroup_with_a_longer_name_is_not_below(host):
    host.add_process(40, "/docker/100")
    found = resolve("pid:40", host.inventory(container(A, 10, cgroup="/docker/10")))
    assert found.runtime is None


def test_two_containers_in_one_cgroup_differ_by_pid_namespace(host):
    for pid, namespaces in ((40, "one"), (41, "two"), (42, "two")):
        host.add_process(pid, "/shared", namespaces=namespaces)
    inventory = host.inventory(container(A, 40, cgroup="/shared"), container(B, 41, cgroup="/shared"))
    assert resolve("pid:42", inventory).id == B


def test_process_whose_container_only_its_mounts_give_away(host):
    mount = f"9 1 8:1 /var/lib/docker/containers/{A}/hosts /etc/hosts rw - ext4 /dev/sda rw\n"
    host.add_process(40, "/", mountinfo=mount)
    assert resolve("pid:40", host.inventory(container(A, 10, cgroup="/"))).id == A


def test_bare_process(host):
    host.add_process(40, "/system.slice/x.service", comm=HOSTILE.replace("\n", ""))
    found = resolve("pid:40", host.inventory(container(A, 10, cgroup="/docker/10")))
    assert (found.id, found.runtime, found.pid, found.cgroup) == (
        "pid:40",
        None,
        40,
        "/system.slice/x.service",
    )
    note = note_on(found) or ""
    assert "not in a container" in note and note.isprintable()


def test_container_in_the_root_cgroup_does_not_own_the_host(host):
    host.add_process(40, "/")
    assert resolve("pid:40", host.inventory(container(A, 10, cgroup="/"))).runtime is None


def test_thread_stands_for_its_process(host):
    host.add_process(40, "/docker/10")
    host.add_process(41, "/docker/10")
    status = host.folder / "proc/41/status"
    status.write_text(status.read_text().replace("Tgid:\t41", "Tgid:\t40"))
    assert resolve("pid:41", host.inventory()).pid == 40


@pytest.mark.parametrize("pid", ["999", "99999999999999999999"])
def test_no_such_process(host, pid):
    assert "no process" in failure(f"pid:{pid}", host.inventory()).message


def test_zombie_is_no_target(host):
    host.add_process(40)
    stat = host.folder / "proc/40/stat"
    stat.write_text(stat.read_text().replace(") S ", ") Z "))
    failure("pid:40", host.inventory())


@pytest.mark.parametrize(
    "target", ["", "docker:", "runc:", "pid:", "pid:x", "pid:-1", "pid:0", "pid:1/2", "pid:١"]
)
def test_no_target_at_all(host, target):
    error = failure(target, host.inventory(), RtdebugError)
    assert error.exit_code == 2 and error.hint
