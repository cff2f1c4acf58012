"""From compiled programs to attached ones: maps made for this host, programs loaded, tracepoints opened.

All of it hangs on file descriptors of this process and of no other: when it ends, also by SIGKILL, the kernel
detaches and frees everything.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rtdebug.errors import HostUnable
from rtdebug.host import bpf
from rtdebug.tracing.program import PROBES, CompiledProgram, Probe

_PSEUDO_MAP_FD = 1
_LOAD_64_BIT_IMMEDIATE = 0x18
TRACED_PAGE = 4096
"""Process ids for each entry of the map `traced`, as in bpf/common.h."""


@dataclass(slots=True)
class Loaded:
    """Maps and programs in the kernel. `attach()` starts, `close()` ends everything."""

    maps: dict[str, int]
    programs: dict[str, int]
    tracepoint_ids: Mapping[str, int]
    links: list[int] = field(default_factory=list)

    def attach(self, probes: Iterable[Probe] = PROBES) -> None:
        """Attach the programs in order. Raises BpfError."""
        for probe in probes:
            by_name = None if probe.tracepoint in self.tracepoint_ids else probe.tracepoint
            self.links.append(bpf.open_raw_tracepoint(self.programs[probe.function], by_name))

    def detach(self) -> None:
        """Detach; the maps can still be read."""
        while self.links:
            os.close(self.links.pop())

    def close(self) -> None:
        """Detach and free all."""
        self.detach()
        for descriptors in (self.programs, self.maps):
            while descriptors:
                os.close(descriptors.popitem()[1])


def traced_pages(proc: Path = Path("/proc")) -> int:
    """Return how many entries the map `traced` needs for every process id this kernel gives."""
    return -(-int((proc / "sys/kernel/pid_max").read_text(encoding="ascii")) // TRACED_PAGE)


def load(compiled: CompiledProgram, entries: Mapping[str, int], probes: Iterable[Probe] = PROBES) -> Loaded:
    """Create the maps (with `entries` in place of the compiled numbers) and load the programs.

    Raises HostUnable when this kernel does not let us, BpfError when it refuses a program.
    """
    loaded = Loaded({}, {}, compiled.tracepoint_ids)
    bpf.lift_memlock_limit()
    try:
        places = []
        for spec in compiled.maps:
            number = entries.get(spec.name, spec.entries)
            fd = bpf.create_map(spec.kind, spec.key_bytes, spec.value_bytes, number, spec.flags, spec.name)
            loaded.maps[spec.name] = fd
            places.append(fd)
        for probe in probes:
            code = put_descriptors(compiled.functions[probe.function], places)
            btf_id = compiled.tracepoint_ids.get(probe.tracepoint, 0)
            loaded.programs[probe.function] = bpf.load_program(
                bpf.PROG_TYPE_TRACING if btf_id else bpf.PROG_TYPE_RAW_TRACEPOINT,
                code,
                probe.function.removeprefix("on_"),
                attach_type=bpf.ATTACH_TRACE_RAW_TP if btf_id else 0,
                btf_id=btf_id,
            )
    except bpf.BpfError as error:
        loaded.close()
        if error.number == 1:  # EPERM
            raise HostUnable(
                "this process may not load BPF programs",
                "run as root; `rtdebug doctor` lists what is missing",
            ) from error
        raise
    return loaded


def put_descriptors(code: bytes, places: list[int]) -> bytes:
    """Return the instructions with each map's place replaced by its descriptor."""
    patched = bytearray(code)
    for offset in range(0, len(code), 8):
        if code[offset] == _LOAD_64_BIT_IMMEDIATE and code[offset + 1] >> 4 == _PSEUDO_MAP_FD:
            place = struct.unpack_from("<i", code, offset + 4)[0]
            struct.pack_into("<i", patched, offset + 4, places[place])
    return bytes(patched)
