"""Where rtdebug keeps what it can make again: compiled programs. Safe against two runs at once."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return the folder: RTDEBUG_CACHE, /var/cache/rtdebug for root, else $XDG_CACHE_HOME/rtdebug. May not exist."""
    chosen = os.environ.get("RTDEBUG_CACHE")
    if chosen:
        return Path(chosen)
    if os.geteuid() == 0:
        return Path("/var/cache/rtdebug")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rtdebug"


def read_cached(name: str, folder: Path | None = None) -> bytes | None:
    """Return a file of the cache, or None. A file that another user could have written is not read."""
    path = (folder or cache_folder()) / name
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(file.fileno())
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            return None
        return file.read()


def write_cached(name: str, content: bytes, folder: Path | None = None) -> bool:
    """Put a file into the cache, whole or not at all. A cache that cannot be written (read-only, full) is no error.

    Returns whether it was written.
    """
    import tempfile  # who only reads the cache does without

    folder = folder or cache_folder()
    temporary: str | None = None
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd, temporary = tempfile.mkstemp(prefix=f".{name}.", dir=folder)
        with os.fdopen(fd, "wb") as file:
            file.write(content)
        Path(temporary).replace(folder / name)
    except OSError:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        return False
    return True
