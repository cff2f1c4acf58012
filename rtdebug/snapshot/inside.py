"""--exec: what only a process inside the container can find out, by a static helper of our own.

Resource limits of a new process, the memory that /proc/meminfo shows there (lxcfs changes it), and which memory calls
work: seccomp, an LSM or missing capabilities refuse some, and nothing outside tells which. The helper is compiled
here and handed over as a memory file, so nothing is copied into the container; `runc exec` or `crun exec` starts it
with the container's own restrictions. It is charged to the container, as every process in it.
"""

from __future__ import annotations

import errno
import os
import subprocess
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from rtdebug.containers.model import Container
from rtdebug.errors import HostUnable, RtdebugError
from rtdebug.host.cache import read_cached, write_cached
from rtdebug.host.text import decode
from rtdebug.snapshot.model import InsideRecord, ResourceLimit
from rtdebug.snapshot.runtime import runtime_program

_SOURCE = Path(__file__).with_name("inside.c")
_COMPILE = ("gcc", "-std=gnu11", "-Os", "-static", "-s")
_TIMEOUT_S = 10.0
_MOST_BYTES = 64 << 10
_FD = 3  # the first that runc exec --preserve-fds hands on
_INFINITY = (-1, 2**64 - 1)


def look_inside(container: Container) -> InsideRecord:
    """What the helper found. Raises HostUnable: no runc or crun, or no compiler; RtdebugError: it was refused."""
    program = runtime_program(container)
    if program is None:
        raise HostUnable("--exec: neither runc nor crun knows this container", "without --exec all else works")
    tool, root = program
    argv = (tool, "--root", root, "exec", "--preserve-fds", "1", container.id, f"/proc/self/fd/{_FD}")
    with _memory_file(_helper()) as fd:
        try:
            done = subprocess.run(
                ("sh", "-c", f'exec {_FD}<"/proc/self/fd/$0"; exec "$@"', str(fd), *argv),
                stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT_S, pass_fds=(fd,), check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise RtdebugError(f"--exec: {tool} exec took longer than {_TIMEOUT_S:g} s") from None
    if done.returncode != 0:
        said = decode(done.stderr).strip().rpartition("\n")[2][:300]
        raise RtdebugError(f"--exec: {tool} exec failed: {said!r}", "a paused container takes no new process")
    return parse_inside(decode(done.stdout[:_MOST_BYTES]))


def parse_inside(text: str) -> InsideRecord:
    """The helper's lines. Those of another form are left out: the container could have changed them."""
    figures: dict[str, int] = {}
    limits: dict[str, ResourceLimit] = {}
    calls: dict[str, str | None] = {}
    for words in map(str.split, text.splitlines()):
        try:
            match words:
                case ["figure", name, value]:
                    figures[name] = int(value)
                case ["limit", name, soft, hard]:
                    limits[name] = ResourceLimit(_limit(int(soft)), _limit(int(hard)))
                case ["call", name, number]:
                    calls[name] = errno.errorcode.get(int(number), number) if int(number) else None
        except ValueError:
            continue
    return InsideRecord(figures, limits, calls)


def _limit(value: int) -> int | None:
    return None if value in _INFINITY else value


def _helper() -> bytes:
    """The program, from the cache or compiled now."""
    source = _SOURCE.read_bytes()
    name = f"inside-{zlib.crc32(source):08x}"
    program = read_cached(name)
    if program is None:
        program = _compiled()
        write_cached(name, program)
    return program


def _compiled() -> bytes:
    with TemporaryDirectory(prefix="rtdebug-") as folder:
        path = Path(folder) / "inside"
        try:
            subprocess.run((*_COMPILE, "-o", path, _SOURCE), check=True, capture_output=True, timeout=60)
        except (OSError, subprocess.SubprocessError):
            raise HostUnable("--exec: its helper cannot be compiled", "apt install gcc libc6-dev") from None
        return path.read_bytes()


@contextmanager
def _memory_file(content: bytes) -> Iterator[int]:
    """A memory file that can be executed: nobody may have it open for writing then."""
    writable = os.memfd_create("rtdebug-inside", os.MFD_CLOEXEC)
    try:
        with os.fdopen(writable, "wb", closefd=False) as file:
            file.write(content)
        os.fchmod(writable, 0o555)
        readable = os.open(f"/proc/self/fd/{writable}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(writable)
    try:
        yield readable
    finally:
        os.close(readable)
