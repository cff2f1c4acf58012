"""Which orphans may be removed, and why not the others: a decision over what was read, nothing is touched here.

An orphan has no mapper and no open descriptor anywhere on the host; a SysV segment, nattch 0. That alone does not
prove that nobody needs it: its owner may hand it over by name, or find it again after a restart. So what changed
lately is left alone, and what may be others' as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from rtdebug.host.cgroup import is_within
from rtdebug.shm.model import ObjectKind, ShmObject
from rtdebug.shm.mounts import TmpfsMount

_NS_PER_S = 1_000_000_000
MIN_AGE_NS = 60 * _NS_PER_S
"""Default of --min-age. A creator that closes, and a taker that opens, need milliseconds to seconds."""

_MAKERS = (
    ("PostgreSQL.*", "PostgreSQL"),
    ("psm_*", "Python's multiprocessing.shared_memory"),
    ("sem.mp-*", "Python's multiprocessing"),
    ("sem.*", "sem_open(3)"),
    ("torch_*", "PyTorch"),
    ("nccl-*", "NCCL"),
    ("cuda.shm.*", "CUDA"),
    ("sgl_*", "SGLang"),
    ("vader_segment.*", "Open MPI"),
    ("sm_segment.*", "Open MPI"),
    (".org.chromium.*", "Chromium"),
    (".com.google.Chrome.*", "Chrome"),
    ("plasma*", "Ray"),
    ("pulse-shm-*", "PulseAudio"),
)
"""Names that well-known programs give to files in /dev/shm."""

_KEEPERS = {"PostgreSQL": "postgres"}
"""Who may keep a segment that nobody maps for the moment, and attach it again: dsm_pin_segment() of PostgreSQL."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What may be removed."""

    min_age_ns: int = MIN_AGE_NS
    names: tuple[str, ...] = ()
    """Only what matches one of these globs; empty: all."""
    cgroup: str | None = None
    """The container's memory cgroup: what lies where others are too is its own only if it pays for it."""
    running: frozenset[str] = frozenset()
    """The comms of the container's processes."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to be done with one orphan."""

    object: ShmObject
    refusal: str | None
    """Why it is kept; None: it may be removed."""


def judge(
    objects: Iterable[ShmObject], mounts: Sequence[TmpfsMount], rules: Rules, now_ns: int
) -> tuple[Verdict, ...]:
    """A verdict for each orphan whose name is meant; others are not in it."""
    orphans = (each for each in objects if each.orphan and is_meant(each, rules.names))
    return tuple(Verdict(each, _refusal(each, mounts, rules, now_ns)) for each in orphans)


def is_meant(found: ShmObject, names: Collection[str]) -> bool:
    """Whether a glob matches its path, its name below /dev/shm, or a segment's key or id; all, without globs."""
    called = [found.name, found.name.rsplit("/", 1)[-1]]
    if found.kind is ObjectKind.SYSV:
        called.append(str(found.inode_id))
    return not names or any(fnmatchcase(name, glob) for name in called for glob in names)


def maker_by_name(found: ShmObject) -> str | None:
    """Who gives files in /dev/shm such a name: a guess. None: nobody we know of."""
    if found.kind is not ObjectKind.POSIX:
        return None
    name = found.name.rsplit("/", 1)[-1]
    return next((maker for glob, maker in _MAKERS if fnmatchcase(name, glob)), None)


def _refusal(found: ShmObject, mounts: Sequence[TmpfsMount], rules: Rules, now_ns: int) -> str | None:
    age_ns = found.age_ns(now_ns)
    if age_ns is None:
        return "its age is not known"
    if age_ns < rules.min_age_ns:
        return f"changed {age_ns // _NS_PER_S} s ago: younger than {rules.min_age_ns / _NS_PER_S:g} s (--min-age)"
    if found.kind is not ObjectKind.SYSV:
        mount = next((each for each in mounts if each.device_id == found.device_id and not each.covered), None)
        if mount is None:
            return "it lies in no tmpfs of the container"
        if mount.read_only:
            return f"{mount.path} is read-only in the container"
    if found.shared and not _pays(found, rules.cgroup):
        return "others on this host may use it: it is not known to be charged to this container"
    maker = maker_by_name(found)
    keeper = _KEEPERS.get(maker or "")
    if keeper in rules.running and not rules.names:
        return f"{maker} runs here and may attach it again: remove it with --name, if you know better"
    return None


def _pays(found: ShmObject, cgroup: str | None) -> bool:
    """Whether the container's cgroup, or one below it, pays for all pages that were looked at."""
    if cgroup in (None, "/") or not found.charged_to:
        return False
    return all(is_within(payer, cgroup) for payer in found.charged_to)
