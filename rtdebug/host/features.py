"""What this host has of what rtdebug needs: one list, for `rtdebug doctor`, for error messages and for tests.

Each requirement is looked at on its own, so that all that is missing can be told at once, with its remedy.
"""

from __future__ import annotations

import errno
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from pathlib import Path

from rtdebug.errors import HostUnable, RtdebugError
from rtdebug.host import trials
from rtdebug.host.bcc import INSTALL_HINT, find_bcc, read_version
from rtdebug.host.cache import cache_folder
from rtdebug.host.capabilities import Capability, read_effective
from rtdebug.host.cgroup import find_memory_hierarchy

TRACEPOINTS = (
    "sys_exit",
    "sched_process_fork",
    "sched_process_exec",
    "sched_process_exit",
    "task_rename",
    "cgroup_attach_task",
    "cgroup_mkdir",
    "cgroup_rmdir",
    "mark_victim",
    "signal_generate",
)
"""Those that `trace` attaches to."""

_OOM_FUNCTION = "out_of_memory"

# Inode numbers of the first namespaces (include/linux/proc_ns.h; that of mnt since Linux 6.18)
_FIRST_NAMESPACE = {"mnt": 0xEFFFFFF8, "cgroup": 0xEFFFFFFB, "pid": 0xEFFFFFFC, "user": 0xEFFFFFFD}
AS_ROOT = "run as root (sudo rtdebug ...)"
FULL_ROOT = "not all of root's capabilities are held here: run on the host, or with docker run --privileged"


class State(StrEnum):
    """How it stands with a requirement."""

    OK = "ok"
    MISSING = "missing"
    DEGRADED = "degraded"
    UNKNOWN = "unknown"
    NOT_NEEDED = "not_needed"
    """Not there, and rtdebug does as well without it."""


@dataclass(frozen=True, slots=True)
class Check:
    """A requirement, looked at on this host."""

    name: str
    state: State
    detail: str
    """What was found, and what rtdebug makes of it."""
    needed_for: str
    remedy: str
    """What to do; empty where nothing needs doing."""
    required: bool
    """`rtdebug trace` cannot run without it."""


@dataclass(frozen=True, slots=True)
class Host:
    """Where to look. The trials of the bpf system call are always those of the running kernel."""

    root: Path = Path("/")
    search_path: str = field(default_factory=lambda: os.environ.get("PATH", os.defpath))
    release: str = field(default_factory=lambda: os.uname().release)
    is_root: bool = field(default_factory=lambda: os.geteuid() == 0)

    @property
    def proc(self) -> Path:
        """Its /proc."""
        return self.root / "proc"

    @property
    def sys(self) -> Path:
        """Its /sys."""
        return self.root / "sys"

    @property
    def root_remedy(self) -> str:
        """What to do when a capability is wanting."""
        return FULL_ROOT if self.is_root else AS_ROOT


@dataclass(frozen=True, slots=True)
class _Finding:
    state: State
    detail: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Requirement:
    """Something the host should have, and how to look at it."""

    name: str
    needed_for: str
    look: Callable[[Host], _Finding]
    required: bool = False

    def check(self, host: Host) -> Check:
        """Look. Never raises: what cannot be found out is State.UNKNOWN."""
        try:
            found = self.look(host)
        except (OSError, RtdebugError, subprocess.SubprocessError) as error:
            found = _Finding(State.UNKNOWN, f"cannot be found out: {error}", getattr(error, "hint", ""))
        return Check(self.name, found.state, found.detail, self.needed_for, found.remedy, self.required)


def run_checks(host: Host | None = None) -> tuple[Check, ...]:
    """Look at everything, in the order of REQUIREMENTS. Takes about a second; leaves nothing behind."""
    host = host or Host()
    return tuple(requirement.check(host) for requirement in REQUIREMENTS)


def blocking(checks: Collection[Check]) -> tuple[Check, ...]:
    """Those that keep `rtdebug trace` from running."""
    return tuple(check for check in checks if check.required and check.state is State.MISSING)


def host_unable(checks: Collection[Check]) -> HostUnable:
    """The error that lists everything that keeps `rtdebug trace` from running, each with its remedy.

    What root alone would put right is one reason, however many checks fail for it.
    """
    missing = blocking(checks)
    for_root = [check for check in missing if check.remedy in (AS_ROOT, FULL_ROOT)]
    others = [check for check in missing if check not in for_root]
    names = ", ".join(check.name for check in others)
    remedies = [f"{check.name}: {check.remedy or check.detail}" for check in others]
    if not for_root:
        return HostUnable(f"tracing cannot run here: {names}", "\n".join(remedies))
    needs, remedy = _wants_root(for_root)
    also = f"; also missing: {names}" if others else ""
    return HostUnable(f"tracing needs {needs}{also}", "\n".join([remedy, *remedies]))


def _wants_root(checks: Collection[Check]) -> tuple[str, str]:
    if any(check.remedy == AS_ROOT for check in checks):
        return "root", AS_ROOT
    return " and ".join(check.name for check in checks if check.name.startswith("CAP_")), FULL_ROOT


# How each one is looked at


def _capability(capability: Capability, host: Host) -> _Finding:
    held = read_effective(host.proc)
    if held is None:
        return _Finding(State.UNKNOWN, f"{host.proc}/self/status does not say")
    if capability not in held:
        return _Finding(State.MISSING, "not held", host.root_remedy)
    if _namespace_id(host, "self", "user") not in (None, _FIRST_NAMESPACE["user"]):
        return _Finding(
            State.MISSING,
            "held in a user namespace only, which does not count for BPF",
            "run as root of the host: sudo, or a container without user namespace (docker --userns=host)",
        )
    return _Finding(State.OK, "held")


def _kernel_types(host: Host) -> _Finding:
    """Headers do not do: struct mount, which says where a tmpfs is mounted, is in none of them."""
    btf = host.sys / "kernel/btf/vmlinux"
    if btf.exists():
        return _Finding(State.OK, "BTF; programs are compiled from it, without kernel headers")
    return _Finding(
        State.MISSING,
        f"no {btf}, and kernel headers do not replace it",
        "boot a kernel with CONFIG_DEBUG_INFO_BTF=y (all current distribution kernels have it)",
    )


def _bcc(host: Host) -> _Finding:
    try:
        folder = find_bcc(host.root)
    except HostUnable as error:
        return _Finding(State.MISSING, error.message, error.hint)
    version = read_version(folder) or "of unknown version"
    if not _loads_in_a_child("libbcc.so.0"):
        return _Finding(State.MISSING, f"{version} at {folder}, but libbcc.so.0 cannot be loaded", INSTALL_HINT)
    return _Finding(State.OK, f"{version} at {folder}")


def _libbpf(_host: Host) -> _Finding:
    try:
        return _Finding(State.OK, trials.libbpf_version())
    except HostUnable as error:
        return _Finding(State.MISSING, error.message, error.hint)


def _trial(attempt: Callable[[], None], success: str, remedy: str, host: Host) -> _Finding:
    """Done for real on the running kernel."""
    try:
        attempt()
    except RtdebugError as error:
        return _refused(error, remedy, host)
    return _Finding(State.OK, success)


def _refused(error: RtdebugError, remedy: str, host: Host) -> _Finding:
    """EPERM is for want of a capability; to one who holds it, it is some policy's."""
    held, refused = read_effective() or (), getattr(error, "number", 0) == errno.EPERM
    if Capability.CAP_BPF not in held or (refused and Capability.CAP_PERFMON not in held):
        return _Finding(State.MISSING, error.message, host.root_remedy)
    policy = ", by a policy of this kernel" if refused else ""
    return _Finding(State.MISSING, error.message + policy, remedy)


def _tracepoints(host: Host) -> _Finding:
    missing = []
    for name in TRACEPOINTS:
        try:
            trials.try_raw_tracepoint(name)
        except RtdebugError as error:
            if getattr(error, "number", 0) != errno.ENOENT:
                return _refused(error, "boot a kernel with CONFIG_BPF_EVENTS=y", host)
            missing.append(name)
    if not missing:
        return _Finding(State.OK, f"all {len(TRACEPOINTS)} attach")
    state = State.MISSING if "sys_exit" in missing else State.DEGRADED
    remedy = "boot a kernel with CONFIG_FTRACE_SYSCALLS=y" if "sys_exit" in missing else ""
    return _Finding(state, f"this kernel has no {', '.join(missing)}", remedy or "boot a newer kernel")


def _typed_tracepoint(host: Host) -> _Finding:
    attempt = partial(trials.try_typed_raw_tracepoint, "sched_process_exit")
    found = _trial(attempt, "attaches; what rtdebug uses", "none needed", host)
    if found.state is State.OK or found.remedy == host.root_remedy:
        return found
    return replace(found, state=State.DEGRADED, detail=f"{found.detail}; plain raw tracepoints are used")


def _oom_function(kind: str, host: Host) -> _Finding:
    """A probe on out_of_memory(): by fentry, else by kprobe; where neither attaches, the kernel log has to do."""
    probe = _OOM_PROBES[kind]
    (other,) = _OOM_PROBES.keys() - {kind}
    found = _trial(probe.attempt, probe.success, probe.remedy, host)
    if found.state is State.OK or found.remedy == host.root_remedy:
        return found
    if _trial(_OOM_PROBES[other].attempt, "", "", host).state is State.OK:
        return replace(found, state=State.NOT_NEEDED, detail=f"{found.detail}; {other} is used")
    detail = f"{found.detail}; OOM reports take the limit from the kernel log"
    return replace(found, state=State.DEGRADED, detail=detail)


@dataclass(frozen=True, slots=True)
class _OomProbe:
    attempt: Callable[[], None]
    success: str
    remedy: str


_OOM_PROBES = {
    "fentry": _OomProbe(
        partial(trials.try_fentry, _OOM_FUNCTION),
        "attaches; what rtdebug uses",
        "none needed; to have it: a kernel with CONFIG_DYNAMIC_FTRACE=y and BTF",
    ),
    "kprobe": _OomProbe(
        partial(trials.try_kprobe, _OOM_FUNCTION),
        "attaches; used where fentry does not",
        "none needed; to have it: a kernel with CONFIG_KPROBE_EVENTS=y",
    ),
}


def _unneeded(look: Callable[[Host], _Finding]) -> Callable[[Host], _Finding]:
    """What is told for completeness: its absence is nothing to be put right."""

    def quiet(host: Host) -> _Finding:
        found = look(host)
        return replace(found, state=State.NOT_NEEDED) if found.state is State.MISSING else found

    return quiet


def _tracefs(host: Host) -> _Finding:
    for mount in (host.sys / "kernel/tracing", host.sys / "kernel/debug/tracing"):
        if (mount / "events").is_dir():
            return _Finding(State.OK, f"mounted at {mount}")
    return _Finding(State.MISSING, "not mounted; rtdebug doctor --mount-tracefs does it", "none needed")


def _jit(host: Host) -> _Finding:
    value = _read(host.proc / "sys/net/core/bpf_jit_enable")
    if value is None:
        return _Finding(State.UNKNOWN, "the kernel does not say")
    if value == "0":
        return _Finding(
            State.DEGRADED,
            "off: programs are interpreted, several times slower",
            "sysctl net.core.bpf_jit_enable=1",
        )
    return _Finding(State.OK, "on")


def _unprivileged_bpf(host: Host) -> _Finding:
    value = _read(host.proc / "sys/kernel/unprivileged_bpf_disabled")
    meaning = {"0": "allowed to everybody", "1": "off until the next boot", "2": "off"}.get(value or "")
    if meaning is None:
        return _Finding(State.UNKNOWN, "the kernel does not say")
    return _Finding(State.OK, f"{meaning}; rtdebug uses its capabilities and needs none")


def _lockdown(host: Host) -> _Finding:
    text = _read(host.sys / "kernel/security/lockdown")
    mode = parse_lockdown(text) if text else "not known (no lockdown, or securityfs is not mounted)"
    try:
        trials.try_kernel_read()
    except RtdebugError as error:
        found = _refused(error, "boot without lockdown=confidentiality", host)
        return replace(found, detail=f"programs may not read kernel memory ({found.detail}); mode {mode}")
    return _Finding(State.OK, f"programs may read kernel memory; mode {mode}")


def parse_lockdown(text: str) -> str:
    """`integrity` of `none [integrity] confidentiality` (man page kernel_lockdown(7))."""
    match = re.search(r"\[(\w+)\]", text)
    return match[1] if match else "unknown"


def _locked_memory(host: Host) -> _Finding:
    held = read_effective(host.proc) or ()
    if Capability.CAP_BPF not in held:  # then every map is refused, with the same error
        return _Finding(State.UNKNOWN, "cannot be tried without CAP_BPF", host.root_remedy)
    if not trials.memlock_is_charged():
        return _Finding(State.OK, "no limit for BPF on this kernel")
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if resource.RLIM_INFINITY in (soft, hard) or Capability.CAP_SYS_RESOURCE in held:
        return _Finding(State.OK, "counted by this kernel; rtdebug may raise the limit")
    remedy = "ulimit -l unlimited (docker run --ulimit memlock=-1)" if host.is_root else AS_ROOT
    return _Finding(State.MISSING, f"BPF may use {hard} bytes only", remedy)


def _memory_controller(host: Host) -> _Finding:
    try:
        found = find_memory_hierarchy(host.proc)
    except HostUnable as error:
        return _Finding(State.MISSING, error.message, error.hint)
    return _Finding(State.OK, f"cgroup v{found.version} at {found.mount_point}")


def _psi(host: Host) -> _Finding:
    if _read(host.proc / "pressure/memory") is None:
        return _Finding(
            State.DEGRADED,
            "not there; what is read back, and hits of the limit, tell it later",
            "boot with psi=1, on a kernel with CONFIG_PSI=y",
        )
    return _Finding(State.OK, str(host.proc / "pressure/memory"))


def _kernel_log(host: Host) -> _Finding:
    try:
        os.close(os.open(host.root / "dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        remedy = "in a container: mount the host's /dev/kmsg" if error.errno == errno.ENOENT else host.root_remedy
        return _Finding(State.DEGRADED, f"/dev/kmsg: {error.strerror}", remedy)
    return _Finding(State.OK, "/dev/kmsg can be read")


def _runtime(name: str, host: Host, timeout_s: float = 5) -> _Finding:
    path = shutil.which(name, path=host.search_path)
    if path is None:
        return _Finding(State.NOT_NEEDED, "not installed", f"nothing, if no containers of {name} run here")
    try:
        done = subprocess.run([path, "--version"], capture_output=True, stdin=subprocess.DEVNULL, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return _Finding(State.DEGRADED, f"{path} does not answer within {timeout_s:g} s", f"restart {name}")
    version = parse_version(done.stdout.decode(errors="replace"))
    return _Finding(State.OK, f"{version or 'of unknown version'} at {path}")


def parse_version(text: str) -> str | None:
    """The first thing that looks like a version: `1.1.5+ds1` of `runc version 1.1.5+ds1`."""
    match = re.search(r"\bv?(\d+\.\d+[\w.+~-]*)", text)
    return match[1] if match else None


def _cache(_host: Host) -> _Finding:
    folder = cache_folder()
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if os.access(existing, os.W_OK | os.X_OK):
        return _Finding(State.OK, str(folder))
    return _Finding(State.DEGRADED, f"{folder} cannot be written", "set RTDEBUG_CACHE to a folder that can")


def _pid_namespace(host: Host) -> _Finding:
    found = _namespace_id(host, "self", "pid")
    if found is None:
        return _Finding(State.UNKNOWN, "the kernel does not say")
    if found != _FIRST_NAMESPACE["pid"]:
        return _Finding(
            State.MISSING,
            "not the host's: the pids that the kernel reports mean nothing here",
            "run on the host, or in a container with the host's pids (docker run --pid=host)",
        )
    return _Finding(State.OK, "the host's")


def _mount_namespace(host: Host) -> _Finding:
    ours, init = _namespace_id(host, "self", "mnt"), _namespace_id(host, "1", "mnt")
    if ours is not None and ours in (init, _FIRST_NAMESPACE["mnt"]):
        return _Finding(State.OK, "the host's")
    if ours is None or init is None:
        return _Finding(State.UNKNOWN, "that of pid 1 cannot be read", host.root_remedy)
    return _Finding(
        State.DEGRADED,
        "not that of pid 1: the runtimes' state and sockets are seen only where they are mounted in",
        "mount the host's /run and /sys/fs/cgroup into this container",
    )


def _cgroup_namespace(host: Host) -> _Finding:
    found = _namespace_id(host, "self", "cgroup")
    if found is None:
        return _Finding(State.UNKNOWN, "the kernel does not say")
    if found != _FIRST_NAMESPACE["cgroup"]:
        return _Finding(
            State.DEGRADED,
            "not the host's: paths of cgroups outside of it begin with /..",
            "run on the host, or with docker run --cgroupns=host",
        )
    return _Finding(State.OK, "the host's")


def _namespace_id(host: Host, pid: str, kind: str) -> int | None:
    """Inode of a namespace out of `pid:[4026531836]`; None if it may not be read."""
    try:
        match = re.search(r"\[(\d+)\]", str((host.proc / pid / "ns" / kind).readlink()))
    except OSError:
        return None
    return int(match[1]) if match else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def _loads_in_a_child(library: str) -> bool:
    """In a process of its own: libbcc brings all of LLVM along."""
    code = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"
    done = subprocess.run([sys.executable, "-ISc", code, library], capture_output=True, timeout=60)
    return done.returncode == 0


def _attach(attempt: Callable[[], None], success: str, remedy: str) -> Callable[[Host], _Finding]:
    return partial(_trial, attempt, success, remedy)


_OTHER_TOOLS = "other tools (bcc, bpftrace); rtdebug trace does without"
_SHORTAGE = "which limit an OOM kill was about, when the kernel log does not say"

REQUIREMENTS: tuple[Requirement, ...] = (
    Requirement("CAP_BPF", "loading programs and maps", partial(_capability, Capability.CAP_BPF), required=True),
    Requirement(
        "CAP_PERFMON",
        "programs that read kernel memory",
        partial(_capability, Capability.CAP_PERFMON),
        required=True,
    ),
    Requirement(
        "CAP_SYS_PTRACE",
        "names, stacks and /dev/shm of other users' processes",
        partial(_capability, Capability.CAP_SYS_PTRACE),
    ),
    Requirement(
        "CAP_SYS_ADMIN",
        "System V segments of a container; stacks of programs deleted while they run",
        partial(_capability, Capability.CAP_SYS_ADMIN),
    ),
    Requirement("CAP_SYSLOG", "reading the kernel log of an OOM kill", partial(_capability, Capability.CAP_SYSLOG)),
    Requirement("kernel_types", "compiling the programs for this kernel", _kernel_types, required=True),
    Requirement("bcc", "compiling the programs for this kernel", _bcc, required=True),
    Requirement("libbpf", "reading BTF", _libbpf, required=True),
    Requirement(
        "ring_buffer",
        "getting events out of the kernel",
        _attach(trials.try_ring_buffer, "a map of this type can be made", "boot Linux 5.8 or newer"),
        required=True,
    ),
    Requirement(
        "raw_tracepoint",
        "all events",
        _attach(
            partial(trials.try_raw_tracepoint, "sched_process_exit"),
            "attaches; used where typed ones do not",
            "boot a kernel with CONFIG_BPF_EVENTS=y",
        ),
        required=True,
    ),
    Requirement("typed_raw_tracepoint", "all events, a little cheaper", _typed_tracepoint),
    Requirement("tracepoints", "system calls, processes, cgroups, OOM kills, SIGBUS", _tracepoints, required=True),
    Requirement("fentry", _SHORTAGE, partial(_oom_function, "fentry")),
    Requirement("kprobe", _SHORTAGE, partial(_oom_function, "kprobe")),
    Requirement(
        "uprobe",
        _OTHER_TOOLS,
        _unneeded(_attach(trials.try_uprobe, "attaches", "none needed; else a kernel with CONFIG_UPROBE_EVENTS=y")),
    ),
    Requirement("tracefs", _OTHER_TOOLS, _unneeded(_tracefs)),
    Requirement("jit", "the cost of a traced call", _jit),
    Requirement("unprivileged_bpf", "nothing; told for completeness", _unprivileged_bpf),
    Requirement("lockdown", "reading who did it out of kernel memory", _lockdown, required=True),
    Requirement("locked_memory", "the size of maps and rings", _locked_memory, required=True),
    Requirement("memory_controller", "limits, usage, and which container it is", _memory_controller, required=True),
    Requirement("psi", "seeing that tasks wait for memory: diagnose, limits --probe, reclaim, madvise run", _psi),
    Requirement("kernel_log", "the kernel's own account of an OOM kill", _kernel_log),
    Requirement("pid_namespace", "telling which process it was", _pid_namespace, required=True),
    Requirement("mount_namespace", "finding the runtimes' files and sockets", _mount_namespace),
    Requirement("cgroup_namespace", "paths of cgroups", _cgroup_namespace),
    Requirement("cache", "starting in a fraction of a second", _cache),
    *(
        Requirement(name, f"names and state of {name}'s containers", partial(_runtime, name))
        for name in ("runc", "crun", "docker", "containerd", "podman")
    ),
)
"""In the order in which they are shown, those that a trace cannot do without before the others."""
