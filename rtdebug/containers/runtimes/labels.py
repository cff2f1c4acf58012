"""Labels and annotations: the names that Kubernetes and its runtimes give a container."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Names:
    """What labels say. They are text of the container's owner: any bytes."""

    name: str | None
    pod: str | None
    namespace: str | None
    image: str | None
    manager: str | None
    """The runtime that made the container, where it says so."""
    sandbox: bool
    """The pod's pause container, which only holds its namespaces."""


_NAME = (
    "io.kubernetes.container.name",  # kubelet's label: dockershim, cri-dockerd, CRI-O
    "io.kubernetes.cri.container-name",  # containerd's CRI plugin
    "nerdctl/name",
)
_POD = ("io.kubernetes.pod.name", "io.kubernetes.cri.sandbox-name", "io.kubernetes.cri-o.KubeName")
_NAMESPACE = (
    "io.kubernetes.pod.namespace",
    "io.kubernetes.cri.sandbox-namespace",
    "io.kubernetes.cri-o.Namespace",
)
_IMAGE = ("io.kubernetes.cri.image-name", "io.kubernetes.cri-o.ImageName")
_MANAGERS = {"libpod": "podman", "cri-o": "cri-o"}
_SANDBOX = {
    "io.kubernetes.cri.container-type": "sandbox",
    "io.kubernetes.cri-o.ContainerType": "sandbox",
    "io.kubernetes.docker.type": "podsandbox",
}


def names_in(labels: Mapping[str, object]) -> Names:
    """Read a container's labels (docker, podman) or the annotations of its OCI bundle (the others).

    containerd's CRI plugin, CRI-O and nerdctl copy their labels into the bundle's annotations, so that
    `runc list` tells them without a question to a daemon.
    """
    return Names(
        name=_first(labels, _NAME),
        pod=_first(labels, _POD),
        namespace=_first(labels, _NAMESPACE),
        image=_first(labels, _IMAGE),
        manager=_MANAGERS.get(_first(labels, ("io.container.manager",)) or ""),
        sandbox=any(labels.get(key) == value for key, value in _SANDBOX.items()),
    )


def _first(labels: Mapping[str, object], keys: tuple[str, ...]) -> str | None:
    return next((value for key in keys if isinstance(value := labels.get(key), str) and value), None)
