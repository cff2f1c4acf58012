"""The single lines the kernel prints about an OOM kill: their patterns, and what each holds.

The forms are those of Linux 2.6.24 to 6.18, from mm/oom_kill.c and mm/memcontrol*.c.
"""

from __future__ import annotations

import re
import string
from dataclasses import replace

from rtdebug.oom.dressing import ELLIPSES
from rtdebug.oom.record import Constraint, HostMemory, MemoryCounter, Reaped, TaskRow, Trigger, Victim, Zone

CONSTRAINTS: dict[str, Constraint] = {
    "CONSTRAINT_NONE": "global",
    "CONSTRAINT_CPUSET": "cpuset",
    "CONSTRAINT_MEMORY_POLICY": "mempolicy",
    "CONSTRAINT_MEMCG": "memcg",
}

_ZONES_AT_MOST = 256
_UNLIMITED_KB = 1 << 52
"""PAGE_COUNTER_MAX is 2**53 - 4 kB with 4 KiB pages, a little less with larger ones; once it was more."""
_UNLIMITED_KB_32BIT = ((1 << 31) - 1) * 4

# A comm may hold anything but NUL, also newlines: hence DOTALL where there is one.
_COMM = r"(?P<comm>.{0,64}?)"
_OUT = r"(?P<scope>Memory cgroup out|Out) of [Mm]emory(?: \([a-z_]*\))?"
PATTERNS: dict[str, re.Pattern[str]] = {
    "trigger": re.compile(
        rf"{_COMM} invoked oom-killer:(?: gfp_?mask=(?P<gfp>0x[0-9a-fA-F]+(?:\([^)\n]*\))?))?"
        r"(?P<rest>[^\n]*)$",
        re.DOTALL,
    ),
    "summary": re.compile(r"oom-kill:constraint=(?P<constraint>CONSTRAINT_\w+)(?P<rest>.*)", re.DOTALL),
    "selected": re.compile(
        rf"{_OUT}: [Kk]ill process (?P<pid>\d+),?(?: \((?P<comm>.*)\))? score (?P<score>\d+)", re.DOTALL
    ),
    "killed": re.compile(rf"(?:{_OUT}: )?Killed process (?P<pid>\d+)(?P<rest>(?:\D.*)?)", re.DOTALL),
    "skipped": re.compile(rf"(?:{_OUT}: )?OOM victim (?P<pid>\d+) \(.*\) is already exiting", re.DOTALL),
    "unkillable": re.compile(rf"{_OUT} and no killable processes"),
    "panic": re.compile(
        r"Kernel panic - not syncing: (?:Out of memory(?:: (?P<how>\S+) panic_on_oom is enabled| and no killable)"
        r"|System is deadlocked on memory)"
    ),
    "group": re.compile(r"Tasks in (?P<path>.+) are going to be killed due to memory\.oom\.group set"),
    "reaped": re.compile(r"oom_reaper: reaped process (?P<pid>\d+) \((?P<comm>.*)\)(?:, now (?P<rest>.*))?", re.DOTALL),
    "task_in": re.compile(r"Task in (?P<task>.+) killed as a result of limit of (?P<oom>.+)"),
    "reached": re.compile(r"Memory limit reached of cgroup (?P<oom>.+)"),
    "counter": re.compile(
        r"(?P<name>memory\+swap|memory|kmem|swap): usage (?P<usage>\d+)kB, limit (?P<limit>\d+)kB,"
        r" failcnt (?P<failcnt>\d+)"
    ),
    "stats": re.compile(
        r"Memory cgroup stats(?: for (?P<path>.+?))?:(?P<inline>(?: ?\w+:\d+[kK]B)*)(?: ?\w*:?\d*)?\s*$"
    ),
    "more_stats": re.compile(r"(?:\w+:\d+[kK]B ?)+$"),
    "table": re.compile(r"\[\s*pid\s*\]\s+uid\s+tgid\s+[^\n]*$"),
    "row": re.compile(r"\[\s*(?P<pid>\d+)\]\s+(?P<cells>\d.*)", re.DOTALL),
    "cpu": re.compile(
        r"(?:CPU: \d+ )?(?:UID: \d+ )?P(?:ID|id): (?P<tid>\d+),? [Cc]omm: (?P<comm>.*?)"
        r"(?: Kdump: loaded)?(?: Not tainted| Tainted: |$)",
        re.DOTALL,
    ),
    "cpuset": re.compile(rf"{_COMM} cpuset=(?P<cpuset>.*) mems_allowed=(?P<mems>[\d,-]+)$", re.DOTALL),
    "stack": re.compile(  # on arm: `dump_header from oom_kill_process+0x23c/0x248`
        r"\s*\(?(?:\[<?[0-9a-f]+>?\] )*\(?(?:(?:\? )?dump_header|oom_kill_process|(?:mem_cgroup_)?out_of_memory)[.\w]*"
        r"(?:\+0x|\)? from )"
    ),
    "suppressed": re.compile(r"oom_kill_process: (?P<count>\d+) callbacks suppressed"),
    "sysrq": re.compile(r"[Ss]ys[Rr]q ?: Manual OOM execution"),
    "slab": re.compile(r"\s*cache: [^(\n]*\(\d+:(?P<memcg>[^\n]+)\), object size"),
    "stat": re.compile(r"(?P<key>[a-z][a-z0-9_]*) (?P<value>\d+)$"),
    "mem_info": re.compile(
        r"\s*(?P<pages>(?:active_anon|active_file|inactive_file|unevictable|slab_reclaimable|mapped|free|free_cma"
        r"|sec_pagetables|kernel_misc_reclaimable):\d+(?: [a-z_()]+:\d+)*)\s*$"
    ),
    "zone": re.compile(
        r"(?:Node (?P<node>\d+) )?(?P<zone>\w+) free:(?P<free>\d+)kB (?:boost:\d+kB )?min:(?P<min>\d+)kB "
    ),
    "ram": re.compile(r"(?P<ram_pages>\d+) pages (?:of )?RAM"),
    "reserved": re.compile(r"(?P<reserved_pages>\d+) (?:pages reserved|reserved pages)$"),
    "host_swap": re.compile(r"(?P<which>Free|Total) swap\s*= (?P<kb>\d+)kB"),
}
SYSTEMD_UNIT = re.compile(r"(?P<unit>[^\s:]+\.(?:service|scope)): A process of this unit has been killed by the OOM")
WITH_COMM = ("trigger", "summary", "selected", "killed", "skipped", "reaped", "row", "cpu", "cpuset")
_STARTS = {
    **dict.fromkeys(("selected", "skipped", "unkillable"), "MO"),
    "killed": "MOK", "panic": "K", "reached": "M", "summary": "o", "reaped": "o", "suppressed": "o", "group": "T",
    "task_in": "T", "counter": "mks", "stats": "M", "table": "[", "row": "[", "cpu": "CUP", "stack": " \t[(dom?",
    "sysrq": "Ss", "slab": " \tc", "mem_info": " \taufsmik", "zone": "NDHM", "host_swap": "FT",
    **dict.fromkeys(("stat", "more_stats"), string.ascii_lowercase),
    **dict.fromkeys(("ram", "reserved"), string.digits),
}
"""With what characters a line of each kind may begin: most lines are of none, and there are many of them."""
_BEHIND_COMM = ("trigger", "cpuset")
"""These begin with a comm, which may be anything."""
_KINDS_BY_START = {
    start: tuple(kind for kind in PATTERNS if start in _STARTS.get(kind, ""))
    for start in {start for starts in _STARTS.values() for start in starts}
}
_FIGURE = re.compile(r"(?P<key>[a-z]+(?:-[a-z]+)?):(?P<kb>\d+)kB")
_SUMMARY_PART = re.compile(r",(?=(?:nodemask|cpuset|mems_allowed|oom_memcg|task_memcg|task|pid|uid)=|global_oom)")
_COLUMNS = {
    "tgid": "tgid",
    "uid": "uid",
    "total_vm": "total_vm_pages",
    "rss": "rss_pages",
    "rss_anon": "rss_anon_pages",
    "rss_file": "rss_file_pages",
    "rss_shmem": "rss_shmem_pages",
    "nr_ptes": "nr_ptes",
    "nr_pmds": "nr_pmds",
    "nr_puds": "nr_puds",
    "pgtables_bytes": "pgtables_bytes",
    "swapents": "swapents",
    "cpu": "cpu",
    "oom_adj": "oom_adj",
    "oom_score_adj": "oom_score_adj",
}


def kinds_of(message: str) -> tuple[str, ...]:
    """The kinds of line that this one may be of."""
    kinds = _KINDS_BY_START.get(message[:1], ())
    if " invoked oom-killer:" in message or " mems_allowed=" in message:
        return (*_BEHIND_COMM, *kinds)
    return kinds


def before_cut(message: str) -> str:
    """What is whole of a message that ends in an ellipsis: the word it touches may be half."""
    text = message.removesuffix("...").removesuffix("…")
    return text[: max(text.rfind(" "), text.rfind(","), text.rfind("\n")) + 1]


def parse_counter(usage_kb: int, limit_kb: int, failcnt: int) -> MemoryCounter:
    """Figures of one counter line; the kernel's largest number becomes `unlimited`."""
    unlimited = limit_kb >= _UNLIMITED_KB or limit_kb == _UNLIMITED_KB_32BIT
    return MemoryCounter(usage_kb * 1024, None if unlimited else limit_kb * 1024, failcnt)


def parse_task_row(columns: list[str], pid: int, cells: str, cut: bool = False) -> TaskRow | None:
    """One row under the header `columns` (without pid; the last one is the name).

    None when it is shorter than its header, unless `cut` says that an ellipsis stands for the rest.
    """
    with_name = bool(columns) and columns[-1] == "name"
    numeric = columns[:-1] if with_name else columns
    values = cells.split(None, len(numeric))
    if len(values) < len(numeric) and not cut:
        return None
    figures: dict[str, int] = {}
    for column, value in zip(numeric, values, strict=False):
        if not value.lstrip("-").isdecimal():
            return None
        if column in _COLUMNS:
            figures[_COLUMNS[column]] = int(value)
    comm = values[len(numeric)] if with_name and len(values) > len(numeric) else None
    return TaskRow(pid, comm=comm, **figures)


def parse_killed(pid: int, rest: str) -> Victim:
    """What follows `Killed process PID`, in any of its forms."""
    before, opening, after = rest.partition("(")
    name = re.match(r"(?P<comm>.{0,64})\)(?=\.?\s*$| ?,|\s+(?:total-vm|vsz):)", after, re.DOTALL)
    name = name or re.match(r"(?P<comm>[^)]{0,64})\)(?=\s)", after)  # more text, as somebody cut it short
    tail = after[name.end() :] if name else ""
    kb = _figures(tail)
    uid = re.search(r"UID[: ](\d+)\b", f"{before} {tail}")
    adj = re.search(r"oom_score_adj:(-?\d+)", tail)
    return Victim(
        pid=pid,
        comm=name["comm"] if opening and name else None,
        uid=int(uid[1]) if uid else None,
        total_vm_bytes=kb.get("total-vm", kb.get("vsz")),
        anon_rss_bytes=kb.get("anon-rss"),
        file_rss_bytes=kb.get("file-rss"),
        shmem_rss_bytes=kb.get("shmem-rss"),
        page_table_bytes=kb.get("pgtables"),
        swap_bytes=kb.get("swap", kb.get("swap-rss")),
        oom_score_adj=int(adj[1]) if adj else None,
    )


def parse_summary(rest: str) -> dict[str, str]:
    """The values of the summary line, which has no quoting; of a cut one those that are surely whole."""
    ids = re.search(r",pid=(?P<pid>\d+),uid=(?P<uid>\d+)\s*$", rest)
    if ids is None:
        parts = _SUMMARY_PART.split(rest)[1:-1]
        found = dict(part.split("=", 1) for part in parts if "=" in part)
        found = {key: value for key, value in found.items() if key not in ("pid", "uid") or value.isdecimal()}
        return _unelided(found)
    head, _, task = rest[: ids.start()].rpartition(",task=")
    head, _, task_memcg = head.partition(",task_memcg=")
    head, _, oom_memcg = head.partition(",oom_memcg=")
    parts = _SUMMARY_PART.split(head)[1:]
    values = dict(part.split("=", 1) for part in parts if "=" in part)
    values |= {"task_memcg": task_memcg, "oom_memcg": oom_memcg, "task": task, **ids.groupdict()}
    return _unelided(values)


def _unelided(values: dict[str, str]) -> dict[str, str]:
    """Without those that somebody shortened in the middle: half a path is none."""
    return {key: value for key, value in values.items() if value and not any(dots in value for dots in ELLIPSES)}


def add_host(host: HostMemory, match: re.Match[str]) -> HostMemory:
    """`host` with one more line of `Mem-Info`."""
    found = match.groupdict()
    if "pages" in found:
        pairs = (pair.split(":") for pair in found["pages"].split())
        return replace(host, pages={**host.pages, **{key: int(value) for key, value in pairs}})
    if "zone" in found:
        node = None if found["node"] is None else int(found["node"])
        zone = Zone(node, found["zone"], int(found["free"]) * 1024, int(found["min"]) * 1024)
        return host if len(host.zones) >= _ZONES_AT_MOST else replace(host, zones=(*host.zones, zone))
    if "which" in found:
        kib = int(found["kb"]) * 1024
        return (
            replace(host, swap_free_bytes=kib) if found["which"] == "Free" else replace(host, swap_total_bytes=kib)
        )
    if "ram_pages" in found:
        return replace(host, ram_pages=int(found["ram_pages"]))
    return replace(host, reserved_pages=int(found["reserved_pages"]))


def parse_trigger(match: re.Match[str]) -> Trigger:
    """The line `COMM invoked oom-killer: ...`; the thread's id comes in a later line."""
    figures = {key: int(value) for key, value in re.findall(r"(order|oom_score_adj)=(-?\d+)", match["rest"])}
    return Trigger(match["comm"], None, match["gfp"], figures.get("order"), figures.get("oom_score_adj"))


def parse_reaped(match: re.Match[str]) -> Reaped:
    """The line `oom_reaper: reaped process PID (COMM), now ...`."""
    figures = _figures(match["rest"] or "")
    return Reaped(
        pid=int(match["pid"]),
        comm=match["comm"],
        anon_rss_bytes=figures.get("anon-rss"),
        file_rss_bytes=figures.get("file-rss"),
        shmem_rss_bytes=figures.get("shmem-rss"),
    )


def parse_inline_stat(text: str) -> dict[str, int]:
    """v1's one-line memory.stat, `cache:0KB rss:980KB`, in bytes."""
    return {key: int(value) * 1024 for key, value in re.findall(r"(\w+):(\d+)[kK]B", text)}


def _figures(text: str) -> dict[str, int]:
    return {match["key"]: int(match["kb"]) * 1024 for match in _FIGURE.finditer(text)}
