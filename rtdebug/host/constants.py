"""Numbers of the kernel's user-space interface, and their names.

Tables are those of include/uapi/asm-generic and include/uapi/linux, which x86-64, arm64, riscv, s390 and
loongarch share; where one of them differs, the machine (as `uname -m` says it) is a parameter. They are ours
and not Python's own (`errno`, `mmap`, `os`), because a recording is also read on other machines.
A bit or number without a name is shown as a hexadecimal number: nothing is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

ERRNO = (
    *(None, "EPERM", "ENOENT", "ESRCH", "EINTR", "EIO", "ENXIO", "E2BIG", "ENOEXEC", "EBADF", "ECHILD"),
    *("EAGAIN", "ENOMEM", "EACCES", "EFAULT", "ENOTBLK", "EBUSY", "EEXIST", "EXDEV", "ENODEV", "ENOTDIR"),
    *("EISDIR", "EINVAL", "ENFILE", "EMFILE", "ENOTTY", "ETXTBSY", "EFBIG", "ENOSPC", "ESPIPE", "EROFS"),
    *("EMLINK", "EPIPE", "EDOM", "ERANGE", "EDEADLK", "ENAMETOOLONG", "ENOLCK", "ENOSYS", "ENOTEMPTY"),
    *("ELOOP", None, "ENOMSG", "EIDRM", "ECHRNG", "EL2NSYNC", "EL3HLT", "EL3RST", "ELNRNG", "EUNATCH"),
    *("ENOCSI", "EL2HLT", "EBADE", "EBADR", "EXFULL", "ENOANO", "EBADRQC", "EBADSLT", None, "EBFONT"),
    *("ENOSTR", "ENODATA", "ETIME", "ENOSR", "ENONET", "ENOPKG", "EREMOTE", "ENOLINK", "EADV", "ESRMNT"),
    *("ECOMM", "EPROTO", "EMULTIHOP", "EDOTDOT", "EBADMSG", "EOVERFLOW", "ENOTUNIQ", "EBADFD", "EREMCHG"),
    *("ELIBACC", "ELIBBAD", "ELIBSCN", "ELIBMAX", "ELIBEXEC", "EILSEQ", "ERESTART", "ESTRPIPE", "EUSERS"),
    *("ENOTSOCK", "EDESTADDRREQ", "EMSGSIZE", "EPROTOTYPE", "ENOPROTOOPT", "EPROTONOSUPPORT"),
    *("ESOCKTNOSUPPORT", "EOPNOTSUPP", "EPFNOSUPPORT", "EAFNOSUPPORT", "EADDRINUSE", "EADDRNOTAVAIL"),
    *("ENETDOWN", "ENETUNREACH", "ENETRESET", "ECONNABORTED", "ECONNRESET", "ENOBUFS", "EISCONN"),
    *("ENOTCONN", "ESHUTDOWN", "ETOOMANYREFS", "ETIMEDOUT", "ECONNREFUSED", "EHOSTDOWN", "EHOSTUNREACH"),
    *("EALREADY", "EINPROGRESS", "ESTALE", "EUCLEAN", "ENOTNAM", "ENAVAIL", "EISNAM", "EREMOTEIO"),
    *("EDQUOT", "ENOMEDIUM", "EMEDIUMTYPE", "ECANCELED", "ENOKEY", "EKEYEXPIRED", "EKEYREVOKED"),
    *("EKEYREJECTED", "EOWNERDEAD", "ENOTRECOVERABLE", "ERFKILL", "EHWPOISON"),
)
"""asm-generic/errno-base.h, errno.h: the number is the index."""

MADV = {
    **dict(enumerate(("MADV_NORMAL", "MADV_RANDOM", "MADV_SEQUENTIAL", "MADV_WILLNEED", "MADV_DONTNEED"))),
    8: "MADV_FREE",
    9: "MADV_REMOVE",
    10: "MADV_DONTFORK",
    11: "MADV_DOFORK",
    12: "MADV_MERGEABLE",
    13: "MADV_UNMERGEABLE",
    14: "MADV_HUGEPAGE",
    15: "MADV_NOHUGEPAGE",
    16: "MADV_DONTDUMP",
    17: "MADV_DODUMP",
    18: "MADV_WIPEONFORK",
    19: "MADV_KEEPONFORK",
    20: "MADV_COLD",
    21: "MADV_PAGEOUT",
    22: "MADV_POPULATE_READ",
    23: "MADV_POPULATE_WRITE",
    24: "MADV_DONTNEED_LOCKED",
    25: "MADV_COLLAPSE",
    100: "MADV_HWPOISON",
    101: "MADV_SOFT_OFFLINE",
    102: "MADV_GUARD_INSTALL",
    103: "MADV_GUARD_REMOVE",
}
"""asm-generic/mman-common.h; alpha, mips, parisc and xtensa differ and are not supported."""

PROT = {1: "PROT_READ", 2: "PROT_WRITE", 4: "PROT_EXEC", 8: "PROT_SEM"}

_ARM64_PROT = {0x10: "PROT_BTI", 0x20: "PROT_MTE"}

MAP_TYPE = {0: "MAP_FILE", 1: "MAP_SHARED", 2: "MAP_PRIVATE", 3: "MAP_SHARED_VALIDATE", 8: "MAP_DROPPABLE"}
"""The low four bits of mmap's flags are a number. 0 is refused by the kernel."""

MAP = {
    0x10: "MAP_FIXED",
    0x20: "MAP_ANONYMOUS",
    0x100: "MAP_GROWSDOWN",
    0x800: "MAP_DENYWRITE",
    0x1000: "MAP_EXECUTABLE",
    0x2000: "MAP_LOCKED",
    0x4000: "MAP_NORESERVE",
    0x8000: "MAP_POPULATE",
    0x1_0000: "MAP_NONBLOCK",
    0x2_0000: "MAP_STACK",
    0x4_0000: "MAP_HUGETLB",
    0x8_0000: "MAP_SYNC",
    0x10_0000: "MAP_FIXED_NOREPLACE",
}
"""asm-generic/mman.h; powerpc, alpha, mips, parisc and sparc differ and are not supported."""

_X86_MAP = {0x40: "MAP_32BIT", 0x80: "MAP_ABOVE4G"}

MREMAP = {1: "MREMAP_MAYMOVE", 2: "MREMAP_FIXED", 4: "MREMAP_DONTUNMAP"}

MFD = {1: "MFD_CLOEXEC", 2: "MFD_ALLOW_SEALING", 4: "MFD_HUGETLB", 8: "MFD_NOEXEC_SEAL", 16: "MFD_EXEC"}

HUGE_SHIFT = 26
"""mmap, memfd_create, shmget: the upper six bits are log2 of the huge page's size."""

OPEN = {
    0o100: "O_CREAT",
    0o200: "O_EXCL",
    0o400: "O_NOCTTY",
    0o1000: "O_TRUNC",
    0o2000: "O_APPEND",
    0o4000: "O_NONBLOCK",
    0o10000: "O_DSYNC",
    0o20000: "O_ASYNC",
    0o40000: "O_DIRECT",
    0o100000: "O_LARGEFILE",
    0o200000: "O_DIRECTORY",
    0o400000: "O_NOFOLLOW",
    0o1000000: "O_NOATIME",
    0o2000000: "O_CLOEXEC",
    0o4000000: "O_SYNC",
    0o10000000: "O_PATH",
    0o20000000: "O_TMPFILE",
}
"""asm-generic/fcntl.h. O_SYNC and O_TMPFILE have a second bit (O_DSYNC, O_DIRECTORY)."""

_ARM_OPEN = {0o40000: "O_DIRECTORY", 0o100000: "O_NOFOLLOW", 0o200000: "O_DIRECT", 0o400000: "O_LARGEFILE"}

OPEN_ACCESS = {0: "O_RDONLY", 1: "O_WRONLY", 2: "O_RDWR", 3: "O_ACCMODE"}

SHMGET = {0o1000: "IPC_CREAT", 0o2000: "IPC_EXCL", 0o4000: "SHM_HUGETLB", 0o10000: "SHM_NORESERVE"}
"""linux/ipc.h, linux/shm.h. The low nine bits are the permissions."""

SHMAT = {0o10000: "SHM_RDONLY", 0o20000: "SHM_RND", 0o40000: "SHM_REMAP", 0o100000: "SHM_EXEC"}

SHMCTL = {
    **dict(enumerate(("IPC_RMID", "IPC_SET", "IPC_STAT", "IPC_INFO"))),
    **dict(enumerate(("SHM_LOCK", "SHM_UNLOCK", "SHM_STAT", "SHM_INFO", "SHM_STAT_ANY"), 11)),
}

IPC_64 = 0x100
"""A mark in shmctl's command: the new struct shmid_ds. Not part of the command's name."""

SIGBUS_CODE = {
    **dict(enumerate(("BUS_ADRALN", "BUS_ADRERR", "BUS_OBJERR", "BUS_MCEERR_AR", "BUS_MCEERR_AO"), 1)),
    0: "SI_USER",
    0x80: "SI_KERNEL",
    -1: "SI_QUEUE",
    -6: "SI_TKILL",
}
"""si_code of a SIGBUS: asm-generic/siginfo.h. The SI_ ones were sent by a program, not by a page fault."""

OOM_CONSTRAINT = dict(enumerate(("global", "cpuset", "mempolicy", "memcg")))
"""enum oom_constraint of include/linux/oom.h; CONSTRAINT_NONE is a global kill."""

_X86_SYSCALL = {
    1: "write",
    2: "open",
    9: "mmap",
    18: "pwrite64",
    20: "writev",
    29: "shmget",
    40: "sendfile",
    76: "truncate",
    77: "ftruncate",
    82: "rename",
    83: "mkdir",
    85: "creat",
    86: "link",
    88: "symlink",
    133: "mknod",
    188: "setxattr",
    189: "lsetxattr",
    190: "fsetxattr",
    257: "openat",
    258: "mkdirat",
    259: "mknodat",
    264: "renameat",
    265: "linkat",
    266: "symlinkat",
    275: "splice",
    285: "fallocate",
    296: "pwritev",
    311: "process_vm_writev",
    316: "renameat2",
    319: "memfd_create",
    326: "copy_file_range",
    328: "pwritev2",
    426: "io_uring_enter",
    437: "openat2",
}
_GENERIC_SYSCALL = {
    5: "setxattr",
    6: "lsetxattr",
    7: "fsetxattr",
    33: "mknodat",
    34: "mkdirat",
    36: "symlinkat",
    37: "linkat",
    38: "renameat",
    45: "truncate",
    46: "ftruncate",
    47: "fallocate",
    56: "openat",
    64: "write",
    66: "writev",
    68: "pwrite64",
    70: "pwritev",
    71: "sendfile",
    76: "splice",
    194: "shmget",
    222: "mmap",
    271: "process_vm_writev",
    276: "renameat2",
    279: "memfd_create",
    285: "copy_file_range",
    287: "pwritev2",
    426: "io_uring_enter",
    437: "openat2",
}
_SYSCALL = {
    "x86_64": _X86_SYSCALL,
    **dict.fromkeys(("aarch64", "riscv64", "loongarch64"), _GENERIC_SYSCALL),
}


def errno_name(number: int) -> str:
    """Return `ENOSPC` for 28; `errno 512` for a number that has no name (an internal one of the kernel)."""
    name = ERRNO[number] if 0 <= number < len(ERRNO) else None
    return name or f"errno {number}"


def advice_name(advice: int) -> str:
    """Return `MADV_HUGEPAGE` for 14."""
    return MADV.get(advice) or hex(advice)


@lru_cache(maxsize=256)
def prot_names(prot: int, machine: str) -> tuple[str, ...]:
    """Return the names of PROT_x; `PROT_NONE` when there is none."""
    table = PROT | _ARM64_PROT if machine == "aarch64" else PROT
    return flag_names(prot, table) or ("PROT_NONE",)


@lru_cache(maxsize=1024)
def map_names(flags: int, machine: str) -> tuple[str, ...]:
    """Return the names of mmap's flags, the type (MAP_SHARED, MAP_PRIVATE) first."""
    table = MAP | _X86_MAP if machine == "x86_64" else MAP
    kind = flags & 0xF
    huge, rest = _huge_page("MAP_HUGE", flags & ~0xF)
    return (MAP_TYPE.get(kind) or hex(kind), *flag_names(rest, table), *huge)


@lru_cache(maxsize=256)
def mremap_names(flags: int) -> tuple[str, ...]:
    """Return the names of mremap's flags."""
    return flag_names(flags, MREMAP)


@lru_cache(maxsize=256)
def open_names(flags: int, machine: str) -> tuple[str, ...]:
    """Return the names of open's flags, the access mode (O_RDONLY, O_RDWR) first."""
    table = OPEN | _ARM_OPEN if machine in ("aarch64", "armv7l", "ppc64le") else OPEN
    names = flag_names(flags & ~3, table)
    implied = {"O_DSYNC"} if "O_SYNC" in names else set()
    if "O_TMPFILE" in names:
        implied.add("O_DIRECTORY")
    return (OPEN_ACCESS[flags & 3], *(name for name in names if name not in implied))


@lru_cache(maxsize=256)
def memfd_names(flags: int) -> tuple[str, ...]:
    """Return the names of memfd_create's flags."""
    huge, rest = _huge_page("MFD_HUGE", flags)
    return (*flag_names(rest, MFD), *huge)


@lru_cache(maxsize=256)
def shmget_names(flags: int) -> tuple[str, ...]:
    """Return the names of shmget's flags, without the permissions."""
    huge, rest = _huge_page("SHM_HUGE", flags & ~0o777)
    return (*flag_names(rest, SHMGET), *huge)


@lru_cache(maxsize=256)
def shmat_names(flags: int) -> tuple[str, ...]:
    """Return the names of shmat's flags."""
    return flag_names(flags, SHMAT)


def shmctl_name(command: int) -> str:
    """Return `IPC_RMID` for shmctl's command 0."""
    return SHMCTL.get(command & ~IPC_64) or hex(command)


def sigbus_code_name(code: int) -> str:
    """Return `BUS_ADRERR` for si_code 2 of a SIGBUS."""
    return SIGBUS_CODE.get(code) or str(code)


def syscall_name(number: int, machine: str) -> str | None:
    """Return the name of a system call that can ask a tmpfs for memory; None for any other, or machine."""
    return _SYSCALL.get(machine, {}).get(number)


def flag_names(flags: int, table: Mapping[int, str]) -> tuple[str, ...]:
    """Return the names of the bits in `flags`; what is left over as one hexadecimal number."""
    names = [name for bit, name in table.items() if flags & bit]
    rest = flags & ~sum(bit for bit in table if flags & bit)
    return (*names, hex(rest)) if rest else tuple(names)


def _huge_page(prefix: str, flags: int) -> tuple[tuple[str, ...], int]:
    """Split off the size of the huge page: `MAP_HUGE_2MB` for 21 << 26."""
    log2 = flags >> HUGE_SHIFT & 0x3F
    if not log2:
        return (), flags
    unit, name = (30, "GB") if log2 >= 30 else (20, "MB") if log2 >= 20 else (10, "KB")
    size = f"{prefix}_{1 << log2 - unit}{name}" if log2 >= 10 else f"{prefix}_SHIFT={log2}"
    return (size,), flags & ~(0x3F << HUGE_SHIFT)
