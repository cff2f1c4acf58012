"""`rtdebug doctor` on the real kernel: what it says must be what /proc, /sys and other tools say."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rtdebug.errors import RtdebugError
from rtdebug.host import trials
from rtdebug.host.bpf import BpfError
from rtdebug.host.features import FULL_ROOT, State, run_checks

pytestmark = pytest.mark.kernel
ROOT = Path(__file__).parents[2]


def doctor(*args, inside=()):
    """Run the command, `inside` another one that changes what it may or sees."""
    return subprocess.run(
        [*inside, sys.executable, "-m", "rtdebug", "doctor", *args], cwd=ROOT, capture_output=True, text=True
    )


def checks(done):
    return {check["name"]: check for check in json.loads(done.stdout)["checks"]}


def test_trace_can_run_here_and_everything_is_closed_again():
    before = len(list(Path("/proc/self/fd").iterdir()))
    found = run_checks()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert [check for check in found if check.required and check.state is not State.OK] == []


def test_probes_exist_where_the_kernel_lists_their_pmu():
    found = checks(doctor("-o", "json"))
    for kind, otherwise in (("kprobe", "degraded"), ("uprobe", "not_needed")):
        listed = Path(f"/sys/bus/event_source/devices/{kind}").exists()
        assert found[kind]["state"] == ("ok" if listed else otherwise)


def test_fentry_loads_only_where_the_kernel_traces_functions():
    found = checks(doctor("-o", "json"))["fentry"]
    if " ftrace_set_filter_ip\n" not in Path("/proc/kallsyms").read_text():
        assert found["state"] != "ok"
    elif found["state"] != "ok":  # seen: a kernel that has it all and lets nobody use it
        assert "by a policy of this kernel" in found["detail"]


def test_runtimes_and_memory_controller_have_a_second_witness():
    found = checks(doctor("-o", "json"))
    for name in ("runc", "crun", "docker", "containerd", "podman"):
        assert (found[name]["state"] == "ok") is (shutil.which(name) is not None)
    mount = found["memory_controller"]["detail"].split(" at ")[1]
    assert Path(mount).is_mount()
    assert list(Path(mount).glob("memory.*")) or (Path(mount) / "cgroup.controllers").exists()


def test_table_and_exit_status():
    done = doctor()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("\nrtdebug trace can run on this host.\n")
    assert "\x1b" not in done.stdout


def test_without_capabilities_everything_missing_is_told_at_once():
    done = doctor("-o", "json", inside=["setpriv", "--bounding-set=-all", "--inh-caps=-all"])
    assert done.returncode == 3
    found = checks(done)
    for name in ("CAP_BPF", "CAP_PERFMON", "ring_buffer", "raw_tracepoint", "tracepoints", "lockdown"):
        assert (found[name]["state"], found[name]["remedy"]) == ("missing", FULL_ROOT)
    assert found["locked_memory"]["state"] == "unknown"
    assert found["bcc"]["state"] == "ok"
    message, hint = done.stderr.splitlines()
    assert message == "rtdebug: tracing needs CAP_BPF and CAP_PERFMON"
    assert hint == "hint: the remedies are in the list above"


def test_another_pid_namespace_is_named_with_its_remedy():
    done = doctor("-o", "json", inside=["unshare", "--pid", "--fork", "--mount-proc"])
    found = checks(done)
    assert done.returncode == 3
    assert json.loads(done.stdout)["missing"] == ["pid_namespace"]
    assert "--pid=host" in found["pid_namespace"]["remedy"]


def test_another_cgroup_namespace_is_a_warning_only():
    done = doctor("-o", "json", inside=["unshare", "--cgroup"])
    assert done.returncode == 0
    assert checks(done)["cgroup_namespace"]["state"] == "degraded"


def test_tracefs_is_mounted_only_if_asked_for():
    before = Path("/proc/self/mountinfo").read_text()
    inside = ["unshare", "--mount"]  # the mount ends with it
    if "tracefs" not in before:
        assert checks(doctor("-o", "json", inside=inside))["tracefs"]["detail"].startswith("not mounted")
    mounted = checks(doctor("-o", "json", "--mount-tracefs", inside=inside))["tracefs"]
    assert (mounted["state"], mounted["detail"]) == ("ok", "mounted at /sys/kernel/tracing")
    assert Path("/proc/self/mountinfo").read_text() == before


def test_mounting_tracefs_without_the_right_to_is_told():
    inside = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
    if "tracefs" in Path("/proc/self/mountinfo").read_text():
        pytest.skip("tracefs is mounted here: nothing to mount")
    done = doctor("--mount-tracefs", inside=inside)
    assert done.returncode == 3
    assert done.stderr.startswith("rtdebug: cannot mount tracefs on /sys/kernel/tracing: ")


def test_what_does_not_exist_does_not_attach():
    with pytest.raises(BpfError) as caught:
        trials.try_raw_tracepoint("rtdebug_no_such")
    assert caught.value.number == 2
    for attempt in (trials.try_typed_raw_tracepoint, trials.try_fentry):
        with pytest.raises(RtdebugError, match="does not name rtdebug_no_such"):
            attempt("rtdebug_no_such")
    with pytest.raises(RtdebugError, match="kprobe"):
        trials.try_kprobe("rtdebug_no_such")
