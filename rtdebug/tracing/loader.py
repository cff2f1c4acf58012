"""From compiled programs to attached ones: maps made for this host, programs loaded, tracepoints opened.

All of it hangs on file descriptors of this process and of no other: when it ends, also by SIGKILL, the kernel
detaches and frees everything.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from rtdebug.errors import HostUnable
from rtdebug.host import bpf
from rtdebug.tracing.program import FUNCTION_PROBES, PROBES, CompiledProgram, FunctionProbe, Probe

_PSEUDO_MAP_FD = 1
_LOAD_64_BIT_IMMEDIATE = 0x18
TRACED_PAGE = 4096
"""Process ids for each entry of the map `traced`, as in bpf/common.h."""


@dataclass(slots=True)
class Loaded:
    """Maps and programs in the kernel. `attach()` starts, `close()` ends everything."""

    maps: dict[str, int]
    programs: dict[str, int]
    compiled: CompiledProgram
    links: list[int] = field(default_factory=list)

    def attach(self, probes: Iterable[Probe] = PROBES) -> None:
        """Attach the programs in order. Raises BpfError."""
        if probes is PROBES:
            for function_probe in FUNCTION_PROBES:
                self._attach_function(function_probe)
        for probe in probes:
            by_name = None if probe.tracepoint in self.compiled.tracepoint_ids else probe.tracepoint
            self.links.append(bpf.open_raw_tracepoint(self.programs[probe.function], by_name))

    def _attach_function(self, probe: FunctionProbe) -> None:
        """By fentry, else by kprobe; where the kernel refuses both, traces do without."""
        number = self.compiled.function_ids.get(probe.kernel_function)
        if number is not None:
            with suppress(bpf.BpfError):
                program = self.load_function(
                    probe.fentry, bpf.PROG_TYPE_TRACING, attach_type=bpf.ATTACH_TRACE_FENTRY, btf_id=number
                )
                self.links.append(bpf.open_fentry(program))
                return
        with suppress(bpf.BpfError):
            program = self.load_function(probe.kprobe, bpf.PROG_TYPE_KPROBE)
            self.links.append(bpf.open_kprobe(program, probe.kernel_function))

    def load_function(self, function: str, kind: int, *, attach_type: int = 0, btf_id: int = 0) -> int:
        """Load one program and return its descriptor, which stays ours. Raises BpfError."""
        name = function.removeprefix("on_")
        code = put_descriptors(self.compiled.functions[function], list(self.maps.values()))
        program = bpf.load_program(kind, code, name, attach_type=attach_type, btf_id=btf_id)
        self.programs[function] = program
        return program

    def load_tracepoint(self, probe: Probe) -> None:
        """Load a program for its tracepoint, with the types of its arguments where BTF has them. Raises BpfError."""
        number = self.compiled.tracepoint_ids.get(probe.tracepoint)
        if number is None:
            self.load_function(probe.function, bpf.PROG_TYPE_RAW_TRACEPOINT)
        else:
            self.load_function(
                probe.function, bpf.PROG_TYPE_TRACING, attach_type=bpf.ATTACH_TRACE_RAW_TP, btf_id=number
            )

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
    loaded = Loaded({}, {}, compiled)
    bpf.lift_memlock_limit()
    try:
        for spec in compiled.maps:
            number = entries.get(spec.name, spec.entries)
            fd = bpf.create_map(spec.kind, spec.key_bytes, spec.value_bytes, number, spec.flags, spec.name)
            loaded.maps[spec.name] = fd
        for probe in probes:
            loaded.load_tracepoint(probe)
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
