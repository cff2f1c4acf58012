"""Small files of the kernel, read the cheapest way: a thousand containers are ten thousand of them every time."""

from __future__ import annotations

import os

_CHUNK_BYTES = 1 << 16
_MAX_BYTES = 1 << 22
_FLAGS = os.O_RDONLY | os.O_CLOEXEC


def read_bytes(path: str) -> bytes | None:
    """The content of a file of /proc or a cgroup, at most 4 MiB; None if it is not there or may not be read."""
    try:
        fd = os.open(path, _FLAGS)
    except OSError:
        return None
    try:
        chunk = content = os.read(fd, _CHUNK_BYTES)
        while chunk and len(content) < _MAX_BYTES:  # these files end where a read gives nothing
            if len(chunk) < 4000:  # less than a page of room was left: seq_file has no more
                break
            chunk = os.read(fd, _CHUNK_BYTES)
            content += chunk
    except OSError:  # the cgroup or process went away meanwhile
        return None
    finally:
        os.close(fd)
    return content


def read_number(path: str) -> int | None:
    """The number a file holds; None for `max`, for none, and if there is no such file."""
    content = read_bytes(path)
    try:
        return None if content is None else int(content)
    except ValueError:
        return None


def status_of(path: str) -> os.stat_result | None:
    """What stat(2) says of a file or folder; None if it is not there."""
    try:
        return os.stat(path)  # noqa: PTH116 - a Path costs as much as the call
    except OSError:
        return None


def keyed(content: bytes | None) -> dict[bytes, int]:
    """`key value` lines, as of memory.stat; empty for anything else."""
    words = (content or b"").split()
    try:
        return dict(zip(words[::2], map(int, words[1::2]), strict=False))
    except ValueError:
        return {}
