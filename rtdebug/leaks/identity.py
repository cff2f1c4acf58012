"""Which processes are the same one started again: by executable and command line, not by pid."""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2b

from rtdebug.host.text import valid_utf8

MAX_COMMAND = 512
"""Characters of a command line that are kept."""
_PASSING = re.compile(
    r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"  # a UUID
    r"|(?<![0-9A-Za-z])(?=[0-9a-f]*\d)[0-9a-f]{12,}(?![0-9A-Za-z])"  # a container's id, a commit, a hash
    r"|\d{5,}"  # a pid, a time, a port that was given by chance
)


def identity_of(executable: str | None, arguments: Sequence[str]) -> str:
    """`name-hash`: the same for a program started again in the same way, in this container or in another.

    What differs from start to start (UUIDs, long hexadecimal ids, numbers of five digits or more) does not count.
    `executable` is what /proc/PID/exe leads to; None: not known, then the first argument stands for it.
    """
    program = (executable or next(iter(arguments), "")).removesuffix(" (deleted)")
    lasting = [_PASSING.sub("*", argument) for argument in (program, *arguments)]
    digest = blake2b("\0".join(lasting).encode("utf-8", "surrogatepass"), digest_size=5).hexdigest()
    name = valid_utf8(program.rsplit("/", 1)[-1])[:64] or "unknown"
    return f"{name}-{digest}"


def command_of(arguments: Sequence[str]) -> str | None:
    """The command line as one text of at most MAX_COMMAND characters; None when there is none."""
    return valid_utf8(" ".join(arguments))[:MAX_COMMAND] or None
