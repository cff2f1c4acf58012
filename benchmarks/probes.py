"""The same events in bpftrace's words, and the same programs as stock bcc compiles them."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from rtdebug.tracing.btf import VMLINUX_BTF, Btf
from rtdebug.tracing.program import PROBES, program_source
from rtdebug.tracing.shim import write_shim

BOOKKEEPING = """
tracepoint:sched:sched_process_fork /@traced[args->parent_pid]/ { @traced[args->child_pid] = 1; }
tracepoint:sched:sched_process_exec /@traced[pid]/ { printf("%d exec %s\\n", pid, str(args->filename)); }
tracepoint:sched:sched_process_exit /@traced[pid]/ { delete(@traced[pid]); printf("%d exit\\n", pid); }
tracepoint:task:task_rename /@traced[pid]/ { printf("%d comm %s\\n", pid, args->newcomm); }
tracepoint:cgroup:cgroup_attach_task { @traced[args->pid] = 1; }
tracepoint:cgroup:cgroup_mkdir { printf("mkdir %s\\n", str(args->path)); }
tracepoint:cgroup:cgroup_rmdir { printf("rmdir %s\\n", str(args->path)); }
tracepoint:oom:mark_victim { printf("%d oom_kill\\n", args->pid); }
tracepoint:signal:signal_generate /args->sig == 7/ { printf("%d sigbus\\n", args->pid); }
"""
_ADDED_UP = {  # call -> the argument that is its length, the one that is its kind
    "mmap": ("len", "prot"),
    "munmap": ("len", None),
    "mremap": ("new_len", "flags"),
    "brk": ("brk", None),
    "madvise": ("len_in", "behavior"),
    "process_madvise": ("vlen", "behavior"),
}
_TOLD = {  # call -> the argument that tells most
    "shmget": "size",
    "shmat": "shmid",
    "shmdt": "shmaddr",
    "shmctl": "shmid",
    "ftruncate": "length",
}
_NAMED = {"memfd_create": "uname", "openat": "filename", "unlink": "pathname", "unlinkat": "pathname"}

_FIRST = """
#define CONFIG_BPF_SYSCALL 1
#define _UAPI__LINUX_BPF_H__
#include <linux/types.h>
"""
_BEFORE = """
#ifndef TYPES_H
#define TYPES_H
#define BPF_NO_PRESERVE_ACCESS_INDEX
"""
_AFTER = """
#define NULL ((void *)0)
#endif
"""


def bpftrace_same_events() -> str:
    """Return a bpftrace program that gathers about what rtdebug does: each call's arguments with its result."""
    lines = [BOOKKEEPING]
    for call, (length, kind) in _ADDED_UP.items():
        lines.append(_enter(call, f"@length[tid] = args->{length}; @kind[tid] = {f'args->{kind}' if kind else 0};"))
        lines.append(_exit(call, f'@calls[pid, "{call}", @kind[tid], args->ret < 0 ? args->ret : 0] = count(); '
                                 f'@bytes[pid, "{call}", @kind[tid]] = sum(@length[tid]);'))  # fmt: skip
    for call, argument in _TOLD.items():
        lines.append(_enter(call, f"@length[tid] = (uint64)args->{argument};"))
        lines.append(_exit(call, f'printf("%d %s {call} %d %d\\n", pid, comm, @length[tid], args->ret);'))
    for call, argument in _NAMED.items():
        lines.append(_enter(call, f"@name[tid] = args->{argument};"))
        lines.append(_exit(call, f'printf("%d %s {call} %s %d\\n", pid, comm, str(@name[tid]), args->ret);'))
    return "\n".join(lines)


def bpftrace_bare() -> str:
    """Return a program on the same tracepoints (the exits of the calls) that reads nothing: they are counted."""
    calls = [f"tracepoint:syscalls:sys_exit_{call}" for call in (*_ADDED_UP, *_TOLD, *_NAMED)]
    others = [line.split()[0] for line in BOOKKEEPING.split("\n") if line]
    return ",".join([*calls, *others]) + " { @[pid] = count(); }"


def _enter(call: str, body: str) -> str:
    return f"tracepoint:syscalls:sys_enter_{call} /@traced[pid]/ {{ {body} }}"


def _exit(call: str, body: str) -> str:
    return f"tracepoint:syscalls:sys_exit_{call} /@traced[pid]/ {{ {body} }}"


@contextmanager
def full_headers() -> Iterator[tuple[Path, list[str]]]:
    """Give what stock bcc needs to compile rtdebug's programs: a header tree, and the arguments of stock_bcc.py.

    The tree holds the kernel's types in full, as `bpftool btf dump` writes them: no kernel headers are needed, and
    what installed ones would cost is about that.
    """
    # bcc attaches to a raw tracepoint by name: there the kernel's structures are read through a helper only
    source = re.sub(r"\(regs\)->(\w+(\[\d\])?)", r"KREAD(regs, \1)", program_source())
    dumped = subprocess.run(
        ["bpftool", "btf", "dump", "file", VMLINUX_BTF, "format", "c"], capture_output=True, text=True, check=True
    ).stdout
    with TemporaryDirectory(prefix="rtdebug-bench-") as name:
        folder = Path(name)
        flags = write_shim(folder, source, Btf())
        types = dumped.replace("typedef struct config_s config;", "")  # zlib's; our map has that name
        (folder / "include/linux/types.h").write_text(f"{_BEFORE}{types}{_AFTER}")
        # read before everything else: bcc's own copy of this header would define the same types again
        (folder / "include/linux/kconfig.h").write_text(_FIRST)
        program = folder / "program.c"
        program.write_text(source)
        probes = [f"{probe.function}={probe.tracepoint}" for probe in PROBES]
        yield folder, [os.fspath(program), " ".join([*flags, "-w"]), *probes]
