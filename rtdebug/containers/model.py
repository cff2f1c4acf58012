"""Container: what rtdebug knows of a container, whoever runs it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Container:
    """One container. What its runtime does not say is None."""

    id: str
    """The runtime's full id; for a target that no runtime owns, its cgroup path or `pid:<n>`."""
    name: str | None
    runtime: str | None
    """`runc`, `crun`, `docker`, `containerd`, `podman`, `cri-o`; None: a bare cgroup or process."""
    pid: int | None
    """Host pid of its init process; None when it does not run."""
    status: str
    """As `runc state` says it: creating, created, running, paused, stopped."""
    cgroup: str | None
    """Path below the root of the memory controller's hierarchy; None when there is none."""
    bundle: str | None = None
    namespace: str | None = None
    """containerd's namespace (`moby`, `k8s.io`) or the Kubernetes namespace of a pod."""
    pod: str | None = None
    image: str | None = None
    runc_root: str | None = None
    """The `--root` under which `runc state ID` finds it."""
    sandbox: bool = False
    """The pause container of a pod: it holds the pod's namespaces and runs nothing of its owner's."""

    @property
    def is_running(self) -> bool:
        """Whether it has processes: it runs, is paused, or waits to be started."""
        return self.pid is not None and self.status != "stopped"
