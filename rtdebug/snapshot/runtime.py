"""What the runtime knows of a container: its state, and the part of the bundle's config.json that bears on memory."""

from __future__ import annotations

import json
from pathlib import Path

from rtdebug.containers.model import Container
from rtdebug.containers.runtimes.ask import is_installed, run
from rtdebug.containers.runtimes.records import as_object
from rtdebug.errors import RtdebugError
from rtdebug.host.text import read_regular
from rtdebug.snapshot.model import Json, RuntimeRecord

_STATE_TIMEOUT_S = 1.0
_TOP = ("ociVersion", "hostname", "mounts", "annotations", "root")
_PROCESS = ("args", "cwd", "user", "rlimits", "capabilities", "oomScoreAdj")
_LINUX = ("cgroupsPath", "namespaces", "resources", "sysctl", "uidMappings", "gidMappings", "memoryPolicy")


def read_runtime(container: Container, with_environ: bool = False) -> RuntimeRecord:
    """Both parts, each None where it cannot be had: there is no bundle, or the runtime does not answer."""
    return RuntimeRecord(_state(container), _config(container, with_environ))


def config_of(text: str, with_environ: bool = False) -> Json:
    """The part of a config.json that a snapshot keeps. Raises ValueError if it is no JSON object."""
    config = json.loads(text)
    if not isinstance(config, dict):
        raise ValueError("not a JSON object")
    kept: dict[str, object] = {key: config[key] for key in _TOP if key in config}
    for part, keys in (("process", _PROCESS + (("env",) if with_environ else ())), ("linux", _LINUX)):
        section = as_object(config.get(part))
        kept[part] = {key: section[key] for key in keys if key in section}
    return kept


def runtime_program(container: Container) -> tuple[str, str] | None:
    """The program that keeps the container's state, runc or crun, and its `--root`; None: neither does."""
    if container.runc_root is None:
        return None
    root = Path(container.runc_root)
    program = "crun" if (root / container.id / "status").exists() else "runc"
    return (program, str(root)) if is_installed(program) else None


def _state(container: Container) -> Json | None:
    program = runtime_program(container)
    if program is None:
        return None
    try:
        state = json.loads(run((program[0], "--root", program[1], "state", container.id), _STATE_TIMEOUT_S))
    except (RtdebugError, ValueError):
        return None
    return state if isinstance(state, dict) else None


def _config(container: Container, with_environ: bool) -> Json | None:
    text = read_regular(Path(container.bundle) / "config.json") if container.bundle else None
    try:
        return config_of(text, with_environ) if text else None
    except ValueError:
        return None
