"""Remedies are told in the words of who runs the container."""

from __future__ import annotations

import pytest

from rtdebug.containers.model import Container
from rtdebug.containers.remedy import remedies_for

ALL = ("docker run: --shm-size=1g", "compose: shm_size: 1g", "pod: emptyDir: {medium: Memory}", "host: more memory")


def container(runtime: str | None, **fields: str) -> Container:
    return Container("c0ffee", "web", runtime, 7, "running", "/web", **fields)


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (None, ALL),
        (container("runc"), ALL),
        (container("containerd", namespace="default"), ALL),
        (container("docker"), (ALL[0], ALL[1], ALL[3])),
        (container("podman", pod="frontend"), ("podman run: --shm-size=1g", ALL[1], ALL[3])),
        (container("containerd", namespace="k8s.io"), ALL[2:]),
        (container("cri-o", pod="web-0", namespace="shop"), ALL[2:]),
        (container("docker", pod="web-0", namespace="shop"), ALL[2:]),
    ],
)
def test_only_those_that_fit(of: Container | None, expected: tuple[str, ...]) -> None:
    assert remedies_for(of, ALL) == expected


def test_where_none_fits_all_are_told() -> None:
    only_docker = ("docker run: leave out --oom-kill-disable",)
    assert remedies_for(container("cri-o", pod="web-0"), only_docker) == only_docker
    assert remedies_for(container("podman"), only_docker) == ("podman run: leave out --oom-kill-disable",)
