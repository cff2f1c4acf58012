"""Setting knobs so that all are set or none, and putting the old values back on another day."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rtdebug.errors import RtdebugError, UsageProblem
from rtdebug.host.cgroup import Version, cgroup_id
from rtdebug.host.text import read_regular, read_text
from rtdebug.limits.facts import Place
from rtdebug.limits.proposal import Change, in_order
from rtdebug.limits.settings import value_text

STATE_FOLDER = Path("/var/lib/rtdebug/limits")
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Setting:
    """What a knob's file held, and holds now."""

    file: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Applied:
    """What was set for a cgroup, to be undone. Kept in a file of STATE_FOLDER."""

    cgroup: str
    cgroup_id: int
    """The folder's inode: a cgroup made anew under the same path is another."""
    time_s: float
    settings: tuple[Setting, ...]


@contextlib.contextmanager
def only_one(place: Place, folder: Path = STATE_FOLDER) -> Iterator[None]:
    """Hold the cgroup's knobs for us alone. Raises RtdebugError if another rtdebug has them."""
    path = _file_of(place, folder).with_suffix(".lock")
    _make_folder(folder)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RtdebugError(
                f"another rtdebug is changing the limits of {place.cgroup}", "wait until it has ended"
            ) from None
        yield
    finally:
        os.close(fd)


def apply(place: Place, version: Version, changes: Sequence[Change], folder: Path = STATE_FOLDER) -> Applied:
    """Write the changes into the cgroup's files; remember what was there. All are written, or none.

    Raises RtdebugError: the kernel refused one (those before it are put back), or the memory cannot be set.
    """
    before = read_applied(place, folder)
    kept = {setting.file: setting.old for setting in before.settings} if before else {}
    settings = [
        Setting(change.file, _read(place.path / change.file), value_text(change.new_bytes, version))
        for change in in_order(changes)
    ]
    remembered = [Setting(each.file, kept.pop(each.file, each.old), each.new) for each in settings]
    untouched = [each for each in before.settings if each.file in kept] if before else []
    applied = Applied(place.cgroup, cgroup_id(place.path), time.time(), (*untouched, *remembered))
    _write_state(applied, _file_of(place, folder))
    try:
        write_all(place.path, [(each.file, each.new) for each in settings])
    except RtdebugError:
        _restore_state(before, _file_of(place, folder))
        raise
    return applied


def undo(place: Place, folder: Path = STATE_FOLDER) -> tuple[list[Setting], list[Setting]]:
    """Put the old values back; returns those put back, and those left since somebody else has changed them.

    Raises UsageProblem if nothing is remembered, RtdebugError if the kernel refuses (then nothing is changed).
    """
    applied = read_applied(place, folder)
    if applied is None:
        raise UsageProblem(
            f"nothing that rtdebug set for {place.cgroup} is remembered", "only what --apply has set can be undone"
        )
    ours: list[Setting] = []
    changed: list[Setting] = []
    for setting in reversed(applied.settings):
        is_ours = _same(_read(place.path / setting.file), setting.new)
        (ours if is_ours else changed).append(setting)
    write_all(place.path, [(setting.file, setting.old) for setting in ours])
    _file_of(place, folder).unlink(missing_ok=True)
    return ours, changed


def read_applied(place: Place, folder: Path = STATE_FOLDER) -> Applied | None:
    """What is remembered for this very cgroup; None if there is nothing, or the file makes no sense."""
    text = read_regular(_file_of(place, folder))
    try:
        fields = json.loads(text or "null")
        settings = tuple(Setting(str(each["file"]), str(each["old"]), str(each["new"])) for each in fields["settings"])
        applied = Applied(fields["cgroup"], fields["cgroup_id"], fields["time_s"], settings)
    except (ValueError, KeyError, TypeError):
        return None
    is_it = applied.cgroup == place.cgroup and applied.cgroup_id == cgroup_id(place.path)
    return applied if is_it and all(_is_knob(each.file) for each in settings) else None


def write_all(path: Path, values: Sequence[tuple[str, str]]) -> None:
    """Write each (file, text) of a cgroup; if one is refused, put back those before it. Raises RtdebugError."""
    done: list[tuple[str, str]] = []
    for file, text in values:
        old = _read(path / file)
        try:
            (path / file).write_text(text)
        except OSError as error:
            for name, before in reversed(done):
                with contextlib.suppress(OSError):
                    (path / name).write_text(before)
            raise RtdebugError(
                f"{path / file} does not take {text}: {error.strerror}", _why(file, error) + "; nothing was changed"
            ) from None
        done.append((file, old))


def _same(present: str, written: str) -> bool:
    """The kernel rounds to pages, and prints v1's -1 as a large number."""
    if present == written:
        return True
    try:
        figure, ours = int(present), int(written)
    except ValueError:
        return False
    return abs(figure - ours) < 65536 or (ours == -1 and figure > 2**62)


def _read(path: Path) -> str:
    text = read_text(path)
    if text is None:
        raise RtdebugError(f"{path} cannot be read", "the container has ended, or this needs root")
    return text.strip()


def _why(file: str, error: OSError) -> str:
    if isinstance(error, PermissionError):
        return "this needs root, and a cgroupfs that is mounted for writing"
    if file == "memory.limit_in_bytes":
        return "not even reclaim gets its memory below that"
    return "the container has ended, or this kernel does not know that value"


def _is_knob(file: str) -> bool:
    return file.startswith("memory.") and "/" not in file


def _file_of(place: Place, folder: Path) -> Path:
    return folder / f"{hashlib.sha256(os.fsencode(place.cgroup)).hexdigest()[:24]}.json"


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise RtdebugError(f"{folder} cannot be made: {error.strerror}", "the old values are kept there") from None


def _restore_state(before: Applied | None, path: Path) -> None:
    if before is None:
        path.unlink(missing_ok=True)
    else:
        _write_state(before, path)


def _write_state(applied: Applied, path: Path) -> None:
    _make_folder(path.parent)
    scratch = path.with_suffix(f".{os.getpid()}")
    try:
        fd = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "w") as file:
            json.dump({"format": _FORMAT, **asdict(applied)}, file)
            file.flush()
            os.fsync(fd)
        scratch.replace(path)
    except OSError as error:
        scratch.unlink(missing_ok=True)
        raise RtdebugError(f"{path} cannot be written: {error.strerror}", "nothing was changed") from None
