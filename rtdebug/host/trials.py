"""What this kernel really lets us do, found out by doing it once with the smallest program there is.

Kernel versions and configurations lie (lockdown, seccomp, microVMs, backports), so each attach kind is tried.
Everything made here is closed again before the function returns. Each raises RtdebugError where it fails.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rtdebug.errors import HostUnable, RtdebugError
from rtdebug.host import bpf

# Instructions: include/uapi/linux/bpf.h, struct bpf_insn {code, dst:4|src:4, off, imm}
_RETURN_0 = struct.pack("=BBhi", 0xB7, 0, 0, 0) + struct.pack("=BBhi", 0x95, 0, 0, 0)
_READ_KERNEL = (
    struct.pack("=BBhi", 0xBF, 0xA1, 0, 0)  # r1 = r10
    + struct.pack("=BBhi", 0x07, 1, 0, -8)  # r1 += -8
    + struct.pack("=BBhi", 0xB7, 2, 0, 8)  # r2 = 8
    + struct.pack("=BBhi", 0xB7, 3, 0, 0)  # r3 = 0
    + struct.pack("=BBhi", 0x85, 0, 0, 113)  # call bpf_probe_read_kernel
    + _RETURN_0
)
_LIBBPF = "libbpf.so.1"


def try_ring_buffer() -> None:
    """Create a ring buffer map (Linux 5.8)."""
    os.close(bpf.create_map(bpf.MAP_TYPE_RINGBUF, 0, 0, resource.getpagesize(), 0, "ring"))


def try_kernel_read() -> None:
    """Load a program that reads kernel memory: lockdown=confidentiality forbids it."""
    os.close(bpf.load_program(bpf.PROG_TYPE_RAW_TRACEPOINT, _READ_KERNEL, "read"))


def try_raw_tracepoint(name: str) -> None:
    """Attach to a raw tracepoint by its name (Linux 4.17)."""
    with _program(bpf.PROG_TYPE_RAW_TRACEPOINT, "raw_tp") as program:
        os.close(bpf.open_raw_tracepoint(program, name))


def try_typed_raw_tracepoint(name: str) -> None:
    """Attach to a raw tracepoint with its argument types out of BTF (Linux 5.5)."""
    _try_tracing(name, bpf.ATTACH_TRACE_RAW_TP, "tp_btf")


def try_fentry(function: str) -> None:
    """Attach to the entry of a kernel function (Linux 5.5, and a trampoline for the architecture)."""
    _try_tracing(function, bpf.ATTACH_TRACE_FENTRY, "fentry")


def try_kprobe(function: str, sys: Path = Path("/sys")) -> None:
    """Attach to the entry of a kernel function by a breakpoint."""
    with _program(bpf.PROG_TYPE_KPROBE, "kprobe") as program:
        os.close(bpf.open_kprobe(program, function, sys))


def try_uprobe(sys: Path = Path("/sys")) -> None:
    """Attach to a function of this process's own libc, one that is never called."""
    path, offset = place_in_libc("abort")
    name = ctypes.create_string_buffer(os.fsencode(path))
    with _program(bpf.PROG_TYPE_KPROBE, "uprobe") as program:
        os.close(bpf.open_probe("uprobe", program, (ctypes.addressof(name), offset), pid=0, cpu=-1, sys=sys))


def memlock_is_charged() -> bool:
    """Does BPF memory count against RLIMIT_MEMLOCK, as it did before Linux 5.11?"""
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, hard))
    try:
        os.close(bpf.create_map(bpf.MAP_TYPE_ARRAY, 4, 8, 1, 0, "memlock"))
    except bpf.BpfError as error:
        if error.number == errno.EPERM:
            return True
        raise
    finally:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (soft, hard))
    return False


def libbpf_version() -> str:
    """Version of the libbpf.so.1 that the loader of this system finds. Raises HostUnable."""
    version = _libbpf().libbpf_version_string
    version.restype = ctypes.c_char_p
    return str(version().decode().removeprefix("v"))


def mount_tracefs(sys: Path = Path("/sys")) -> Path:
    """Mount tracefs where it belongs, and return where that is. It stays mounted. Raises HostUnable."""
    target = sys / "kernel/tracing"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tracefs", os.fsencode(target), b"tracefs", 0, None) < 0:
        reason = os.strerror(ctypes.get_errno())
        raise HostUnable(f"cannot mount tracefs on {target}: {reason}", "run as root: mounting needs CAP_SYS_ADMIN")
    return target


@contextmanager
def _program(kind: int, name: str, attach_type: int = 0, btf_id: int = 0) -> Iterator[int]:
    fd = bpf.load_program(kind, _RETURN_0, name, attach_type=attach_type, btf_id=btf_id)
    try:
        yield fd
    finally:
        os.close(fd)


def _try_tracing(name: str, attach_type: int, kind: str) -> None:
    found = _libbpf().libbpf_find_vmlinux_btf_id(name.encode(), attach_type)
    if found <= 0:
        raise RtdebugError(f"the kernel's BTF does not name {name}")
    with _program(bpf.PROG_TYPE_TRACING, kind, attach_type, found) as program:
        os.close(bpf.open_raw_tracepoint(program, None))


def _libbpf() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(_LIBBPF)
    except OSError as error:
        raise HostUnable(f"{_LIBBPF} cannot be loaded", "apt-get install libbpf1") from error
    library.libbpf_set_print(None)  # it would write to our standard error
    return library


def open_libc() -> ctypes.CDLL:
    """The C library itself: a program may have stubs of its own for the functions that it calls."""
    try:
        return ctypes.CDLL("libc.so.6")
    except OSError:  # musl has another name, and all of it is in the program's scope
        return ctypes.CDLL(None)


def place_in_libc(function: str) -> tuple[str, int]:
    """File and offset of a function of this process's libc: where the dynamic linker put it says /proc/self/maps."""
    address = ctypes.cast(getattr(open_libc(), function), ctypes.c_void_p).value or 0
    for line in Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines():
        span, _perms, offset, _device, _inode, *path = line.split(maxsplit=5)
        start, end = (int(edge, 16) for edge in span.split("-"))
        if start <= address < end and path:
            return path[0], address - start + int(offset, 16)
    raise RtdebugError("libc is not a mapped file of this process")
