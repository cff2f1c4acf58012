"""The bpf(2) system call: maps, programs and their attachment, each held by a file descriptor.

Closing the descriptors is the end of everything made here: nothing is pinned. ctypes, not cffi: this runs in the
tracing process, where cffi's parser would be a tenth of all the memory. Layouts: include/uapi/linux/bpf.h.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import resource
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from rtdebug.errors import HostUnable, RtdebugError

_SYSCALLS = {  # bpf, perf_event_open
    "x86_64": (321, 298),
    "aarch64": (280, 241),
    "riscv64": (280, 241),
    "s390x": (351, 331),
    "ppc64le": (361, 319),
}

MAP_CREATE, MAP_LOOKUP, MAP_UPDATE, MAP_DELETE = 0, 1, 2, 3
PROG_LOAD = 5
PROG_GET_NEXT_ID, MAP_GET_NEXT_ID = 11, 12
PROG_GET_FD_BY_ID, OBJ_GET_INFO_BY_FD = 13, 15
RAW_TRACEPOINT_OPEN = 17
MAP_LOOKUP_BATCH = 24

MAP_TYPE_HASH, MAP_TYPE_ARRAY = 1, 2
MAP_TYPE_PERCPU_HASH, MAP_TYPE_PERCPU_ARRAY, MAP_TYPE_STACK_TRACE = 5, 6, 7
MAP_TYPE_RINGBUF = 27

PROG_TYPE_KPROBE, PROG_TYPE_PERF_EVENT, PROG_TYPE_RAW_TRACEPOINT, PROG_TYPE_TRACING = 2, 7, 17, 26
ATTACH_TRACE_RAW_TP, ATTACH_TRACE_FENTRY = 23, 24

_PERF_FLAG_FD_CLOEXEC = 8
_TYPE_SOFTWARE = 1
PAGE_FAULTS = 2
"""PERF_COUNT_SW_PAGE_FAULTS of enum perf_sw_ids, include/uapi/linux/perf_event.h."""
# _IOW('$', 8, __u32); PowerPC has the direction in other bits
_PERF_EVENT_IOC_SET_BPF = 0x80042408 if platform.machine().startswith("ppc") else 0x40042408

NAME_PREFIX = "rtdebug_"
"""Every program of ours begins with it: `bpftool prog` shows whose it is."""

_libc = ctypes.CDLL(None, use_errno=True)


class BpfError(RtdebugError):
    """A bpf(2) call failed. `number` is the errno."""

    def __init__(self, message: str, number: int, hint: str = "") -> None:
        super().__init__(f"{message}: {os.strerror(number)}", hint)
        self.number = number


def _syscall_numbers() -> tuple[int, int]:
    machine = platform.machine()
    if machine not in _SYSCALLS:
        raise HostUnable(f"rtdebug does not know the bpf system call of {machine}")
    return _SYSCALLS[machine]


def _bpf(command: int, attributes: bytes | ctypes.Array[ctypes.c_char]) -> int:
    """Call bpf(2); returns its result, or minus the errno."""
    buffer = attributes if isinstance(attributes, ctypes.Array) else ctypes.create_string_buffer(attributes, 152)
    result = int(_libc.syscall(_syscall_numbers()[0], command, buffer, ctypes.sizeof(buffer)))
    return result if result >= 0 else -ctypes.get_errno()


def _object_name(name: str) -> bytes:
    return (NAME_PREFIX + name).encode()[:15]


def lift_memlock_limit() -> None:
    """Let this process have as much BPF memory as it asks for.

    Before commit 3ac1f01b43b6 ("bpf: Eliminate rlimit-based memory accounting for bpf progs"), in v5.11, maps and
    programs counted against RLIMIT_MEMLOCK. Whose limit stays too low gets EPERM from create_map().
    """
    _, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    for limit in (hard, resource.RLIM_INFINITY):  # the second one needs CAP_SYS_RESOURCE
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (limit, limit))


def create_map(kind: int, key_bytes: int, value_bytes: int, entries: int, flags: int, name: str) -> int:
    """Create a map and return its descriptor. Raises BpfError."""
    fd = _bpf(
        MAP_CREATE,
        struct.pack("7I16s", kind, key_bytes, value_bytes, entries, flags, 0, 0, _object_name(name)),
    )
    if fd < 0:
        hint = "raise the limit on locked memory (ulimit -l unlimited)" if -fd == errno.EPERM else ""
        raise BpfError(f"cannot create the BPF map {name}", -fd, hint)
    return fd


def load_program(
    kind: int, instructions: bytes, name: str, *, attach_type: int = 0, btf_id: int = 0, log_bytes: int = 1 << 20
) -> int:
    """Load a program and return its descriptor. Raises BpfError, with the verifier's last words as hint."""
    code = ctypes.create_string_buffer(instructions, len(instructions))
    licence = ctypes.create_string_buffer(b"GPL")

    def attributes(log: ctypes.Array[ctypes.c_char] | None) -> bytes:
        return struct.pack(
            "IIQQIIQII16sIIIIQIIQII",
            kind,
            len(instructions) // 8,
            ctypes.addressof(code),
            ctypes.addressof(licence),
            1 if log else 0,
            ctypes.sizeof(log) if log else 0,
            ctypes.addressof(log) if log else 0,
            0,
            0,
            _object_name(name),
            0,
            attach_type,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            btf_id,
        )

    fd = _bpf(PROG_LOAD, attributes(None))
    if fd >= 0:
        return fd
    log = ctypes.create_string_buffer(log_bytes)
    retried = _bpf(PROG_LOAD, attributes(log))
    if retried >= 0:
        return retried
    last_words = log.value.decode(errors="replace").strip().splitlines()[-12:]
    raise BpfError(f"the kernel refuses the BPF program {name}", -fd, "\n".join(last_words))


def open_raw_tracepoint(program_fd: int, name: str | None) -> int:
    """Attach to a raw tracepoint, or (name None) to what a BTF-typed program was loaded for. Returns the link."""
    text = ctypes.create_string_buffer(name.encode()) if name else None
    fd = _bpf(RAW_TRACEPOINT_OPEN, struct.pack("QI", ctypes.addressof(text) if text else 0, program_fd))
    if fd < 0:
        raise BpfError(f"cannot attach to {name or 'the tracepoint'}", -fd)
    return fd


def open_fentry(program_fd: int) -> int:
    """Attach to the kernel function that a program of ATTACH_TRACE_FENTRY was loaded for. Returns the link."""
    return open_raw_tracepoint(program_fd, None)


def open_kprobe(program_fd: int, function: str, sys: Path = Path("/sys")) -> int:
    """Attach to the entry of a kernel function by a breakpoint; closing the descriptor detaches. Raises BpfError."""
    name = ctypes.create_string_buffer(function.encode())
    return open_probe("kprobe", program_fd, (ctypes.addressof(name), 0), pid=-1, cpu=0, sys=sys)


def open_uprobe(
    program_fd: int, file: Path, offset: int, pid: int, *, at_return: bool, sys: Path = Path("/sys")
) -> int:
    """Attach to the function at `offset` of a file in the one process `pid`; closing the descriptor detaches.

    Raises BpfError.
    """
    name = ctypes.create_string_buffer(bytes(file))
    place = ctypes.addressof(name), offset
    return open_probe("uprobe", program_fd, place, pid=pid, cpu=-1, sys=sys, config=int(at_return))


def open_software_event(program_fd: int, event: int, period: int, cpu: int) -> int:
    """Run a program at each `period`-th software event (enum perf_sw_ids) of a CPU; closing the descriptor detaches.

    Raises BpfError.
    """
    attributes = ctypes.create_string_buffer(
        struct.pack("=II5QIIQQ", _TYPE_SOFTWARE, 72, event, period, *(0,) * 5, 0, 0)
    )
    return _open_event(program_fd, attributes, "software event", pid=-1, cpu=cpu)


def open_probe(
    kind: str, program_fd: int, place: tuple[int, int], *, pid: int, cpu: int, sys: Path, config: int = 0
) -> int:
    """Attach by perf_event_open(2) with the PMU `kprobe` or `uprobe` (Linux 4.17): config1 and config2 are `place`.

    `config` 1 is the function's return. The program runs on every CPU: `cpu` only says where the event is counted.
    Raises BpfError.
    """
    try:
        pmu = int((sys / f"bus/event_source/devices/{kind}/type").read_text(encoding="ascii"))
    except OSError as error:
        raise BpfError(f"this kernel has no {kind}s", error.errno or errno.ENOENT) from error
    attributes = ctypes.create_string_buffer(struct.pack("=II5QIIQQ", pmu, 72, config, *(0,) * 6, *place))
    return _open_event(program_fd, attributes, kind, pid=pid, cpu=cpu)


def _open_event(program_fd: int, attributes: ctypes.Array[ctypes.c_char], kind: str, *, pid: int, cpu: int) -> int:
    event = int(_libc.syscall(_syscall_numbers()[1], attributes, pid, cpu, -1, _PERF_FLAG_FD_CLOEXEC))
    if event < 0:
        raise BpfError(f"cannot make a {kind}", ctypes.get_errno())
    try:
        fcntl.ioctl(event, _PERF_EVENT_IOC_SET_BPF, program_fd)
    except OSError as error:
        os.close(event)
        raise BpfError(f"cannot put a program on a {kind}", error.errno or 0) from error
    return event


def update(map_fd: int, key: bytes, value: bytes) -> None:
    """Set one entry. For a per-CPU map `value` holds one for each possible CPU. Raises BpfError."""
    key_buffer = ctypes.create_string_buffer(key, len(key))
    value_buffer = ctypes.create_string_buffer(value, len(value))
    result = _bpf(
        MAP_UPDATE,
        struct.pack("IIQQQ", map_fd, 0, ctypes.addressof(key_buffer), ctypes.addressof(value_buffer), 0),
    )
    if result < 0:
        raise BpfError("cannot write a BPF map entry", -result)


def lookup(map_fd: int, key: bytes, value_bytes: int) -> bytes | None:
    """Return one entry's value, or None when there is none. Raises BpfError."""
    key_buffer = ctypes.create_string_buffer(key, len(key))
    value_buffer = ctypes.create_string_buffer(value_bytes)
    result = _bpf(
        MAP_LOOKUP,
        struct.pack("IIQQQ", map_fd, 0, ctypes.addressof(key_buffer), ctypes.addressof(value_buffer), 0),
    )
    if result == -errno.ENOENT:
        return None
    if result < 0:
        raise BpfError("cannot read a BPF map entry", -result)
    return value_buffer.raw


def delete(map_fd: int, key: bytes) -> None:
    """Remove one entry; that it is gone already is fine. Raises BpfError."""
    key_buffer = ctypes.create_string_buffer(key, len(key))
    result = _bpf(MAP_DELETE, struct.pack("IIQQQ", map_fd, 0, ctypes.addressof(key_buffer), 0, 0))
    if result < 0 and result != -errno.ENOENT:
        raise BpfError("cannot delete a BPF map entry", -result)


Batch = tuple[bytes, bytes, int]
"""Keys one after the other, values one after the other, and how many."""


def lookup_batch(map_fd: int, key_bytes: int, value_bytes: int, batch: int = 1024) -> Iterator[Batch]:
    """Yield (keys, values, count) until the whole hash map is read (BPF_MAP_LOOKUP_BATCH, v5.6). Raises BpfError."""
    keys = ctypes.create_string_buffer(key_bytes * batch)
    values = ctypes.create_string_buffer(value_bytes * batch)
    token = ctypes.create_string_buffer(max(key_bytes, 8))
    first = True
    while True:
        attributes = ctypes.create_string_buffer(
            struct.pack(
                "QQQQIIQQ",
                0 if first else ctypes.addressof(token),
                ctypes.addressof(token),
                ctypes.addressof(keys),
                ctypes.addressof(values),
                batch,
                map_fd,
                0,
                0,
            ),
            152,
        )
        result = _bpf(MAP_LOOKUP_BATCH, attributes)
        count = struct.unpack_from("I", attributes, 32)[0]
        if result < 0 and result != -errno.ENOENT:
            raise BpfError("cannot read a BPF map", -result)
        if count:
            yield keys.raw[: count * key_bytes], values.raw[: count * value_bytes], count
        if result < 0:
            return
        first = False


def possible_cpus(sys_root: Path = Path("/sys")) -> int:
    """How many values an entry of a per-CPU map has: the kernel's possible CPUs, online or not."""
    return parse_cpu_list((sys_root / "devices/system/cpu/possible").read_text(encoding="ascii"))


def parse_cpu_list(text: str) -> int:
    """Count the CPUs of a list such as `0-3,8`."""
    count = 0
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        count += int(last or first) - int(first) + 1
    return count
