"""Shared memory of a container, as text for people and as one JSON document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rtdebug.render.columns import align, wrap
from rtdebug.render.escape import escape
from rtdebug.render.jsonl import encode_object, format_time_utc
from rtdebug.render.units import UNKNOWN, format_bytes, format_duration, format_time, short_id, short_path
from rtdebug.shm.limits import Limit, LimitKind
from rtdebug.shm.model import ObjectKind, ShmObject, User
from rtdebug.shm.mounts import TmpfsMount
from rtdebug.shm.notes import notes_on
from rtdebug.shm.orphans import maker_by_name
from rtdebug.shm.report import ShmReport
from rtdebug.shm.volumes import VolumeKind
from rtdebug.tracing.line import Value

MOST_ROWS = 40
_WIDEST = 44
WIDTH = 100
_NS_PER_S = 1_000_000_000
_ENDS = {
    LimitKind.MOUNT_SIZE: "then ENOSPC or Bus error",
    LimitKind.HALF_OF_RAM: "then ENOSPC or Bus error",
    LimitKind.MEMORY_CGROUP: "then an OOM kill",
    LimitKind.HOST_MEMORY: "then an OOM kill of anybody",
}


def shm_table(report: ShmReport, width: int | None = None) -> str:
    """The text for people: mounts and their limits, objects, orphans, notes."""
    columns = width or WIDTH
    lines = [f"Shared memory of {escape(_name(report))} at {format_time(report.time_ns)[:8]}", ""]
    lines += _mounts(report.mounts, columns)
    lines += _objects(report, columns)
    lines += _orphans(report, columns)
    for note in notes_on(report):
        lines += hanging("note: ", short_path(note), columns)
    return "\n".join(lines) + "\n"


def shm_json(report: ShmReport, notes: Sequence[str] = ()) -> str:
    """The document: `mounts`, `objects`, `orphan_bytes`, `notes`; null for what is not known."""
    return encode_object(report_fields(report, notes)) + "\n"


def report_fields(report: ShmReport, notes: Sequence[str] = ()) -> dict[str, Value]:
    """The document's fields."""
    return {
        "time": format_time_utc(report.time_ns),
        "container_id": report.container.id,
        "container_name": report.container.name,
        "runtime": report.container.runtime,
        "cgroup": report.container.cgroup,
        "pid": report.pid,
        "dev_shm_fstype": report.dev_shm_fstype,
        "mounts": [mount_fields(mount) for mount in report.mounts],
        "objects": [object_fields(each, report.time_ns) for each in report.objects],
        "orphan_bytes": report.orphan_bytes,
        "unseen_pids": list(report.unseen_pids),
        "cut": list(report.cut),
        "notes": [*notes, *notes_on(report)],
    }


def mount_fields(mount: TmpfsMount) -> dict[str, Value]:
    """One mount's fields."""
    volume = mount.volume
    return {
        "path": mount.path,
        "also_at": list(mount.also_at),
        "source": mount.source,
        "root": mount.root,
        "covered": mount.covered,
        "read_only": mount.read_only,
        "size_bytes": mount.size_bytes,
        "used_bytes": mount.used_bytes,
        "limited_by": mount.limited_by,
        "left_bytes": mount.left_bytes,
        "limits": [_limit_fields(limit) for limit in mount.limits],
        "inodes": mount.inodes,
        "inodes_left": mount.inodes_left,
        "options": dict(mount.options),
        "volume": volume.kind,
        "volume_name": volume.name,
        "pod_uid": volume.pod_uid,
        "host_path": volume.host_path,
    }


def object_fields(found: ShmObject, now_ns: int) -> dict[str, Value]:
    """One object's fields."""
    creator = found.creator
    return {
        "kind": found.kind,
        "name": found.name,
        "inode_id": found.inode_id,
        "size_bytes": found.size_bytes,
        "allocated_bytes": found.allocated_bytes,
        "creator": {"uid": creator.uid, "pid": creator.pid, "comm": creator.comm},
        "maker_by_name": maker_by_name(found),
        "changed": None if found.changed_ns is None else format_time_utc(found.changed_ns),
        "age_ns": found.age_ns(now_ns),
        "charged_to": None if found.charged_to is None else list(found.charged_to),
        "mappers": [_user_fields(user) for user in found.mappers],
        "holders": [_user_fields(user) for user in found.holders],
        "attached": found.attached,
        "orphan": found.orphan,
        "shared": found.shared,
    }


def freed_bytes(objects: Sequence[ShmObject]) -> int:
    """What their removal frees, as far as it is known."""
    return sum(each.allocated_bytes or 0 for each in objects)


# The parts of the text ------------------------------------------------------------------------------


def _mounts(mounts: Sequence[TmpfsMount], width: int) -> Iterator[str]:
    shown = [mount for mount in mounts if _is_worth_showing(mount)]
    if not shown:
        yield "No tmpfs is mounted in it that could be written to."
        return
    header = ("TMPFS", "SIZE", "USED", "LEFT", "INODES LEFT", "VOLUME", "LIMITED FIRST BY")
    yield from align([header, *map(_mount_row, shown)], right={1, 2, 3, 4}, limit=_WIDEST)
    first = shown[0]
    if len(first.limits) > 1:
        in_order = sorted(first.limits, key=lambda limit: limit.left_bytes)
        yield from hanging(f"{escape(first.path)}: ", "; ".join(map(_way, in_order)), width)
    if len(shown) < len(mounts):
        yield f"(left out: {len(mounts) - len(shown)} empty and read-only)"


def _is_worth_showing(mount: TmpfsMount) -> bool:
    return not mount.read_only or bool(mount.used_bytes)


def _mount_row(mount: TmpfsMount) -> tuple[str, ...]:
    return (
        f"{mount.path} (covered)" if mount.covered else mount.path,
        format_bytes(mount.size_bytes),
        format_bytes(mount.used_bytes),
        format_bytes(mount.left_bytes),
        UNKNOWN if mount.inodes_left is None else str(mount.inodes_left),
        _volume(mount),
        "read-only" if mount.read_only else limit_text(mount.limit),
    )


def _volume(mount: TmpfsMount) -> str:
    kind, name = mount.volume.kind, mount.volume.name
    if kind is VolumeKind.CONTAINER:
        return "its own"
    return f"{kind} {name}" if name else str(kind)


def limit_text(limit: Limit | None) -> str:
    """What ends the growth of a tmpfs, in a few words. Not escaped."""
    if limit is None:
        return UNKNOWN
    size = format_bytes(limit.limit_bytes)
    match limit.kind:
        case LimitKind.MOUNT_SIZE:
            return "its size"
        case LimitKind.HALF_OF_RAM:
            return "its size: none given, half of the RAM"
        case LimitKind.MEMORY_CGROUP:
            return f"memory limit {size} of {short_path(limit.cgroup or '')}"
        case LimitKind.HOST_MEMORY:
            return "memory of the host"


def _way(limit: Limit) -> str:
    return f"{format_bytes(limit.left_bytes)} to {limit_text(limit)} ({_ENDS[limit.kind]})"


def _objects(report: ShmReport, width: int) -> Iterator[str]:
    yield ""
    if not report.objects:
        yield "No shared memory objects."
        return
    shown = report.objects[:MOST_ROWS]
    yield from objects_text(shown, report.time_ns)
    if len(report.objects) > MOST_ROWS:
        rest = report.objects[MOST_ROWS:]
        yield f"and {len(rest)} smaller ones, {format_bytes(freed_bytes(rest))} in all: -o json has every one"


def objects_text(objects: Sequence[ShmObject], now_ns: int) -> list[str]:
    """Rows of objects with who uses them, below a heading."""
    return rows_of([(each, _used_by(each)) for each in objects], now_ns, "USED BY")


def rows_of(objects: Sequence[tuple[ShmObject, str]], now_ns: int, last: str) -> list[str]:
    """Rows of objects, each with a text of the last column, below a heading."""
    header = ("KIND", "NAME", "SIZE", "TAKEN", "AGE", "UID", "MAPPED", "OPEN", last)
    rows = [(*_row(each, now_ns), text) for each, text in objects]
    return align([header, *rows], right={2, 3, 4, 5, 6, 7}, limit=_WIDEST)


def _row(found: ShmObject, now_ns: int) -> tuple[str, ...]:
    is_segment = found.kind is ObjectKind.SYSV
    return (
        found.kind,
        f"{found.name} id {found.inode_id}" if is_segment else found.name,
        format_bytes(found.size_bytes),
        format_bytes(found.allocated_bytes),
        _age(found.age_ns(now_ns)),
        UNKNOWN if found.creator.uid is None else str(found.creator.uid),
        str(len(found.mappers) if found.attached is None else found.attached),
        UNKNOWN if is_segment else str(len(found.holders)),
    )


def _age(age_ns: int | None) -> str:
    return "< 1 s" if age_ns is not None and age_ns < _NS_PER_S else format_duration(age_ns)


def _used_by(found: ShmObject) -> str:
    if found.orphan:
        return ", ".join(filter(None, ("orphan", made_by(found))))
    names = [_user(user) for user in found.users]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more or UNKNOWN


def made_by(found: ShmObject) -> str:
    """Who made it, as the kernel or a trace told; else whose name it looks like."""
    if found.creator.pid is not None:
        return f"by {found.creator.comm or 'a process that is gone'} ({found.creator.pid})"
    maker = maker_by_name(found)
    return f"named as by {maker}" if maker else ""


def _user(user: User) -> str:
    outside = "" if user.in_container else ", outside"
    return f"{user.comm or '?'} ({user.pid}{outside})"


def _orphans(report: ShmReport, width: int) -> Iterator[str]:
    yield ""
    if orphans := report.orphans:
        yield (
            f"Orphans: {objects_of(len(orphans))} that nobody uses; removing them frees "
            f"{format_bytes(report.orphan_bytes)}: --remove-orphans"
        )


def objects_of(count: int) -> str:
    """`1 object`, `7 objects`."""
    return "1 object" if count == 1 else f"{count} objects"


def _name(report: ShmReport) -> str:
    container = report.container
    name = container.name or short_path(short_id(container.id))
    return f"{name} ({container.runtime})" if container.runtime else name


def hanging(label: str, text: str, width: int) -> Iterator[str]:
    """Text behind a label, its further rows indented."""
    indent = "  "
    for index, row in enumerate(wrap(text, width - len(indent), width - len(label))):
        yield f"{label if index == 0 else indent}{row}"


def _limit_fields(limit: Limit) -> dict[str, Value]:
    return {
        "kind": limit.kind,
        "limit_bytes": limit.limit_bytes,
        "left_bytes": limit.left_bytes,
        "cgroup": limit.cgroup,
    }


def _user_fields(user: User) -> dict[str, Value]:
    return {"pid": user.pid, "comm": user.comm, "in_container": user.in_container}
