import json
import re
from dataclasses import replace

import pytest
from hypothesis import given

from rtdebug.errors import HostUnable, RtdebugError
from rtdebug.host import features
from rtdebug.host.bcc import find_bcc, parse_version, read_version
from rtdebug.host.capabilities import Capability, parse_effective, read_effective
from rtdebug.host.features import (
    AS_ROOT,
    FULL_ROOT,
    REQUIREMENTS,
    TRACEPOINTS,
    Check,
    Host,
    Requirement,
    State,
    blocking,
    host_unable,
    parse_lockdown,
)
from rtdebug.render.doctor import doctor_fields, render_doctor
from rtdebug.render.jsonl import encode_object
from rtdebug.tracing.program import FUNCTION_PROBES, PROBES
from tests.unit.lines import HOSTILE

FIRST = {"mnt": 4026531832, "cgroup": 4026531835, "pid": 4026531836, "user": 4026531837}


@pytest.fixture
def host(tmp_path):
    """A host where everything is as it should be, made of files."""
    files = {
        "proc/self/status": "Name:\tpython3\nCapEff:\t000001ffffffffff\n",
        "proc/sys/net/core/bpf_jit_enable": "1\n",
        "proc/sys/kernel/unprivileged_bpf_disabled": "2\n",
        "proc/pressure/memory": "some avg10=0.00\n",
        "proc/self/mountinfo": "31 1 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
        "sys/kernel/btf/vmlinux": "",
        "sys/kernel/tracing/events/enable": "0\n",
        "dev/kmsg": "",
        "usr/lib/python3/dist-packages/bcc/libbcc.py": "",
        "usr/lib/python3/dist-packages/bcc/version.py": "__version__ = '0.31.0'\n",
    }
    for name, text in files.items():
        write(tmp_path / name, text)
    for pid in ("self", "1"):
        for kind, number in FIRST.items():
            namespace(tmp_path, pid, kind, number)
    runtime(tmp_path, "runc", "echo runc version 1.2.3+ds1; echo commit: 4.5")
    return Host(tmp_path, search_path=str(tmp_path / "bin"), release="6.1.0-test", is_root=False)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def namespace(root, pid, kind, number):
    link = root / "proc" / pid / "ns" / kind
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(f"{kind}:[{number}]")


def runtime(root, name, script):
    path = root / "bin" / name
    write(path, f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def look(host, name):
    (requirement,) = [each for each in REQUIREMENTS if each.name == name]
    return requirement.check(host)


@pytest.mark.parametrize(
    ("name", "detail"),
    [
        ("CAP_BPF", "held"),
        ("kernel_types", "BTF; "),
        ("tracefs", "mounted at"),
        ("jit", "on"),
        ("unprivileged_bpf", "off; "),
        ("memory_controller", "cgroup v1 at /sys/fs/cgroup/memory"),
        ("psi", "pressure/memory"),
        ("kernel_log", "can be read"),
        ("pid_namespace", "the host's"),
        ("mount_namespace", "the host's"),
        ("cgroup_namespace", "the host's"),
        ("runc", "1.2.3+ds1 at "),
    ],
)
def test_a_host_where_all_is_well(host, name, detail):
    found = look(host, name)
    assert (found.state, found.remedy) == (State.OK, "")
    assert detail in found.detail


def without(name):
    return lambda root: (root / name).unlink()


def holding(name, text):
    return lambda root: write(root / name, text)


def in_namespace(pid, kind):
    return lambda root: namespace(root, pid, kind, 4026532666)


def no_tracefs(root):
    without("sys/kernel/tracing/events/enable")(root)
    (root / "sys/kernel/tracing/events").rmdir()


def headers_only(root):
    without("sys/kernel/btf/vmlinux")(root)
    (root / "lib/modules/6.1.0-test/build").mkdir(parents=True)


@pytest.mark.parametrize(
    ("name", "change", "state", "remedy"),
    [
        pytest.param(
            "CAP_BPF", holding("proc/self/status", "CapEff:\t0\n"), "missing", "root", id="no capability"
        ),
        pytest.param(
            "locked_memory", holding("proc/self/status", "CapEff:\t0\n"), "unknown", "root", id="cannot be tried"
        ),
        pytest.param("tracefs", no_tracefs, "not_needed", "none needed", id="no tracefs"),
        pytest.param("CAP_BPF", without("proc/self/status"), "unknown", "", id="no status"),
        pytest.param(
            "CAP_BPF", in_namespace("self", "user"), "missing", "root of the host", id="user namespace"
        ),
        pytest.param(
            "kernel_types",
            without("sys/kernel/btf/vmlinux"),
            "missing",
            "CONFIG_DEBUG_INFO_BTF",
            id="no types",
        ),
        pytest.param("kernel_types", headers_only, "missing", "CONFIG_DEBUG_INFO_BTF", id="headers only"),
        pytest.param(
            "bcc",
            without("usr/lib/python3/dist-packages/bcc/libbcc.py"),
            "missing",
            "python3-bpfcc",
            id="the bcc of PyPI",
        ),
        pytest.param(
            "jit",
            holding("proc/sys/net/core/bpf_jit_enable", "0\n"),
            "degraded",
            "bpf_jit_enable=1",
            id="JIT off",
        ),
        pytest.param("jit", without("proc/sys/net/core/bpf_jit_enable"), "unknown", "", id="JIT unknown"),
        pytest.param(
            "memory_controller",
            holding("proc/self/mountinfo", "31 1 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"),
            "missing",
            "mount",
            id="no memory controller",
        ),
        pytest.param("psi", without("proc/pressure/memory"), "degraded", "psi=1", id="no PSI"),
        pytest.param("kernel_log", without("dev/kmsg"), "degraded", "mount the host's", id="no kmsg"),
        pytest.param("pid_namespace", in_namespace("self", "pid"), "missing", "--pid=host", id="own pids"),
        pytest.param("mount_namespace", in_namespace("self", "mnt"), "degraded", "mount", id="own mounts"),
        pytest.param(
            "cgroup_namespace",
            in_namespace("self", "cgroup"),
            "degraded",
            "--cgroupns=host",
            id="own cgroups",
        ),
        pytest.param(
            "runc", without("bin/runc"), "not_needed", "nothing, if no containers of runc", id="no runc"
        ),
    ],
)
def test_what_is_not_well_comes_with_its_remedy(host, name, change, state, remedy):
    change(host.root)
    found = look(host, name)
    assert found.state == state
    assert remedy in found.remedy


def refuse():
    raise RtdebugError("the kernel has none")


@pytest.mark.parametrize(
    ("fentry", "kprobe", "states", "detail"),
    [
        pytest.param(refuse, refuse, ("degraded", "degraded"), "limit from the kernel log", id="neither"),
        pytest.param(int, refuse, ("ok", "not_needed"), "fentry is used", id="fentry"),
        pytest.param(refuse, int, ("not_needed", "ok"), "kprobe is used", id="kprobe"),
        pytest.param(int, int, ("ok", "ok"), None, id="both"),
    ],
)
def test_one_way_to_ask_out_of_memory_is_enough(monkeypatch, fentry, kprobe, states, detail):
    for kind, attempt in (("fentry", fentry), ("kprobe", kprobe)):
        monkeypatch.setitem(features._OOM_PROBES, kind, replace(features._OOM_PROBES[kind], attempt=attempt))
    monkeypatch.setattr(features, "read_effective", lambda *_: frozenset(Capability))
    found = [look(Host(), kind) for kind in ("fentry", "kprobe")]
    assert tuple(each.state for each in found) == states
    assert all(detail in each.detail for each in found if each.state is not State.OK)


def test_the_first_mount_namespace_is_known_by_its_number_where_pid_1_cannot_be_read(host):
    (host.root / "proc/1/ns/mnt").unlink()
    assert look(host, "mount_namespace").state is State.OK
    namespace(host.root, "self", "mnt", 4026532666)
    assert look(host, "mount_namespace").state is State.UNKNOWN


def test_a_container_with_the_hosts_pids_is_fine(host):
    namespace(host.root, "self", "mnt", 4026532666)
    assert look(host, "pid_namespace").state is State.OK
    assert not look(host, "mount_namespace").required


def test_a_runtime_that_hangs_or_says_nothing_sensible(host):
    runtime(host.root, "runc", "echo '\x1b[2Jhello'")
    assert look(host, "runc").detail.startswith("of unknown version")
    runtime(host.root, "crun", "exec sleep 60")
    short = Requirement("crun", "", lambda host: features._runtime("crun", host, timeout_s=0.1)).check(host)
    assert short.state is State.DEGRADED
    assert "does not answer" in short.detail


def test_a_check_that_fails_in_an_unforeseen_way_is_unknown(host):
    def look_in_vain(host):
        raise PermissionError(13, "Permission denied", "/x")

    found = Requirement("x", "y", look_in_vain).check(host)
    assert found.state is State.UNKNOWN
    assert "/x" in found.detail


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("CapEff:\t0000000000000000\n", set(), id="none"),
        pytest.param("CapEff:\t0000000000080000\n", {Capability.CAP_SYS_PTRACE}, id="ptrace"),
        pytest.param("CapEff:\t000000c000000000\n", {Capability.CAP_BPF, Capability.CAP_PERFMON}, id="bpf"),
        pytest.param(
            "CapEff:\t0000000000200000\n",
            {Capability.CAP_SYS_ADMIN, Capability.CAP_BPF, Capability.CAP_PERFMON, Capability.CAP_SYSLOG},
            id="CAP_SYS_ADMIN has the others in it",
        ),
        pytest.param("Name:\tx\n", None, id="not said"),
    ],
)
def test_parse_effective(text, expected):
    assert parse_effective(text) == expected


def test_read_effective_of_a_proc_that_is_not_there(tmp_path):
    assert read_effective(tmp_path) is None


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ("none [integrity] confidentiality\n", "integrity"),
        ("[none] integrity confidentiality\n", "none"),
        ("", "unknown"),
    ],
)
def test_parse_lockdown(text, mode):
    assert parse_lockdown(text) == mode


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("runc version 1.1.5+ds1\ncommit: 1.1.5", "1.1.5+ds1"),
        ("Docker version 28.2.2, build e6534b4", "28.2.2"),
        ("containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u3", "1.6.20~ds1"),
        ("containerd github.com/containerd/containerd/v2 v2.1.0 061792f", "2.1.0"),
        ("podman version 4.3.1", "4.3.1"),
        ("nonsense", None),
    ],
)
def test_parse_version_of_a_runtime(text, version):
    assert features.parse_version(text) == version


def test_bcc_is_found_without_importing_it(host):
    folder = find_bcc(host.root)
    assert folder == host.root / "usr/lib/python3/dist-packages/bcc"
    assert read_version(folder) == "0.31.0"
    assert parse_version("version = 1") is None
    assert read_version(host.root) is None


def test_bcc_of_the_users_choice(host, monkeypatch):
    monkeypatch.setenv("RTDEBUG_BCC", str(host.root / "nowhere"))
    with pytest.raises(HostUnable, match="bcc is not installed"):
        find_bcc(host.root)


def test_names_are_words_and_stand_once():
    names = [requirement.name for requirement in REQUIREMENTS]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"\w+", name) for name in names)


def test_the_tracepoints_are_those_that_trace_attaches_to():
    assert set(TRACEPOINTS) == {probe.tracepoint for probe in PROBES}
    functions = {probe.attempt.args for probe in features._OOM_PROBES.values()}
    assert functions == {(probe.kernel_function,) for probe in FUNCTION_PROBES}


def check(name, state, required=False, detail="found", remedy="do this"):
    return Check(name, State(state), detail, "a purpose", remedy if state != "ok" else "", required)


CHECKS = [
    check("bcc", "missing", required=True, remedy="apt-get install python3-bpfcc"),
    check("tracefs", "not_needed"),
    check("CAP_SYSLOG", "missing"),
    check("jit", "degraded", detail="off: programs are interpreted, which takes far longer for each call"),
    check("lockdown", "unknown", required=True),
    check("ring_buffer", "ok", required=True),
]


def test_only_what_is_required_and_surely_missing_blocks():
    assert [each.name for each in blocking(CHECKS)] == ["bcc"]
    assert blocking(CHECKS[1:]) == ()


def test_the_error_lists_everything_with_its_remedy():
    error = host_unable([*CHECKS, check("libbpf", "missing", required=True, remedy="")])
    assert error.message == "tracing cannot run here: bcc, libbpf"
    assert error.hint == "bcc: apt-get install python3-bpfcc\nlibbpf: found"


def test_whatever_root_would_put_right_is_one_reason():
    for_root = [check(name, "missing", True, remedy=AS_ROOT) for name in ("CAP_BPF", "CAP_PERFMON", "lockdown")]
    error = host_unable(for_root)
    assert (error.message, error.hint) == ("tracing needs root", AS_ROOT)
    error = host_unable([*for_root, *CHECKS])
    assert error.message == "tracing needs root; also missing: bcc"
    assert error.hint == f"{AS_ROOT}\nbcc: apt-get install python3-bpfcc"


def test_a_root_without_its_capabilities_is_not_told_to_become_root():
    lacking = [check(name, "missing", True, remedy=FULL_ROOT) for name in ("CAP_BPF", "CAP_PERFMON", "ring_buffer")]
    error = host_unable(lacking)
    assert (error.message, error.hint) == ("tracing needs CAP_BPF and CAP_PERFMON", FULL_ROOT)


def test_a_host_knows_which_of_the_two_it_is(host):
    holding("proc/self/status", "CapEff:\t0\n")(host.root)
    assert look(host, "CAP_BPF").remedy == AS_ROOT
    assert look(replace(host, is_root=True), "CAP_BPF").remedy == FULL_ROOT


GOLDEN = """\
STATE       CHECK                 NEEDED FOR: FOUND

rtdebug trace needs
missing     bcc                   a purpose: found
                                  remedy: apt-get install python3-bpfcc
unknown     lockdown              a purpose: found
                                  remedy: do this
ok          ring_buffer           a purpose: found

Not needed for a trace, but good to have or to know
not needed  tracefs               a purpose: found
missing     CAP_SYSLOG            a purpose: found
                                  remedy: do this
degraded    jit                   a purpose: off: programs are interpreted,
                                  which takes far longer for each call
                                  remedy: do this

tracing cannot run here: bcc.
"""


def test_golden():
    assert "\n".join(render_doctor(CHECKS)) + "\n" == GOLDEN
    assert render_doctor(CHECKS[1:])[-1] == "rtdebug trace can run on this host."


def test_colour_marks_what_blocks_strongest_and_what_is_not_needed_least():
    lines = render_doctor(CHECKS, colour=True)
    (bcc, syslog, tracefs) = [
        next(line for line in lines if name in line) for name in ("bcc  ", "CAP_SYSLOG", "tracefs")
    ]
    assert bcc.startswith("\x1b[1;31mmissing")
    assert syslog.startswith("\x1b[33mmissing")
    assert tracefs.startswith("\x1b[2mnot needed")


def test_json_document():
    found = json.loads(encode_object(doctor_fields(CHECKS)))
    assert (found["can_trace"], found["missing"]) == (False, ["bcc"])
    assert found["checks"][5] == {
        "name": "ring_buffer",
        "state": "ok",
        "required": True,
        "detail": "found",
        "needed_for": "a purpose",
        "remedy": None,
    }


@given(HOSTILE)
def test_hostile_details_are_shown_safely(text):
    lines = render_doctor([check("x", "missing", detail=text, remedy=text)])
    assert all(line.isprintable() for line in lines)
