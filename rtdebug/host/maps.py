"""/proc/PID/maps, smaps and smaps_rollup: what a process has mapped.

Text is kept as the kernel wrote it (bytes that are not UTF-8 as surrogate escapes): a path comes from
whoever made the file and may hold blanks, a carriage return or escape sequences.

Sources: proc_pid_maps(5), proc_pid_smaps(5), fs/proc/task_mmu.c.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import TextIO

from rtdebug.errors import RtdebugError

__all__ = [
    "Mapping",
    "MappingKind",
    "MapsError",
    "MemoryUse",
    "ProcessGoneError",
    "SmapsEntry",
    "iter_mappings",
    "open_maps",
    "parse_maps",
    "parse_smaps",
    "parse_smaps_rollup",
    "read_maps",
    "read_smaps",
    "read_smaps_rollup",
]

PROC = Path("/proc")
_CUT = "was the text cut, or is it another file?"


class MapsError(RtdebugError):
    """A line that is not of the form the kernel writes."""


class ProcessGoneError(RtdebugError):
    """The process has exited."""


class MappingKind(StrEnum):
    """What a mapping is, as far as its name and device tell."""

    FILE = "file"
    SHM = "shm"
    """A file below /dev/shm, which some distributions have at /run/shm."""
    MEMFD = "memfd"
    """And ashmem, which Android had before."""
    SYSV = "sysv"
    """A System V segment; its inode number is the shmid."""
    DEV_ZERO = "dev-zero"
    """MAP_SHARED | MAP_ANONYMOUS: shmem without a name."""
    DRM = "drm"
    """Shmem of a graphics buffer."""
    HUGETLB = "hugetlb"
    """MAP_ANONYMOUS | MAP_HUGETLB. Other hugetlb mappings are told by `SmapsEntry.is_hugetlb`."""
    ANON = "anon"
    ANON_NAME = "anon_name"
    """Named with PR_SET_VMA_ANON_NAME: `[anon:...]`, `[anon_shmem:...]`."""
    HEAP = "heap"
    STACK = "stack"
    VDSO = "vdso"
    SPECIAL = "special"
    """Anything else that is no file: [vvar], [vsyscall], [uprobes], anon_inode:, socket:, /[aio], /dmabuf: ..."""


@dataclass(frozen=True, slots=True)
class Mapping:
    """One line of /proc/PID/maps."""

    start: int
    end: int
    """First address behind it."""
    perms: str
    """`rwxp`: read, write, execute, private or shared; `-` for what is not allowed."""
    offset_bytes: int
    device: tuple[int, int]
    """Major and minor; on overlayfs and btrfs not always what stat(2) says."""
    inode_id: int
    path: str
    """The kernel's name without ` (deleted)`; "" for unnamed memory. `\\012` is turned back into a newline:
    the kernel escapes nothing else, so a file with a real backslash-012 in its name reads the same."""
    deleted: bool
    """The kernel's ` (deleted)`; a file whose own name ends so cannot be told apart."""
    kind: MappingKind

    @property
    def length_bytes(self) -> int:
        """Address space, not memory in use."""
        return self.end - self.start

    @property
    def executable(self) -> bool:
        """Whether code can run in it."""
        return self.perms[2] == "x"

    @property
    def sysv_key(self) -> int | None:
        """Key of a System V segment (0: IPC_PRIVATE); None for other mappings."""
        return int(self.path[len("/SYSV") :], 16) if self.kind is MappingKind.SYSV else None


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """The counters of one smaps entry or of smaps_rollup. None: this kernel does not say.

    Field names are the kernel's in lower case with the unit added. pss_anon, pss_file and pss_shmem are in
    smaps_rollup only; pss_dirty (Linux 6.0), ksm, filepmdmapped, lazyfree and the two of hugetlb came over
    the years.
    """

    rss_bytes: int | None = None
    pss_bytes: int | None = None
    pss_dirty_bytes: int | None = None
    pss_anon_bytes: int | None = None
    pss_file_bytes: int | None = None
    pss_shmem_bytes: int | None = None
    shared_clean_bytes: int | None = None
    shared_dirty_bytes: int | None = None
    private_clean_bytes: int | None = None
    private_dirty_bytes: int | None = None
    referenced_bytes: int | None = None
    anonymous_bytes: int | None = None
    ksm_bytes: int | None = None
    lazyfree_bytes: int | None = None
    """MADV_FREE: counted in rss_bytes, but the kernel may take it at any time."""
    anonhugepages_bytes: int | None = None
    shmempmdmapped_bytes: int | None = None
    filepmdmapped_bytes: int | None = None
    shared_hugetlb_bytes: int | None = None
    private_hugetlb_bytes: int | None = None
    """Hugetlb pages are in no other counter here."""
    swap_bytes: int | None = None
    swappss_bytes: int | None = None
    locked_bytes: int | None = None

    @property
    def uss_bytes(self) -> int | None:
        """Private_Clean + Private_Dirty: what would be freed if this went away, hugetlb not counted."""
        if self.private_clean_bytes is None or self.private_dirty_bytes is None:
            return None
        return self.private_clean_bytes + self.private_dirty_bytes


@dataclass(frozen=True, slots=True)
class SmapsEntry:
    """One mapping of /proc/PID/smaps."""

    mapping: Mapping
    use: MemoryUse
    kernel_page_size_bytes: int | None
    mmu_page_size_bytes: int | None
    thp_eligible: bool | None
    """Since Linux 5.0."""
    vm_flags: tuple[str, ...] | None
    """Two-letter codes of VmFlags (`ht` hugetlb, `hg` MADV_HUGEPAGE, `nh`, `dd` MADV_DONTDUMP, ...)."""

    @property
    def is_hugetlb(self) -> bool:
        """Backed by hugetlb pages, of which old kernels count none: then use.*_hugetlb_bytes is None."""
        return self.mapping.kind is MappingKind.HUGETLB or "ht" in (self.vm_flags or ())


# maps ---------------------------------------------------------------------------------------------

_HEADER = re.compile(
    r"([0-9a-f]+)-([0-9a-f]+) ([r-][w-][x-][sp]) ([0-9a-f]+) ([0-9a-f]+):([0-9a-f]+) (\d+)(?: +(.*))?",
    re.DOTALL,  # all of it: a carriage return belongs to the name
)
_DELETED = " (deleted)"

# Names the kernel makes up for files on its internal mounts. simple_dname() in fs/d_path.c ends each of
# them with " (deleted)" and the device is anonymous (major 0): a file of that name on a disk is a file.
_INTERNAL = (
    (re.compile(r"/SYSV[0-9a-f]{8}"), MappingKind.SYSV),
    (re.compile(r"/memfd:.*|/dev/ashmem(/.*)?", re.DOTALL), MappingKind.MEMFD),
    (re.compile(r"/dev/zero"), MappingKind.DEV_ZERO),
    (re.compile(r"/anon_hugepage"), MappingKind.HUGETLB),
    (re.compile(r"/drm( mm object)?|/i915"), MappingKind.DRM),
    (re.compile(r"/\[aio\]"), MappingKind.SPECIAL),  # the ring of io_setup(2)
)
_BRACKETED = {"[heap]": MappingKind.HEAP, "[stack]": MappingKind.STACK, "[vdso]": MappingKind.VDSO}


def parse_maps(text: str) -> list[Mapping]:
    """All mappings in the text of /proc/PID/maps, in address order; raises MapsError."""
    return list(iter_mappings(text.split("\n")))


def iter_mappings(lines: Iterable[str]) -> Iterator[Mapping]:
    """As parse_maps, one at a time: a process may have 65,530 mappings and more."""
    for line in lines:
        line = line.removesuffix("\n")
        if line:
            yield _parse_header(line)


def open_maps(pid: int, proc: Path = PROC) -> TextIO:
    """/proc/PID/maps for iter_mappings; raises ProcessGoneError. Reading it may raise ProcessLookupError."""
    return _open_text(pid, "maps", proc)


def read_maps(pid: int, proc: Path = PROC) -> list[Mapping]:
    """The mappings of a process, none for a kernel thread or zombie. Raises ProcessGoneError, MapsError."""
    return parse_maps(_read_text(pid, "maps", proc))


def _parse_header(line: str, next_line_name: str = "") -> Mapping:
    match = _HEADER.fullmatch(line)
    if match is None:
        raise MapsError(f"not a line of /proc/PID/maps: {line[:100]!r}", _CUT)
    start, end, perms, offset, major, minor, inode, name = match.groups()
    name = name or next_line_name
    device = (int(major, 16), int(minor, 16))
    deleted = name.endswith(_DELETED)
    path = name.removesuffix(_DELETED).replace("\\012", "\n")
    kind = _kind(path, deleted, device)
    return Mapping(
        start=int(start, 16),
        end=int(end, 16),
        perms=perms,
        offset_bytes=int(offset, 16),
        device=device,
        inode_id=int(inode),
        path=path,
        deleted=deleted,
        kind=kind,
    )


def _kind(path: str, deleted: bool, device: tuple[int, int]) -> MappingKind:
    if not path:
        return MappingKind.ANON
    if path.startswith("["):
        return _bracketed_kind(path)
    if deleted and device[0] == 0:
        for pattern, kind in _INTERNAL:
            if pattern.fullmatch(path):
                return kind
    if path.startswith(("/dev/shm/", "/run/shm/")):
        return MappingKind.SHM
    if path.startswith("/dmabuf:") and device[0] == 0:
        return MappingKind.SPECIAL
    return MappingKind.FILE if path.startswith(("/", "(unreachable)/")) else MappingKind.SPECIAL


def _bracketed_kind(path: str) -> MappingKind:
    if path.startswith(("[anon:", "[anon_shmem:")):
        return MappingKind.ANON_NAME
    if path.startswith("[stack:"):  # [stack:TID] of a thread, Linux 3.4 to 4.4
        return MappingKind.STACK
    return _BRACKETED.get(path, MappingKind.SPECIAL)


# smaps --------------------------------------------------------------------------------------------

_USE_KEYS = {field.name.removesuffix("_bytes"): field.name for field in fields(MemoryUse)}


def parse_smaps(text: str) -> list[SmapsEntry]:
    """All entries in the text of /proc/PID/smaps; raises MapsError. Keys not known here are passed over."""
    return [_parse_entry(block) for block in _blocks(text)]


def parse_smaps_rollup(text: str) -> MemoryUse | None:
    """The sums of /proc/PID/smaps_rollup; None for a process without memory. Raises MapsError.

    Its first line looks like a mapping of the whole address space, and is none.
    """
    head, _, rest = text.lstrip("\n").partition("\n")
    if not head:
        return None
    if not head.endswith("[rollup]") or _HEADER.fullmatch(head) is None:
        raise MapsError(f"not smaps_rollup: begins with {head[:100]!r}", "use parse_smaps for smaps")
    return _memory_use(_values(rest.split("\n")))


def read_smaps(pid: int, proc: Path = PROC) -> list[SmapsEntry]:
    """The entries of /proc/PID/smaps. Raises ProcessGoneError, MapsError.

    The kernel holds the process's mmap lock for reading while it walks the page tables of each mapping.
    """
    return parse_smaps(_read_text(pid, "smaps", proc))


def read_smaps_rollup(pid: int, proc: Path = PROC) -> MemoryUse | None:
    """The sums of /proc/PID/smaps_rollup (Linux 4.14). Raises ProcessGoneError, MapsError."""
    return parse_smaps_rollup(_read_text(pid, "smaps_rollup", proc))


def _blocks(text: str) -> Iterator[list[str]]:
    """A header line and the `Key: value` lines below it, as lists."""
    block: list[str] = []
    for line in text.split("\n"):
        if _HEADER.fullmatch(line):
            if block:
                yield block
            block = [line]
        elif line:
            if not block:
                raise MapsError(f"smaps begins with {line[:100]!r}", _CUT)
            block.append(line)
    if block:
        yield block


def _parse_entry(block: list[str]) -> SmapsEntry:
    header, *rest = block
    # In a text that went through a mailer, a long name may stand in the line below.
    wrapped = rest.pop(0).strip(" ") if rest and rest[0].startswith(" ") else ""
    values = _values(rest)
    flags = values.get("vmflags")
    eligible = values.get("thpeligible")
    return SmapsEntry(
        mapping=_parse_header(header, wrapped),
        use=_memory_use(values),
        kernel_page_size_bytes=_size_bytes(values, "kernelpagesize"),
        mmu_page_size_bytes=_size_bytes(values, "mmupagesize"),
        thp_eligible=None if eligible is None else eligible != "0",
        vm_flags=None if flags is None else tuple(flags.split()),
    )


def _values(lines: list[str]) -> dict[str, str]:
    pairs = (line.partition(":") for line in lines)
    return {key.lower(): value.strip() for key, _, value in pairs}


def _memory_use(values: dict[str, str]) -> MemoryUse:
    return MemoryUse(**{name: _size_bytes(values, key) for key, name in _USE_KEYS.items()})


def _size_bytes(values: dict[str, str], key: str) -> int | None:
    value = values.get(key)
    if value is None:
        return None
    number, _, unit = value.partition(" ")
    if not number.isdecimal() or unit != "kB":
        raise MapsError(f"smaps: {key} is {value[:40]!r}, not a number of kB", _CUT)
    return int(number) * 1024


# Reading ------------------------------------------------------------------------------------------


def _open_text(pid: int, name: str, proc: Path) -> TextIO:
    try:
        # newline: a carriage return in a path is no line end.
        return (proc / str(pid) / name).open(encoding="utf-8", errors="surrogateescape", newline="\n")
    except (FileNotFoundError, ProcessLookupError):
        raise _gone(pid) from None
    except PermissionError:
        raise RtdebugError(f"may not read {proc}/{pid}/{name}", "run as root") from None


def _read_text(pid: int, name: str, proc: Path) -> str:
    with _open_text(pid, name, proc) as file:
        try:
            return file.read()
        except ProcessLookupError:
            raise _gone(pid) from None


def _gone(pid: int) -> ProcessGoneError:
    return ProcessGoneError(f"process {pid} is gone", "it exited before it could be read")
