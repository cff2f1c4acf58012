"""What a tmpfs is for: a container's own, its runtime's, a pod's, a Kubernetes volume, or the host's own.

A volume is mounted on the host first and bound into the container from there, so the host's mount point of the
same file system (or, where the host keeps all that on a tmpfs, the folder of it that is bound) tells its kind.
Sources: kubelet's folders (pkg/volume/util, pkg/volume/emptydir), containerd's CRI plugin, containers/storage, moby.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from rtdebug.host.mounts import Mount


class VolumeKind(StrEnum):
    """Where a tmpfs of a container comes from."""

    CONTAINER = "container"
    """Mounted for this container alone: a runtime's /dev/shm, `docker run --tmpfs`."""
    RUNTIME = "runtime"
    """A /dev/shm that docker, podman or CRI-O keeps; containers that share an IPC namespace share it."""
    POD = "pod"
    """The /dev/shm of a pod's sandbox: all containers of the pod share it."""
    EMPTY_DIR = "emptyDir"
    """A Kubernetes volume with medium: Memory. It lives as long as its pod, across restarts of the container."""
    KUBERNETES = "kubernetes"
    """A secret, a projected or another Kubernetes volume on tmpfs."""
    HOST = "host"
    """The host's own: `--ipc=host`, `-v /dev/shm:/dev/shm`, a file below /run."""


@dataclass(frozen=True, slots=True)
class Volume:
    """What a tmpfs is for."""

    kind: VolumeKind
    name: str | None = None
    """Of a Kubernetes volume."""
    pod_uid: str | None = None
    host_path: str | None = None
    """Where the host sees it; None: nowhere."""


_ID = "[0-9a-f]{64}"
_KUBELET = re.compile(r".*/pods/(?P<uid>[^/]+)/volumes/kubernetes\.io~(?P<plugin>[a-z-]+)/(?P<name>[^/]+)(?:/.*)?")
_POD_SHM = re.compile(rf".*/sandboxes/{_ID}/shm")
_RUNTIME_SHM = re.compile(rf".*/containers/{_ID}/mounts/shm|.*/(?:overlay-)?containers/{_ID}/userdata/shm")


def volume_of(mount: Mount, host_mounts: Iterable[Mount]) -> Volume:
    """What the tmpfs of a container's mount is for, by the host's mounts."""
    paths = [_host_path(mount, other) for other in host_mounts if other.device == mount.device]
    known = [path for path in paths if path is not None]
    for path in known:
        if (volume := _by_path(path)) is not None:
            return volume
    return Volume(VolumeKind.HOST, host_path=known[0]) if known else Volume(VolumeKind.CONTAINER)


def _host_path(mount: Mount, host: Mount) -> str | None:
    """Where the host sees the folder that the container has mounted; None if that host mount does not show it."""
    if mount.root == host.root:
        return host.mount_point
    below = posixpath.relpath(mount.root, host.root)
    return None if below.startswith("..") else posixpath.join(host.mount_point, below)


def _by_path(path: str) -> Volume | None:
    if match := _KUBELET.fullmatch(path):
        kind = VolumeKind.EMPTY_DIR if match["plugin"] == "empty-dir" else VolumeKind.KUBERNETES
        return Volume(kind, match["name"], match["uid"], path)
    if _POD_SHM.fullmatch(path):
        return Volume(VolumeKind.POD, host_path=path)
    if _RUNTIME_SHM.fullmatch(path):
        return Volume(VolumeKind.RUNTIME, host_path=path)
    return None
