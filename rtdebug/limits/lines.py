"""The lines that set a proposal, for whoever runs the container: to copy, into a shell or a file."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence

from rtdebug.containers.model import Container
from rtdebug.host.cgroup import Version
from rtdebug.limits.facts import Place
from rtdebug.limits.proposal import Change, in_order
from rtdebug.limits.settings import value_text

_MIB = 1 << 20


def lines_to_apply(place: Place, version: Version, changes: Sequence[Change]) -> dict[str, list[str]]:
    """By tool: `docker`, `podman`, `runc`, `compose`, `kubernetes`, `cgroup`; only those that fit the container."""
    if not changes:
        return {}
    new = {change.knob: change.new_bytes for change in changes}
    found = dict(_runtime_lines(place.container, new))
    found["cgroup"] = [
        f"echo {value_text(change.new_bytes, version)} > {shlex.quote(str(place.path / change.file))}"
        for change in in_order(changes)
    ]
    return found


def _runtime_lines(container: Container, new: Mapping[str, int | None]) -> Iterator[tuple[str, list[str]]]:
    if container.pod is not None:
        yield "kubernetes", _kubernetes(new)
        return
    name = shlex.quote(container.name or container.id)
    options = " ".join(_options(new))
    if container.runtime in ("docker", "podman") and options:
        yield container.runtime, [f"{container.runtime} update {options} {name}"]
        yield "compose", _compose(new)
    elif container.runtime in ("runc", "crun") and options:
        root = f"--root {shlex.quote(container.runc_root)} " if container.runc_root else ""
        yield container.runtime, [f"{container.runtime} {root}update {options} {shlex.quote(container.id)}"]


def _options(new: Mapping[str, int | None]) -> Iterator[str]:
    names = {"max": "--memory", "memsw": "--memory-swap", "low": "--memory-reservation"}
    for knob, option in names.items():
        if knob in new:
            value = new[knob]
            yield f"{option} {-1 if value is None else value}"


def _compose(new: Mapping[str, int | None]) -> list[str]:
    names = {"max": "mem_limit", "memsw": "memswap_limit", "low": "mem_reservation"}
    return [f"{key}: {new[knob]}b" for knob, key in names.items() if new.get(knob) is not None]


def _kubernetes(new: Mapping[str, int | None]) -> list[str]:
    """The request is what the scheduler keeps free, and with MemoryQoS becomes memory.min."""
    lines = ["resources:"]
    if (low := new.get("low")) is not None:
        lines += ["  requests:", f"    memory: {-(-low // _MIB)}Mi"]
    if (limit := new.get("max")) is not None:
        lines += ["  limits:", f"    memory: {-(-limit // _MIB)}Mi"]
    return lines if len(lines) > 1 else []
