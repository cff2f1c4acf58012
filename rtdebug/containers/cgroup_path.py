"""The grammar of cgroup paths: which container, pod or service a cgroup belongs to, by its name alone.

Works on any path, of a live cgroup or from an old kernel log. A name proves nothing: a container that may
make cgroups can make one with any name. What lies inside a container's cgroup is therefore never taken for a
monitor or service of the host.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from rtdebug.host.cgroup import CgroupEntry, memory_entry
from rtdebug.host.mounts import Mount

Kind = Literal["container", "lxc", "pod", "monitor", "session", "service", "host", "unknown"]
"""`monitor`: conmon or lxc.monitor, watching a container from outside. `unknown`: the name says nothing."""

_ID = "[0-9a-f]{64}"
_UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_RUNTIMES = {
    "docker": "docker",
    "cri-containerd": "containerd",
    "containerd": "containerd",
    "nerdctl": "containerd",
    "crio": "cri-o",
    "libpod": "podman",
    "libpod-payload": "podman",
    "runc": "runc",
    "crun": "crun",
    "kata": "kata",
}
_PREFIXED = re.compile(rf"(?P<prefix>[a-z][a-z-]*)[-_](?P<id>{_ID})(?:\.scope)?")
"""docker-ID.scope, cri-containerd-ID, crio-ID.scope, libpod-ID, kata_ID, and prefixes we have never heard of."""
_COLON = re.compile(rf".*:(?P<prefix>[a-z-]+):(?P<id>{_ID})")
"""A path for systemd given to the cgroupfs driver: `system.slice:docker:ID`."""
_BUILD_ID = "[0-9a-z]{25}"
_BUILD = re.compile(rf"(?:.*:[a-z-]+:|buildkit-)(?P<id>{_BUILD_ID})(?:\.scope)?")
"""BuildKit's, told by the form of the id: dockerd runs a build as `system.slice:docker:ID`."""
_NAMED_SCOPE = re.compile(r"(?P<prefix>runc|crun)-(?P<id>.+)\.scope")
"""Plain `runc --systemd-cgroup`: the id is any name."""
_POD = re.compile(r"pod(?P<uid>[0-9a-f][0-9a-f-]+)")
_QOS = ("besteffort", "burstable", "guaranteed")
_POD_SLICE = re.compile(rf"(?:.*-)?kubepods(?:-(?P<qos>{'|'.join(_QOS)}))?-pod(?P<uid>[0-9a-f_]+)\.slice(?::.*)?")
_NOMAD = ("nomad", re.compile(rf"(?P<id>{_UUID}\..+)\.scope"))
_UNDER: dict[str, tuple[str | None, re.Pattern[str]]] = {
    "docker": ("docker", re.compile(_ID)),
    "kata_overhead": ("kata", re.compile(_ID)),
    "nomad.slice": _NOMAD,
    "share.slice": _NOMAD,
    "reserve.slice": _NOMAD,
    "garden": ("garden", re.compile(r"(?!good$|bad$)[0-9a-z-]{8,}")),
    "mesos": ("mesos", re.compile(_UUID)),
    "buildkit": ("buildkit", re.compile(_BUILD_ID)),
}
"""Folder -> runtime and form of the ids right below it. A task of Nomad is ALLOCATION.TASK.scope."""
_MACHINE = re.compile(r"(?:machine-(?P<scope>.+)\.scope|(?:systemd-nspawn|container)@(?P<service>.+)\.service)")
"""What systemd-machined knows: nspawn's containers (NixOS starts them as `container@`), libvirt's, and also VMs."""
_LIBVIRT_LXC = re.compile(r"machine-lxc-(?:\d+-)?(?P<scope>.+)\.scope|(?P<folder>.+)\.libvirt-lxc")
_RKT = re.compile(rf"machine-rkt-(?P<id>{_UUID})\.scope")
_ECS_TASK_CONTAINER = re.compile(r"[0-9a-f]{32}-\d+")
_UNIT = re.compile(r".+\.(?:service|scope|slice|socket|mount|swap)")
_SYSTEMD_ESCAPE = re.compile(r"\\x([0-9a-f]{2})")
_HOST = frozenset({"/", "/init", "/init.scope"})


@dataclass(frozen=True, slots=True)
class CgroupPath:
    """What a cgroup's path says. A part it does not name is None."""

    path: str
    kind: Kind
    container_id: str | None = None
    """Of the innermost container. For LXC see lxc_name."""
    outer_container_id: str | None = None
    """Of the container around it: docker in docker, kind."""
    runtime: str | None = None
    """None also for `/kubepods/.../ID`: containerd, CRI-O and docker all use that form."""
    pod_uid: str | None = None
    qos: str | None = None
    """Kubernetes QoS class: guaranteed, burstable, besteffort."""
    lxc_name: str | None = None
    unit: str | None = None
    """systemd unit, with its escapes undone."""
    container_cgroup: str | None = None
    """The cgroup of the innermost container itself."""

    @property
    def sub_cgroup(self) -> str | None:
        """The part below the container's cgroup: made inside it, or by a runtime (`container`)."""
        if self.container_cgroup is None:
            return None
        return self.path[len(self.container_cgroup) + 1 :] or None


def parse_cgroup_path(path: str) -> CgroupPath:
    """Take the path of a cgroup apart, from the root inwards: the innermost container wins."""
    found = CgroupPath(path, "unknown")
    parent = ""
    position = 0
    for component in path.strip("/").split("/"):
        position += 1 + len(component)
        found = _step(found, parent, component, path[:position])
        parent = component
    if found.container_cgroup is None and found.kind == "unknown":
        return _without_container(found)
    return found


def identify(entries: Iterable[CgroupEntry]) -> CgroupPath:
    """Who the owner of a /proc/PID/cgroup is.

    The path is the memory cgroup's; where that names nobody (docker 0.9 left memory in the root, systemd may
    keep units in `name=systemd` only), the other hierarchies are asked.
    """
    entries = tuple(entries)
    memory = memory_entry(entries)
    found = parse_cgroup_path(memory.path if memory else "/")
    if found.container_cgroup is not None or found.kind in ("monitor", "pod"):
        return found
    others = [parse_cgroup_path(entry.path) for entry in entries]
    for other in others:
        if other.container_cgroup is not None:
            return replace(other, path=found.path, container_cgroup=None)
    units = [other for other in others if other.unit is not None]
    return replace(found, unit=units[-1].unit, kind=units[-1].kind) if units else found


def container_id_of_mounts(mounts: Iterable[Mount]) -> str | None:
    """The container that a process's mounts give away, where its cgroup path says only `/`.

    Evidence is the cgroup mounted in it, else the folder of /etc/hostname and its like on the host. Other ids in
    there (volumes, overlay layers) belong to something else; so do those files in a pod of Kubernetes: to its sandbox.
    """
    mounts = tuple(mounts)
    for mount in mounts:
        if mount.fstype in ("cgroup", "cgroup2") and (found := parse_cgroup_path(mount.root).container_id):
            return found
    roots = {mount.mount_point: mount.root for mount in mounts}
    if _KUBELET_HOSTS.fullmatch(roots.get("/etc/hosts", "")):
        return None
    for path in _OWN_FILES:
        if match := _OWN_ROOT.fullmatch(roots.get(path, "")):
            return match["id"]
    return None


_OWN_FILES = ("/run/.containerenv", "/etc/hostname", "/etc/hosts", "/etc/resolv.conf")
"""Best first: who uses another container's network has the last two from there."""
_OWN_ROOT = re.compile(
    rf"(?!.*/volumes/)(?:.*/(?:[a-z]+-)?containers)?/(?P<id>{_ID})/(?:userdata/)?"
    r"(?:\.containerenv|hostname|hosts|resolv\.conf)"
)
"""docker's; podman's `STORAGE-DRIVER-containers`; without a folder where that is a file system of its own."""
_KUBELET_HOSTS = re.compile(r".*/pods/[^/]+/etc-hosts")


def _step(found: CgroupPath, parent: str, component: str, path: str) -> CgroupPath:
    """What one more component of the path adds."""
    if found.container_cgroup is None and _is_monitor(component, parent):
        return replace(found, kind="monitor")
    if found.kind == "monitor":
        return found
    found = _with_pod(found, parent, component)
    container = _container_in(parent, component)
    if container is None and found.container_cgroup is None:
        container = _machine_in(parent, component)
    if container is not None:
        container_id, runtime = container
        return replace(
            found,
            kind="container",
            outer_container_id=found.container_id,
            container_id=container_id,
            runtime=runtime,
            container_cgroup=path,
        )
    if (name := _lxc_name(parent, component)) is not None and found.container_id is None:
        return replace(found, kind="lxc", runtime="lxc", lxc_name=name, container_cgroup=path)
    return found


def _is_monitor(component: str, parent: str) -> bool:
    return (
        component in ("conmon", "lxc.pivot")
        or component.startswith("lxc.monitor.")
        or parent == "lxc.monitor"
        or (component == "supervisor" and _MACHINE.fullmatch(parent) is not None)
        or re.fullmatch(rf".*-conmon-{_ID}(\.scope)?", component) is not None
    )


def _with_pod(found: CgroupPath, parent: str, component: str) -> CgroupPath:
    if match := _POD_SLICE.fullmatch(component):
        return replace(found, kind="pod", pod_uid=match["uid"].replace("_", "-"), qos=match["qos"] or "guaranteed")
    match = _POD.fullmatch(component)
    if match and (parent == "kubepods" or parent in _QOS):
        qos = "guaranteed" if parent == "kubepods" else parent
        return replace(found, kind="pod", pod_uid=match["uid"], qos=qos)
    return found


def _container_in(parent: str, component: str) -> tuple[str, str | None] | None:
    """Id and runtime, if this component is a container's cgroup."""
    if parent in _UNDER:
        runtime, form = _UNDER[parent]
        if match := form.fullmatch(component):
            return match.groupdict().get("id", component), runtime
    if parent == "libpod_parent" and re.fullmatch(_ID, component):
        return None  # a pod of podman's: its containers are `libpod-ID`
    if re.fullmatch(_ID, component) or (_ECS_TASK_CONTAINER.fullmatch(component)):
        return component, None
    if match := _BUILD.fullmatch(component):
        return match["id"], "buildkit"
    for form in (_PREFIXED, _COLON, _NAMED_SCOPE):
        if match := form.fullmatch(component):
            return match["id"], _RUNTIMES.get(match["prefix"])
    return None


def _machine_in(parent: str, component: str) -> tuple[str, str] | None:
    """Name and runtime, if this component is the cgroup of a container that systemd-machined knows."""
    if match := _LIBVIRT_LXC.fullmatch(_unescape(component)):
        return match["scope"] or match["folder"], "libvirt-lxc"
    if match := _RKT.fullmatch(_unescape(component)):
        return match["id"], "rkt"
    machine = _MACHINE.fullmatch(_unescape(parent))
    if component == "payload" and machine:  # without it the scope may be a VM's
        return machine["scope"] or machine["service"], "systemd-nspawn"
    return None


def _lxc_name(parent: str, component: str) -> str | None:
    if component.startswith("lxc.payload."):
        return component.removeprefix("lxc.payload.") or None
    return component if parent in ("lxc", "lxc.payload") else None


def _without_container(found: CgroupPath) -> CgroupPath:
    if found.path in _HOST:
        return replace(found, kind="host")
    components = found.path.strip("/").split("/")
    if components[0] == "podruntime":  # Talos Linux keeps its own daemons there
        return replace(found, kind="service")
    # init.scope below another unit is the systemd that runs there (a user's), not the host's.
    units = [component for component in components if _UNIT.fullmatch(component) and component != "init.scope"]
    if not units:
        return found
    innermost = next((unit for unit in reversed(units) if not unit.endswith(".slice")), units[-1])
    is_session = innermost.startswith("session-") and innermost.endswith(".scope")
    return replace(found, kind="session" if is_session else "service", unit=_unescape(innermost))


def _unescape(unit: str) -> str:
    r"""systemd writes `-` in a name as `\x2d`, systemd.unit(5)."""
    return _SYSTEMD_ESCAPE.sub(lambda match: chr(int(match[1], 16)), unit)
