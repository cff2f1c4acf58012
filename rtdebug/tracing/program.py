"""The compiled programs: what the compiler process gives, what the cache keeps, what the loader loads."""

from __future__ import annotations

import json
import platform
import zlib
from dataclasses import dataclass
from pathlib import Path

from rtdebug import __version__
from rtdebug.tracing.sources import read_source

SOURCES = (
    "events.h",
    "base.h",
    "common.h",
    "compat.h",
    "stack.h",
    "file.h",
    "mapping.bpf.c",
    "shm.bpf.c",
    "tmpfs.bpf.c",
    "process.bpf.c",
    "oom.bpf.c",
    "syscall.bpf.c",
)


_WAY_OF_COMPILING = ("btf.py", "compiler.py", "program.py", "shim.py")


@dataclass(frozen=True, slots=True)
class Probe:
    """A program and the tracepoint it sits on."""

    function: str
    tracepoint: str


PROBES = (
    Probe("on_process_fork", "sched_process_fork"),
    Probe("on_process_exec", "sched_process_exec"),
    Probe("on_process_exit", "sched_process_exit"),
    Probe("on_process_comm", "task_rename"),
    Probe("on_cgroup_attach", "cgroup_attach_task"),
    Probe("on_cgroup_mkdir", "cgroup_mkdir"),
    Probe("on_cgroup_rmdir", "cgroup_rmdir"),
    Probe("on_mark_victim", "mark_victim"),
    Probe("on_sigbus", "signal_generate"),
    Probe("on_sys_exit", "sys_exit"),
)
"""In the order of attaching: the bookkeeping is there before the first event."""


@dataclass(frozen=True, slots=True)
class FunctionProbe:
    """Programs for the entry of a kernel function. The first that this kernel takes is attached; none is needed."""

    kernel_function: str
    fentry: str
    kprobe: str


FUNCTION_PROBES = (FunctionProbe("out_of_memory", "on_out_of_memory", "on_out_of_memory_kprobe"),)
"""What no tracepoint says: which limit or node was short, and for what allocation."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Sources that are compiled together, and the programs in them."""

    name: str
    """Of its file in the cache."""
    sources: tuple[str, ...]
    probes: tuple[Probe, ...]
    function_probes: tuple[FunctionProbe, ...] = ()
    functions: tuple[str, ...] = ()
    """Programs for uprobes and perf events, attached where user space says."""


TRACE = Unit("program", SOURCES, PROBES, FUNCTION_PROBES)
"""What `rtdebug trace` runs."""


SITES = Unit(
    "sites",
    ("base.h", "compat.h", "sites.h", "growth.bpf.c", "malloc.bpf.c"),
    (
        Probe("on_site_fork", "sched_process_fork"),
        Probe("on_site_exec", "sched_process_exec"),
        Probe("on_site_exit", "sched_process_exit"),
        Probe("on_growth", "sys_exit"),
    ),
    functions=(
        "on_fault",
        "on_malloc",
        "on_calloc",
        "on_realloc",
        "on_memalign",
        "on_posix_memalign",
        "on_free",
        "on_alloc_return",
    ),
)
"""Allocation sites for `rtdebug leaks record`, apart from TRACE so that no trace pays for them."""

UNITS = (TRACE, SITES)


@dataclass(frozen=True, slots=True)
class MapSpec:
    """A map as the compiler saw it; the loader may choose another number of entries."""

    name: str
    kind: int
    key_bytes: int
    value_bytes: int
    entries: int
    flags: int


@dataclass(frozen=True, slots=True)
class CompiledProgram:
    """All programs of one kernel and one bcc. In the instructions a map is named by its place in `maps`."""

    maps: tuple[MapSpec, ...]
    functions: dict[str, bytes]
    tracepoint_ids: dict[str, int]
    """BTF id of each tracepoint; one that is missing is attached by name instead."""
    function_ids: dict[str, int]
    """BTF id of each kernel function; one that is missing has no fentry."""

    def to_bytes(self, key: str) -> bytes:
        """Return the form the cache keeps; `key` is what made_for() gave."""
        return json.dumps(
            {
                "made_for": key,
                "maps": [[m.name, m.kind, m.key_bytes, m.value_bytes, m.entries, m.flags] for m in self.maps],
                "functions": {name: code.hex() for name, code in self.functions.items()},
                "tracepoint_ids": self.tracepoint_ids,
                "function_ids": self.function_ids,
            }
        ).encode()

    @classmethod
    def from_bytes(cls, content: bytes, key: str) -> CompiledProgram:
        """Read what to_bytes() gave. Raises ValueError, KeyError or TypeError on anything else, or another key's."""
        document = json.loads(content)
        if document["made_for"] != key:
            raise ValueError("compiled for another kernel, bcc or source")
        return cls(
            maps=tuple(MapSpec(*fields) for fields in document["maps"]),
            functions={name: bytes.fromhex(code) for name, code in document["functions"].items()},
            tracepoint_ids=_numbers(document["tracepoint_ids"]),
            function_ids=_numbers(document["function_ids"]),
        )


def _numbers(document: dict[str, int]) -> dict[str, int]:
    return {str(name): int(number) for name, number in document.items()}


def program_source(unit: Unit = TRACE) -> str:
    """Return the programs of a unit as the one translation unit that bcc compiles."""
    texts = []
    for name in unit.sources:
        text = "\n".join(line for line in read_source(name).splitlines() if not line.startswith("#include"))
        texts.append(f'#line 1 "bpf/{name}"\n{text}\n')
    return "".join(texts)


def made_for(source: str, bcc_version: str, notes: Path = Path("/sys/kernel/notes")) -> str:
    """Return all that a compiled program depends on: source, way of compiling, bcc and kernel build, as one text.

    /sys/kernel/notes holds the kernel's build id. The text is kept beside the program and compared whole: a hash
    would do, but hashlib brings OpenSSL, a twelfth of the tracing process.
    """
    kernel = " ".join((platform.release(), platform.version(), platform.machine()))
    way = [Path(__file__).with_name(module).read_text(encoding="utf-8") for module in _WAY_OF_COMPILING]
    try:
        build = notes.read_bytes().hex()
    except OSError:
        build = ""  # the release and version above still tell kernels apart
    return "\0".join((__version__, bcc_version, kernel, build, *way, source))


def cache_name(key: str, unit: Unit = TRACE) -> str:
    """Return the cache's file name for what made_for() gave."""
    return f"{unit.name}-{zlib.crc32(key.encode()):08x}.json"
