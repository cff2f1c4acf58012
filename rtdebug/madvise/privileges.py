"""What an experiment process may do once it is inside: as much as the container's first process, and no more.

It is seen by the processes of the container. What they could make it do (ptrace, a link laid in its way) they could
have done themselves.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import struct
from dataclasses import dataclass
from pathlib import Path

from rtdebug.host.text import parse_int, read_text
from rtdebug.madvise import syscalls

_CAPSET = {"x86_64": 126, "aarch64": 91}
_CAPABILITY_VERSION_3 = 0x20080522
_MOST_CAPABILITIES = 64


@dataclass(frozen=True, slots=True)
class Privileges:
    """Of the container's first process; ids as its own user namespace counts them."""

    uid: int
    gid: int
    capabilities: int
    """Its effective ones, as a mask."""
    thp_disabled: bool
    """prctl(PR_SET_THP_DISABLE): its children have it too."""


def read_privileges(pid: int, proc: Path = Path("/proc")) -> Privileges | None:
    """None if it has exited."""
    status = read_text(proc / str(pid) / "status")
    uid_map = read_text(proc / str(pid) / "uid_map")
    gid_map = read_text(proc / str(pid) / "gid_map")
    return parse_privileges(status, uid_map or "", gid_map or "") if status else None


def parse_privileges(status: str, uid_map: str, gid_map: str) -> Privileges:
    """/proc/PID/status, and the maps of its user namespace as seen from here."""
    values = dict(re.findall(r"^(\w+):\s*(.*)$", status, re.MULTILINE))
    return Privileges(
        uid=inside_id(int(values["Uid"].split()[1]), uid_map),
        gid=inside_id(int(values["Gid"].split()[1]), gid_map),
        capabilities=int(values.get("CapEff", "0"), 16),
        thp_disabled=values.get("THP_enabled") == "0",
    )


def inside_id(host_id: int, id_map: str) -> int:
    """The id that a user namespace has for ours, user_namespaces(7); `host_id` itself where it is not mapped."""
    for line in id_map.splitlines():
        numbers = [parse_int(word) for word in line.split()]
        match numbers:
            case [int(inside), int(outside), int(length)] if outside <= host_id < outside + length:
                return inside + host_id - outside
    return host_id


def take_on(privileges: Privileges) -> None:
    """Become as the container's first process is: for good. Raises OSError.

    Not dumpable: no core file of it, and no debugger without CAP_SYS_PTRACE. It dies with its parent.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in range(_MOST_CAPABILITIES):
        if not privileges.capabilities >> number & 1:
            _drop_from_bounding_set(number)
    if os.getuid() != privileges.uid or os.getgid() != privileges.gid:
        with contextlib.suppress(PermissionError):  # a rootless container may not (user_namespaces(7)): it has none
            os.setgroups([])
        os.setresgid(privileges.gid, privileges.gid, privileges.gid)
        os.setresuid(privileges.uid, privileges.uid, privileges.uid)
    if os.getuid() == 0:  # with another uid they are gone already
        _set_capabilities(privileges.capabilities)
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
    if privileges.thp_disabled:
        syscalls.prctl(syscalls.PR_SET_THP_DISABLE, 1)


def _drop_from_bounding_set(number: int) -> None:
    try:
        syscalls.prctl(syscalls.PR_CAPBSET_DROP, number)
    except OSError:  # a number this kernel does not have, or a user namespace where we never had it
        return


def _set_capabilities(mask: int) -> None:
    """capset(2): effective and permitted; those we do not have ourselves cannot be taken on."""
    number = _CAPSET.get(os.uname().machine)
    if number is None:
        return
    mask &= _permitted()
    low, high = mask & 0xFFFFFFFF, mask >> 32
    ffi, _ = syscalls.libc()
    header = ffi.from_buffer("char[]", struct.pack("=Ii", _CAPABILITY_VERSION_3, 0))
    data = ffi.from_buffer("char[]", struct.pack("=6I", low, low, 0, high, high, 0))
    syscalls.syscall(number, header, data)


def _permitted() -> int:
    ffi, _ = syscalls.libc()
    header = ffi.new("char[]", struct.pack("=Ii", _CAPABILITY_VERSION_3, 0))
    data = ffi.new("char[24]")
    syscalls.syscall(_CAPSET[os.uname().machine] - 1, header, data)
    words = struct.unpack("=6I", bytes(ffi.buffer(data)))
    return int(words[1] | words[4] << 32)
