"""Rules on shared memory: a full or small /dev/shm, what was left behind in it, and that it counts as memory."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rtdebug.diagnose.app_log import AppMessage
from rtdebug.diagnose.facts import Facts
from rtdebug.diagnose.finding import Finding, Severity
from rtdebug.shm.advice import Advice, MountPeak, advise, as_option, round_up
from rtdebug.shm.limits import LimitKind
from rtdebug.shm.mounts import SHM_PATH, TmpfsMount
from rtdebug.shm.volumes import VolumeKind

MIB = 1 << 20
DEFAULT_BYTES = 64 * MIB
"""What docker, containerd and podman give when nobody says."""
_FULL = 0.95
"""A segment of an ordinary size finds no room in the rest."""
_USED_MUCH = 0.25
"""Of the default size: jobs grow by whole segments, and 16 MiB already in use leave few."""
_ORPHANS_MUCH = 0.10
_SHMEM_MUCH = 0.50
_HUNGRY = re.compile(r"\b(?:torchrun|vllm|raylet|nccl\S*|deepspeed|sglang|chrome|chromium|postgres)\b", re.IGNORECASE)
"""Programs that are known to need more than the default; by a word of their command line."""
_NOT_FOR_FILES = re.compile(r"/(?:proc|sys)(?:/|$)|/dev$|/run/secrets(?:/|$)|.*/kubernetes\.io/serviceaccount$")


def shm_full(facts: Facts) -> Iterator[Finding]:
    """A tmpfs that takes no more: ENOSPC for write and ftruncate, SIGBUS for who touches a page."""
    for mount in _writable(facts):
        used, size = mount.used_bytes, mount.size_bytes
        if used is None or not size or used < size * _FULL:
            continue
        orphaned = _orphaned_bytes(facts, mount)
        advice = advise(MountPeak(mount, used, used))
        cause = "{path} is full: who writes more gets 'No space left on device', who touches a mapped page 'Bus error'"
        yield Finding(
            "shm-full",
            Severity.CRITICAL,
            f"{cause}; no process uses {{orphan_bytes}} of it any more" if orphaned else cause,
            {
                "path": mount.path,
                "size_bytes": size,
                "used_bytes": used,
                "left_bytes": size - used,
                "orphan_bytes": orphaned or None,
            },
            (
                *(_removing(facts) if orphaned else ()),
                *(advice.change if advice else ()),
                *_memory_for(facts, advice),
            ),
        )


def shm_out_of_inodes(facts: Facts) -> Iterator[Finding]:
    """No new file can be made, whatever space is left."""
    for mount in _writable(facts):
        if mount.inodes_left == 0 and mount.inodes:
            yield Finding(
                "shm-out-of-inodes",
                Severity.CRITICAL,
                "{path} holds all the {inodes} files it may: 'No space left on device', although df shows space",
                {"path": mount.path, "inodes": mount.inodes, "used_bytes": mount.used_bytes},
                (f"docker run: --tmpfs {mount.path}:nr_inodes={mount.inodes * 4}", "rtdebug: remove files nobody uses"),
            )


def shm_refused(facts: Facts) -> Iterator[Finding]:
    """The program's own log says that it found no room. df afterwards proves nothing: segments go with the query."""
    failures = [message for message in facts.messages if message.event != "evicted"]
    if not failures:
        return
    mount = _dev_shm(facts)
    largest = max((message.request_bytes or 0 for message in failures), default=0)
    size = mount.size_bytes if mount else None
    yield Finding(
        "shm-refused",
        Severity.CRITICAL,
        _refused_sentence(failures, largest, size),
        {
            "app": _app(failures) or "a program",
            "messages": len(failures),
            "largest_request_bytes": largest or None,
            "shm_size_bytes": size,
            "shm_used_bytes": mount.used_bytes if mount else None,
        },
        _larger(facts, mount, largest),
    )


def shm_small(facts: Facts) -> Iterator[Finding]:
    """The default size, and a program that is known to need more, or much of it in use: a risk, no proof."""
    mount = _dev_shm(facts)
    if mount is None or mount.size_bytes is None or mount.size_bytes > DEFAULT_BYTES or facts.messages:
        return
    used = mount.used_bytes or 0
    if used >= mount.size_bytes * _FULL:
        return  # shm_full says so
    program = _hungry_program(facts)
    if program is None and used < mount.size_bytes * _USED_MUCH:
        return
    cause = "/dev/shm has {size_bytes}, of which {used_bytes} are in use: the next segments may find no room"
    if program is not None:
        cause = "/dev/shm has {size_bytes}, and {program} is known to need more at its peak than it shows now"
    yield Finding(
        "shm-small",
        Severity.WARNING,
        cause,
        {"path": mount.path, "size_bytes": mount.size_bytes, "used_bytes": used, "program": program},
        _larger(facts, mount, 0),
    )


def shm_orphans(facts: Facts) -> Iterator[Finding]:
    """What processes that are gone left behind: it stays until somebody removes it."""
    report = facts.shm
    orphans = [each for each in report.objects if each.orphan and not each.shared] if report else []
    left = sum(each.allocated_bytes or 0 for each in orphans)
    mount = _dev_shm(facts)
    rooms = (mount.size_bytes if mount else None, facts.limits.limit_bytes if facts.limits else None)
    room = min((size for size in rooms if size), default=None)
    if not orphans or room is None or left < room * _ORPHANS_MUCH:
        return
    yield Finding(
        "shm-orphans",
        Severity.WARNING,
        "what no process uses any more holds {orphan_bytes} of shared memory: {orphans} of its objects",
        {"orphans": len(orphans), "orphan_bytes": left, "largest": orphans[0].name, "room_bytes": room},
        _removing(facts),
    )


def shm_fills_memory(facts: Facts) -> Iterator[Finding]:
    """tmpfs counts as memory, cannot be reclaimed without swap, and 'usage less cache' hides it."""
    memory, limits = facts.memory, facts.limits
    shmem = memory.least_shmem_bytes if memory else None
    if memory is None or shmem is None or limits is None or not limits.limit_bytes:
        return
    if shmem < limits.limit_bytes * _SHMEM_MUCH:
        return
    yield Finding(
        "shm-fills-memory",
        Severity.WARNING,
        "{shmem_bytes} of shared memory and tmpfs files count against the memory limit of {limit_bytes}; without swap "
        "they cannot be reclaimed, killing a process frees none of it, and 'usage less cache' does not show it",
        {"shmem_bytes": shmem, "limit_bytes": limits.limit_bytes, "usage_bytes": memory.usage_bytes},
        ("rtdebug: rtdebug shm shows which files", "docker run: raise --memory by what the tmpfs may hold"),
    )


def emptydir_without_size(facts: Facts) -> Iterator[Finding]:
    """emptyDir with medium: Memory: where the kubelet does not size the mount, df shows half of the node's RAM."""
    for mount in _writable(facts):
        half = next((limit for limit in mount.limits if limit.kind is LimitKind.HALF_OF_RAM), None)
        if mount.volume.kind is VolumeKind.EMPTY_DIR and half is not None:
            yield Finding(
                "emptydir-without-size",
                Severity.WARNING,
                "{path} is an emptyDir in memory whose mount has no size of its own: df shows half of the node's RAM, "
                "a sizeLimit is enforced by evicting the pod, and the memory limit kills first if it is lower",
                {
                    "path": mount.path,
                    "volume": mount.volume.name,
                    "size_bytes": mount.size_bytes,
                    "used_bytes": mount.used_bytes,
                    "binds": mount.limited_by,
                    "left_bytes": mount.left_bytes,
                },
                (f"pod: emptyDir: {{medium: Memory, sizeLimit: ...}} and a memory limit above it, for {mount.path}",),
            )


def evicted(facts: Facts) -> Iterator[Finding]:
    """The kubelet's own words in the log that was given."""
    lines = [message for message in facts.messages if message.event == "evicted"]
    if lines:
        yield Finding(
            "emptydir-evicted",
            Severity.CRITICAL,
            "the kubelet evicted the pod because a volume in memory exceeded its sizeLimit; nothing was out of memory",
            {"messages": len(lines), "line": lines[0].text},
            ("pod: raise sizeLimit of that emptyDir, and the memory limit with it",),
        )


def charged_elsewhere(facts: Facts) -> Iterator[Finding]:
    """Pages are charged to who touched them first: after a restart to a cgroup that is gone, so to its parent."""
    own = facts.container.cgroup if facts.container else None
    report = facts.shm
    if own is None or report is None:
        return
    foreign = [
        each
        for each in report.objects
        if each.charged_to and not each.shared and all(not _is_below(cgroup, own) for cgroup in each.charged_to)
    ]
    count = sum(each.allocated_bytes or 0 for each in foreign)
    if count >= 16 * MIB:
        yield Finding(
            "shm-charged-elsewhere",
            Severity.NOTE,
            "{count_bytes} of its shared memory are charged to {charged_to}, not to it: an earlier instance, or "
            "another container, wrote them; its own usage does not show them, and a restart frees none",
            {"count_bytes": count, "charged_to": foreign[0].charged_to[0] if foreign[0].charged_to else None},
            ("rtdebug: rtdebug shm shows the files; remove those that nobody needs",),
        )


def _is_below(cgroup: str, above: str) -> bool:
    return cgroup == above or cgroup.startswith(f"{above}/")


def _writable(facts: Facts) -> Iterator[TmpfsMount]:
    for mount in facts.shm.mounts if facts.shm else ():
        reachable = not mount.read_only and not mount.covered and not mount.is_of_others
        if reachable and not mount.is_file and not _NOT_FOR_FILES.match(mount.path):
            yield mount


def _dev_shm(facts: Facts) -> TmpfsMount | None:
    return next((mount for mount in _writable(facts) if mount.path == SHM_PATH), None)


def _hungry_program(facts: Facts) -> str | None:
    for command in facts.limits.commands if facts.limits else ():
        match = _HUNGRY.search(" ".join(command.arguments[:8]))
        if match:
            return match[0].lower()
    return None


def _orphaned_bytes(facts: Facts, mount: TmpfsMount) -> int:
    objects = facts.shm.objects if facts.shm else ()
    mine = [each for each in objects if each.orphan and not each.shared and each.device_id == mount.device_id]
    return sum(each.allocated_bytes or 0 for each in mine)


def _removing(facts: Facts) -> tuple[str, ...]:
    return (f"rtdebug: rtdebug shm {facts.target} --remove-orphans",)


def _app(messages: list[AppMessage]) -> str | None:
    """The first that is named."""
    return next((message.app for message in messages if message.app), None)


def _refused_sentence(messages: list[AppMessage], largest: int, size: int | None) -> str:
    if largest and size and largest > size:
        return "{app} asked for {largest_request_bytes} at once, more than all of /dev/shm ({shm_size_bytes})"
    if largest and size:
        return (
            "{app} found no room in /dev/shm ({shm_size_bytes}) for {largest_request_bytes}: together with the "
            "segments there at that moment it is too small; what df shows afterwards is not the peak"
        )
    if any(message.event == "bus_error" for message in messages):
        return "{app} died of a bus error: a full tmpfs refuses a page of a mapping so, without any errno"
    return "{app} found no room in shared memory"


def _larger(facts: Facts, mount: TmpfsMount | None, request: int) -> tuple[str, ...]:
    """At least 1 GiB: what the makers of such programs ask for; more if one request shows it. Of a limit: below it."""
    if mount is None:
        return ("docker run: --shm-size=1g", "pod: emptyDir: {medium: Memory, sizeLimit: 1Gi} mounted at /dev/shm")
    wanted = max(1024 * MIB, request * 8, (mount.used_bytes or 0) * 2)
    limit = facts.limits.limit_bytes if facts.limits else None
    if limit is not None:
        wanted = min(wanted, max(limit // 2, DEFAULT_BYTES * 2))
    advice = advise(MountPeak(mount, wanted // 2, wanted // 2, times_full=1))
    return (*(advice.change if advice else ()), *_memory_for(facts, advice))


def _memory_for(facts: Facts, advice: Advice | None) -> tuple[str, ...]:
    """What is written to a tmpfs counts as memory: the limit must have room for it beside the processes."""
    limits = facts.limits
    if advice is None or limits is None or not limits.limit_bytes or limits.unreclaimable_bytes is None:
        return ()
    in_it = next((mount.used_bytes or 0 for mount in _writable(facts) if mount.path == advice.path), 0)
    needed = limits.unreclaimable_bytes - in_it + advice.size_bytes
    if needed <= limits.limit_bytes:
        return ()
    return (f"with it: a memory limit of {as_option(round_up(needed))} or more, for its pages count there",)
