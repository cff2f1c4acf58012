"""The fields of each event's line, made of its record: pure functions, the keys are those of docs/events.md.

What the record does not say is None, never 0. Text is as the container wrote it.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rtdebug.host import constants
from rtdebug.tracing.line import Value
from rtdebug.tracing.schema import text_of

Fields = dict[str, Value]

MAX_ERRNO = 4095
"""Results from -4095 to -1 are errors (include/linux/err.h)."""


@dataclass(frozen=True, slots=True)
class Host:
    """What the numbers of a record depend on: the host that made it."""

    machine: str
    """As `uname -m` says it."""
    page_size_bytes: int


class Call(NamedTuple):
    """One struct call_event of events.h, as Python numbers."""

    time_ns: int
    address: int
    length_bytes: int
    ret: int
    pid: int
    tid: int
    flags: int
    old_length_pages: int
    stack_id: int
    event: int
    advice: int
    prot: int


class Aggregate(NamedTuple):
    """One struct aggregate_key of events.h with its struct aggregate, as Python numbers."""

    pid: int
    stack_id: int
    event: int
    error: int
    advice: int
    prot: int
    mapping: int
    calls: int
    length_bytes: int


def mmap(call: Call, host: Host) -> Fields:
    """Fields of `mmap`. `address` is where the mapping lies; null when the call failed."""
    return {
        "address": None if is_error(call.ret) else call.address,
        "length_bytes": call.length_bytes,
        "prot": list(constants.prot_names(call.prot, host.machine)),
        "flags": list(constants.map_names(call.flags, host.machine)),
        **result(call.ret),
    }


def munmap(call: Call, _host: Host) -> Fields:
    """Fields of `munmap`."""
    return {"address": call.address, "length_bytes": call.length_bytes, **result(call.ret)}


def mremap(call: Call, host: Host) -> Fields:
    """Fields of `mremap`. `address` and `length_bytes` are the new ones."""
    return {
        "address": None if is_error(call.ret) else call.ret,
        "length_bytes": call.length_bytes,
        "old_address": call.address,
        "old_length_bytes": call.old_length_pages * host.page_size_bytes,
        "flags": list(constants.mremap_names(call.flags)),
        **result(call.ret),
    }


def brk(call: Call, _host: Host) -> Fields:
    """Fields of `brk`. `length_bytes` is by how much the heap grew: negative when it shrank."""
    return {"address": call.address or None, "length_bytes": signed(call.length_bytes), **result(call.ret)}


def madvise(call: Call, _host: Host) -> Fields:
    """Fields of `madvise`."""
    return {
        "address": call.address,
        "length_bytes": call.length_bytes,
        "advice": constants.advice_name(call.advice),
        **result(call.ret),
    }


def process_madvise(call: Call, host: Host) -> Fields:
    """Fields of `process_madvise`: `target_pid` was advised, `length_bytes` is what the kernel reached."""
    return {"target_pid": call.flags or None, **madvise(call, host), "address": call.address or None}


CALL_FIELDS: Mapping[str, Callable[[Call, Host], Fields]] = {
    "mmap": mmap,
    "munmap": munmap,
    "mremap": mremap,
    "brk": brk,
    "madvise": madvise,
    "process_madvise": process_madvise,
}


def aggregate(event: str, entry: Aggregate, host: Host) -> Fields:
    """Fields of calls that were added up: `length_bytes` is the sum, `flags` the low 16 bits."""
    fields: Fields = {"aggregated": True, "count": entry.calls}
    fields["failures"] = entry.calls if entry.error else 0
    fields["length_bytes"] = signed(entry.length_bytes) if event == "brk" else entry.length_bytes
    if event == "mmap":
        fields["prot"] = list(constants.prot_names(entry.prot, host.machine))
        fields["flags"] = list(constants.map_names(entry.mapping, host.machine))
    elif event in ("madvise", "process_madvise"):
        fields["advice"] = constants.advice_name(entry.advice)
    fields["errno"] = constants.errno_name(entry.error) if entry.error else None
    return fields


def shm_file(event: str, record: np.void, host: Host) -> Fields:
    """Fields of `shm_open`, `shm_unlink`, `ftruncate`, `memfd_create`: struct shm_file_event."""
    memfd = event == "memfd_create" or bool(record["memfd"])
    ret, flags = int(record["ret"]), int(record["flags"])
    fields: Fields = {"path": shm_path(record, memfd)}
    if event == "memfd_create":
        fields["flags"] = list(constants.memfd_names(flags))
    elif event == "shm_open":
        names = constants.open_names(flags, host.machine)
        creates = "O_CREAT" in names or "O_TMPFILE" in names
        fields["flags"] = list(names)
        fields["mode"] = f"{int(record['mode']) & 0o7777:04o}" if creates else None
        fields["created"] = bool(record["created"])
    elif event == "ftruncate":
        fields["memfd"] = memfd
    failed = ret < 0 and event != "ftruncate"
    # shm_unlink is told by its path alone: the file may be gone when the call ends
    known = not failed and event != "shm_unlink"
    fields["length_bytes"] = int(record["length_bytes"]) if known else None
    fields["inode_id"] = int(record["inode_id"]) or None
    fields["device_id"] = int(record["device_id"]) or None
    return fields | result(ret)


def sysv(event: str, record: np.void) -> Fields:
    """Fields of `shmget`, `shmat`, `shmdt`, `shmctl`: struct sysv_event."""
    shm_id, ret, flags = int(record["shm_id"]), int(record["ret"]), int(record["flags"])
    if event == "shmdt":
        return {"address": int(record["address"]), **result(ret)}
    fields: Fields = {"shm_id": shm_id if shm_id >= 0 else None}
    if event == "shmget":
        fields["key"] = int(record["key"])
        fields["length_bytes"] = int(record["length_bytes"])
        fields["flags"] = list(constants.shmget_names(flags))
        fields["mode"] = f"{flags & 0o777:04o}"
    elif event == "shmat":
        fields["address"] = None if is_error(ret) else ret
        fields["length_bytes"] = int(record["length_bytes"]) or None
        fields["flags"] = list(constants.shmat_names(flags))
    else:
        fields["command"] = constants.shmctl_name(int(record["command"]))
    return fields | result(ret)


_TMPFS_KEYS = ("size_bytes", "used_bytes", "size_inodes", "free_inodes", "device_id", "inode_id")


def tmpfs(record: np.void, host: Host) -> Fields:
    """Fields that say how full the tmpfs of a struct tmpfs_event is."""
    size_pages, size_inodes = int(record["size_pages"]), int(record["size_inodes"])
    return {
        "size_bytes": size_pages * host.page_size_bytes or None,
        # a tmpfs without a limit counts no blocks (mm/shmem.c: shmem_inode_acct_blocks)
        "used_bytes": int(record["used_pages"]) * host.page_size_bytes if size_pages else None,
        "size_inodes": size_inodes or None,
        "free_inodes": int(record["free_inodes"]) if size_inodes else None,
        "device_id": int(record["device_id"]) or None,
        "inode_id": int(record["inode_id"]) or None,
    }


def shm_full(record: np.void, host: Host, mount_point: str | None) -> Fields:
    """Fields of `shm_full`: struct tmpfs_event."""
    by_fault, number = bool(record["by_fault"]), int(record["syscall_id"])
    return {
        "path": tmpfs_path(record, mount_point),
        "length_bytes": int(record["length_bytes"]) or None,
        "syscall": None if by_fault else constants.syscall_name(number, host.machine),
        "syscall_id": None if by_fault else number,
        "by_fault": by_fault,
        **tmpfs(record, host),
    }


def sigbus(record: np.void, host: Host, mount_point: str | None) -> Fields:
    """Fields of `sigbus`: struct tmpfs_event. The tmpfs is null when the file lies in none."""
    mapped = bool(record["mapping_end"])
    of_file = mapped and bool(record["inode_id"])
    return {
        "path": tmpfs_path(record, mount_point),
        "address": int(record["address"]),
        "signal_code": constants.sigbus_code_name(int(record["signal_code"])),
        "reason": sigbus_reason(record, host.page_size_bytes),
        "mapping_start": int(record["mapping_start"]) if mapped else None,
        "mapping_end": int(record["mapping_end"]) if mapped else None,
        "file_offset_bytes": int(record["file_offset_bytes"]) if of_file else None,
        "file_length_bytes": int(record["file_length_bytes"]) if of_file else None,
        **(tmpfs(record, host) if record["tmpfs"] else dict.fromkeys(_TMPFS_KEYS)),
    }


def oom_kill(record: np.void, host: Host, cgroups: Mapping[int, str], cmdline: str | None) -> Fields:
    """Fields of `oom_kill` as far as struct oom_event says them; rtdebug.oom joins other sources to it.

    `cgroups` gives the path of a memory cgroup's id, `cmdline` is the victim's.
    """
    page, order, oom_memcg_id = host.page_size_bytes, int(record["order"]), int(record["oom_memcg_id"])
    levels = [_memcg_level(level, host, cgroups) for level in record["memcg"][: int(record["levels"])]]
    limiting: Fields = next((level for level in levels if level["memcg_id"] == oom_memcg_id), {})
    return {
        "constraint": constants.OOM_CONSTRAINT.get(int(record["constraint"])),
        "oom_memcg": cgroups.get(oom_memcg_id),
        **{key: limiting.get(key) for key in ("limit_bytes", "usage_bytes", "failcnt")},
        "anon_rss_bytes": int(record["anon_pages"]) * page,
        "file_rss_bytes": int(record["file_pages"]) * page,
        "shmem_rss_bytes": int(record["shmem_pages"]) * page,
        "swap_bytes": int(record["swap_pages"]) * page,
        "page_table_bytes": int(record["page_table_bytes"]),
        "total_vm_bytes": int(record["total_vm_pages"]) * page,
        "oom_score_adj": int(record["oom_score_adj"]),
        "uid": int(record["uid"]),
        "cmdline": cmdline,
        "trigger_pid": int(record["trigger_pid"]) or None,
        "trigger_tid": int(record["trigger_tid"]) or None,
        "trigger_comm": text_of(bytes(record["trigger_comm"])) or None,
        "order": order if order >= 0 else None,
        "gfp_mask": hex(int(record["gfp_mask"])) if order >= 0 else None,
        "oom_group": bool(record["oom_group"]),
        "memcg_levels": list(levels),
    }


def _memcg_level(level: np.void, host: Host, cgroups: Mapping[int, str]) -> Fields:
    memcg_id, limit_bytes = int(level["memcg_id"]), int(level["limit_pages"]) * host.page_size_bytes
    # PAGE_COUNTER_MAX (include/linux/page_counter.h), LONG_MAX in pages, is no limit
    unlimited = limit_bytes >= (1 << 63) - host.page_size_bytes
    return {
        "memcg_id": memcg_id,
        "cgroup": cgroups.get(memcg_id),
        "usage_bytes": int(level["usage_pages"]) * host.page_size_bytes,
        "limit_bytes": None if unlimited else limit_bytes,
        "failcnt": int(level["failcnt"]),
    }


def is_error(ret: int) -> bool:
    """Tell whether a system call's result is an error."""
    return -MAX_ERRNO <= ret < 0


def result(ret: int) -> Fields:
    """Return `ret`, and `errno` by name: null on success."""
    return {"ret": ret, "errno": constants.errno_name(-ret) if is_error(ret) else None}


def signed(number: int) -> int:
    """Read a __u64 as the __s64 it was made of."""
    return number - (1 << 64) if number >> 63 else number


def shm_path(record: np.void, memfd: bool) -> str | None:
    """Return the path of a struct shm_file_event: below /dev/shm, or of a memfd.

    Directories that the record has no room for are "...".
    """
    name = text_of(bytes(record["name"]))
    if memfd:
        return f"/memfd:{name}"
    if not name or name.startswith("/"):
        return name or None
    folders = (text_of(bytes(record["grandparent"])), text_of(bytes(record["parent"])))
    path = "/".join(filter(None, ("/dev/shm", "..." if record["deeper"] else "", *folders, name)))
    return posixpath.normpath(path) if record["user_path"] else path


def tmpfs_path(record: np.void, mount_point: str | None) -> str | None:
    """Return the path of a struct tmpfs_event: whole where known, else below the file system's root."""
    name, parent = text_of(bytes(record["name"])), text_of(bytes(record["parent"]))
    if not name or name.startswith("/"):
        return name or None
    if name.startswith(("memfd:", "SYSV")) and not parent:
        return f"/{name}"  # as /proc/PID/maps shows them
    below = "/".join(filter(None, ("..." if record["deeper"] else "", parent, name)))
    path = below if mount_point is None else f"{mount_point.rstrip('/')}/{below}"
    return path if record["inode_id"] else posixpath.normpath(path)


def sigbus_reason(record: np.void, page_size_bytes: int) -> str | None:
    """Say why a page fault ended in SIGBUS; None when the record does not tell.

    `beyond_end_of_file`: the page lies after the file's last one, for it was cut or never made long enough
    (mm/filemap.c: filemap_fault; mm/shmem.c: shmem_get_folio_gfp). `tmpfs_full`: the page is in the file,
    but its tmpfs, which has a limit, had none left. The used pages do not decide that: each CPU adds its own
    to the kernel's counter in batches of 32 or more (lib/percpu_counter.c), so it is behind. `hwpoison`: the
    memory is broken. A memory cgroup at its limit gives no SIGBUS but an OOM kill, so there is no such reason.
    """
    code = constants.SIGBUS_CODE.get(int(record["signal_code"]))
    if code in ("BUS_MCEERR_AR", "BUS_MCEERR_AO"):
        return "hwpoison"
    if code != "BUS_ADRERR" or not record["mapping_end"] or not record["inode_id"]:
        return None
    file_pages = -(-int(record["file_length_bytes"]) // page_size_bytes)
    if int(record["file_offset_bytes"]) // page_size_bytes >= file_pages:
        return "beyond_end_of_file"
    return "tmpfs_full" if record["tmpfs"] and record["size_pages"] else None
