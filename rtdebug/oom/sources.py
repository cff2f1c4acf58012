"""Where kernel messages are read from: files (also compressed), a pipe, the journal, this host's ring buffer."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import shutil
import subprocess
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedReader, TextIOWrapper
from pathlib import Path

from rtdebug.errors import HostUnable, RtdebugError, UsageProblem
from rtdebug.host.kmsg import KmsgReader
from rtdebug.oom.dressing import LogLine
from rtdebug.oom.kernel_log import OomLogReader
from rtdebug.oom.record import OomRecord
from rtdebug.oom.scan import BLOCK_BYTES, scan_log, words_in_lines
from rtdebug.oom.userspace import KILLERS, UserspaceKill, userspace_kills

_JOURNAL = ("journalctl", "--no-pager", "--quiet", "--output=json", "--all", "_TRANSPORT=kernel")
"""Of all boots: a host that ran out of memory is often started anew."""


Progress = Callable[[int, int], object]
"""Takes how many MiB are read, and of how many."""

_MIB = 1 << 20


def read_file(path: Path, progress: Progress | None = None) -> Iterator[OomRecord]:
    """The OOM kills in a log file, plain or compressed by gzip, bzip2 or xz, whatever its name.

    Raises UsageProblem when there is none, RtdebugError when it cannot be read to its end.
    """
    try:
        with path.open("rb") as file:
            blocks = _blocks(_plain(file), str(path))
            yield from scan_log(_watched(blocks, file, progress) if progress else blocks)
    except FileNotFoundError as error:
        raise UsageProblem(f"no file {path}", "give the path of a kernel log, or - for standard input") from error
    except OSError as error:
        raise RtdebugError(
            f"cannot read {path}: {error.strerror}", "give files; kernel logs are often for root only"
        ) from error


def read_userspace_kills(path: Path) -> Iterator[UserspaceKill]:
    """What killers in user space say in a log file that can be read again."""
    with path.open("rb") as file:
        lines = words_in_lines(_blocks(_plain(file), str(path)), KILLERS)
        yield from userspace_kills(line.decode("utf-8", "surrogateescape") for line in lines)


def read_stream(stream: BufferedReader) -> Iterator[OomRecord]:
    """The OOM kills in a pipe, each as soon as it is over. Raises RtdebugError."""
    return scan_log(_blocks(_plain(stream), "standard input"))


def read_ring_buffer() -> Iterator[OomRecord]:
    """The OOM kills that this host's /dev/kmsg still holds. Raises HostUnable."""
    with KmsgReader.open(from_start=True) as kmsg:
        log = OomLogReader()
        while messages := kmsg.read():
            for message in messages:
                if message.from_kernel:
                    yield from log.feed(
                        LogLine(message.message, message.time_us * 1000, source="kernel", caller=message.caller)
                    )
        yield from log.flush()


def read_journal(since_s: float | None = None, until_s: float | None = None) -> Iterator[OomRecord]:
    """The OOM kills in this host's journal, of all boots that it holds. Raises HostUnable without one."""
    program = shutil.which(_JOURNAL[0])
    if program is None:
        raise HostUnable(
            "there is no journalctl here", "leave out --journal for the ring buffer, or give a file below /var/log"
        )
    times = [f"--since=@{since_s:.0f}"] if since_s is not None else []
    times += [f"--until=@{until_s + 1:.0f}"] if until_s is not None else []
    with _running([program, *_JOURNAL[1:], *times]) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        yield from scan_log(iter(lambda: process.stdout.read(BLOCK_BYTES), b""))  # type: ignore[union-attr]
        complaint = process.stderr.read(1000).decode("utf-8", "replace").strip()
        if process.wait() != 0:
            raise HostUnable(f"journalctl: {complaint or 'it failed'}", "is there a journal on this host?")


@contextmanager
def _running(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def _plain(file: BufferedReader) -> Callable[[int], bytes]:
    """What reads a block of `file`, uncompressed: by its first bytes, whatever its name."""
    start = file.peek(6)
    if start.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=file).read1
    if start.startswith(b"BZh"):
        return bz2.BZ2File(file).read1
    if start.startswith(b"\xfd7zXZ\0"):
        return lzma.LZMAFile(file).read1
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):  # PowerShell's `wsl dmesg > file`
        text = TextIOWrapper(file, "utf-16", errors="replace")
        return lambda size: text.read(size).encode("utf-8", "surrogatepass")
    return file.read1  # what there is: a pipe may be slow


def _blocks(read: Callable[[int], bytes], name: str) -> Iterator[bytes]:
    try:
        while block := read(BLOCK_BYTES):
            yield block
    except (gzip.BadGzipFile, EOFError, zlib.error, lzma.LZMAError) as error:
        raise RtdebugError(f"{name} is damaged: {error}", "the kills before that are shown") from error


def _watched(blocks: Iterator[bytes], file: BufferedReader, progress: Progress) -> Iterator[bytes]:
    """Tell how much of the file is read; of a compressed one as it is stored."""
    size_mib = os.fstat(file.fileno()).st_size // _MIB
    for block in blocks:
        progress(file.tell() // _MIB if file.seekable() else 0, size_mib)
        yield block
