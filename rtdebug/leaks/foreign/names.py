"""What the name of a column or metric says of it: whether it is of memory, of which kind, whether it is a limit."""

from __future__ import annotations

import re

OWNERS = ("namespace", "pod", "pod_name", "container", "container_name")
"""Labels of Prometheus that tell whose memory it is."""
_KINDS = (
    ("shmem", r"shm|tmpfs"),
    ("file", r"cache|file|mapped"),
    ("slab", r"slab"),
    ("swap", r"swap"),
    ("anon", r"rss|anon|heap"),
    ("sock", r"sock"),
    ("kernel_stack", r"kernel.?stack"),
    ("page_tables", r"page.?tables?"),
)
_OF_FILES = re.compile(
    r"container|mem(?:ory)?|total|bytes?|[kmg]i?b|[kmgb]|in|of|size|usage|used|active|inactive|mapped|page|files?|cached?|"
    r"buff(?:er|ers|ered)?|and|stats?"
)
_NO_MEMORY = re.compile(
    r"cpu|net|network|rx|tx|recv|received|sent|transmit|blk|block|blkio|io|disk|fs|storage|read|reads|write|writes|"
    r"pids?|ppid|tid|threads?|fds?|ports?|load|requests?|latency|duration|count|counts|counter|fault|faults|failcnt|"
    r"pgfault|pgmajfault|minflt|majflt|seconds|gpu|temperature|temp|uptime"
)
_NOT_HELD = re.compile(r"vsz|vms|vmsize|virt|virtual|peak|hwm|vmhwm|vmpeak|max|maximum|watermark|free|avail|available")
_MEMORY = re.compile(
    r"mem|memory|rss|vmrss|res|resident|pss|uss|ram|heap\w*|usage|used|workingset|working|anon|shm|shmem|external"
)


def kind_in_name(name: str) -> str:
    """Return the kind of memory that a column or metric is about, by its name; `usage` if it names none.

    `file` only where it says nothing else: a column can be named after its container, and page cache never leaks.
    """
    kind = next((kind for kind, pattern in _KINDS if re.search(pattern, name.lower())), "usage")
    return "usage" if kind == "file" and not all(map(_OF_FILES.fullmatch, words_in(name))) else kind


def names_memory(name: str) -> bool | None:
    """Whether a column or metric is of memory that is held, by its name; None: the name does not say.

    Not held are address space, high-water marks and what is free: they grow where nothing leaks.
    """
    words = words_in(name)
    if any(_NO_MEMORY.fullmatch(word) or _NOT_HELD.fullmatch(word) for word in words):
        return False
    return True if any(_MEMORY.fullmatch(word) for word in words) else None


def names_limit(name: str) -> bool:
    """Whether a column is a limit: `mem_limit`, not `rate-limiter`."""
    return not {"limit", "limits"}.isdisjoint(words_in(name))


def words_in(name: str) -> list[str]:
    """Words in small letters: of `rssMB`, `RSS (MB)`, `heapUsed`, `mem_rss`."""
    return re.findall(r"[a-z]+|%", re.sub(r"(?<=[a-z])(?<![KMGT]i)(?=[A-Z])", " ", name).lower())
