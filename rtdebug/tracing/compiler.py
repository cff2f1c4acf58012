"""The compiler process: the only place that imports bcc.

bcc keeps LLVM in memory (more than 100 MB), so it lives in a process of its own that ends before tracing starts:
`python -m rtdebug.tracing.compiler` writes the compiled programs to standard output. `compiled_program()` is what
the tracing process calls: it takes them from the cache when this kernel, bcc and source were compiled before.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from rtdebug.errors import HostUnable, RtdebugError
from rtdebug.host import trials
from rtdebug.host.bcc import find_bcc, read_version
from rtdebug.host.cache import read_cached, write_cached
from rtdebug.tracing.program import (
    TRACE,
    UNITS,
    CompiledProgram,
    MapSpec,
    Unit,
    cache_name,
    made_for,
    program_source,
)

_PSEUDO_MAP_FD = 1
_LOAD_64_BIT_IMMEDIATE = 0x18
_FLAGS = ("-Wno-macro-redefined", "-Wno-unused-function", "-Wno-unused-value", "-Wno-pointer-sign")


def compiled_program(unit: Unit = TRACE) -> CompiledProgram:
    """Return the programs compiled for this kernel. Raises HostUnable or RtdebugError with the compiler's words."""
    key = _key(find_bcc(), unit)
    name = cache_name(key, unit)
    cached = read_cached(name)
    if cached is not None:
        try:
            return CompiledProgram.from_bytes(cached, key)
        except (ValueError, KeyError, TypeError):
            pass  # cut short, or of another make: compile again
    content = _compile_in_child(unit)
    write_cached(name, content)
    return CompiledProgram.from_bytes(content, key)


def _key(bcc_folder: Path, unit: Unit) -> str:
    return made_for(program_source(unit), read_version(bcc_folder) or "unknown")


def _compile_in_child(unit: Unit) -> bytes:
    import subprocess  # needed once for each kernel: 1 MB that every other trace does without
    import tempfile

    # both remove the folder: whoever outlives the other, interrupted or killed
    with tempfile.TemporaryDirectory(prefix="rtdebug-shim-", ignore_cleanup_errors=True) as shim:
        done = subprocess.run(
            [sys.executable, "-m", "rtdebug.tracing.compiler", shim, unit.name],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
    if done.returncode == 0:
        return done.stdout
    words = done.stderr.decode(errors="replace").strip()
    if done.returncode == HostUnable.exit_code:
        message, _, hint = words.partition("\n")
        raise HostUnable(message, hint)
    raise RtdebugError(
        "the BPF programs could not be compiled for this kernel",
        "please report this with the output of `rtdebug doctor`; the compiler said:\n" + words[-2000:],
    )


def compile_program(source: str, shim: Path, typed: bool, unit: Unit = TRACE) -> CompiledProgram:
    """Compile in this process, with kernel headers made in the folder `shim`. Raises HostUnable.

    `typed`: for raw tracepoints with the types of their arguments out of BTF, which cost a little less than those
    that are attached by name.
    bcc prints the compiler's errors on standard error.
    """
    from rtdebug.tracing.btf import Btf
    from rtdebug.tracing.shim import write_shim

    folder = find_bcc()
    btf = Btf()
    flags = write_shim(shim, source, btf)
    if typed:
        flags.append("-DTYPED_TRACEPOINTS=1")
    os.environ["BCC_KERNEL_SOURCE"] = str(shim)
    bcc = _import_bcc(folder)
    module = bcc.BPF(text=source.encode(), cflags=[*_FLAGS, *flags])
    maps = _maps(bcc, module)
    places = {fd: place for place, (fd, _) in enumerate(maps)}
    names = [*unit.functions, *(probe.function for probe in unit.probes)]
    names += [name for probe in unit.function_probes for name in (probe.fentry, probe.kprobe)]
    functions = {name: name_maps_by_place(module.dump_func(name.encode()), places) for name in names}
    tracepoints = {probe.tracepoint: btf.tracepoint_id(probe.tracepoint) for probe in unit.probes if typed}
    kernel_functions = {probe.kernel_function: btf.function_id(probe.kernel_function) for probe in unit.function_probes}
    return CompiledProgram(
        maps=tuple(spec for _, spec in maps),
        functions=functions,
        tracepoint_ids=_known(tracepoints),
        function_ids=_known(kernel_functions),
    )


def _known(ids: dict[str, int | None]) -> dict[str, int]:
    return {name: number for name, number in ids.items() if number is not None}


def _import_bcc(folder: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "bcc", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None:
        raise HostUnable(f"cannot import bcc from {folder}", "reinstall python3-bpfcc")
    module = importlib.util.module_from_spec(spec)
    sys.modules["bcc"] = module
    try:
        spec.loader.exec_module(module)
    except (ImportError, OSError) as error:
        hint = "apt-get install --reinstall python3-bpfcc"
        raise HostUnable(f"cannot import bcc from {folder}: {error}", hint) from error
    return module


def _maps(bcc: Any, module: Any) -> list[tuple[int, MapSpec]]:  # noqa: ANN401 - bcc has no types
    library = bcc.lib
    for name in ("name", "fd_id", "type_id", "key_size_id", "leaf_size_id", "max_entries_id", "flags_id"):
        # bcc declares some of its library's functions only: without this a pointer is cut to 32 bits
        getattr(library, f"bpf_table_{name}").argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        getattr(library, f"bpf_table_{name}").restype = ctypes.c_size_t
    library.bpf_table_name.restype = ctypes.c_char_p
    library.bpf_num_tables.argtypes = [ctypes.c_void_p]
    maps = []
    for place in range(library.bpf_num_tables(module.module)):
        kind = library.bpf_table_type_id(module.module, place)
        ring = kind == 27
        spec = MapSpec(
            name=library.bpf_table_name(module.module, place).decode(),
            kind=kind,
            key_bytes=0 if ring else library.bpf_table_key_size_id(module.module, place),
            value_bytes=0 if ring else library.bpf_table_leaf_size_id(module.module, place),
            entries=library.bpf_table_max_entries_id(module.module, place),
            flags=library.bpf_table_flags_id(module.module, place),
        )
        maps.append((library.bpf_table_fd_id(module.module, place), spec))
    return maps


def name_maps_by_place(code: bytes, places: dict[int, int]) -> bytes:
    """Return the instructions with each map's descriptor replaced by its place (include/uapi/linux/bpf.h)."""
    patched = bytearray(code)
    for offset in range(0, len(code), 8):
        if code[offset] == _LOAD_64_BIT_IMMEDIATE and code[offset + 1] >> 4 == _PSEUDO_MAP_FD:
            descriptor = int.from_bytes(code[offset + 4 : offset + 8], "little")
            patched[offset + 4 : offset + 8] = places[descriptor].to_bytes(4, "little")
    return bytes(patched)


def _takes_typed_tracepoints() -> bool:
    try:
        trials.try_typed_raw_tracepoint(TRACE.probes[0].tracepoint)
    except RtdebugError:
        return False
    return True


def main() -> None:
    """Compile the unit named by the second argument in the folder of the first, remove it, and write the result to
    standard output.
    """
    shim = Path(sys.argv[1])
    unit = next(unit for unit in UNITS if unit.name == sys.argv[2])
    try:
        program = compile_program(program_source(unit), shim, _takes_typed_tracepoints(), unit)
        content = program.to_bytes(_key(find_bcc(), unit))
    except HostUnable as error:
        print(error.message, error.hint, sep="\n", file=sys.stderr)
        sys.exit(error.exit_code)
    finally:
        shutil.rmtree(shim, ignore_errors=True)
    sys.stdout.buffer.write(content)
    sys.stdout.flush()
    os._exit(0)  # bcc's own exit handlers have nothing of ours to do


if __name__ == "__main__":
    main()
