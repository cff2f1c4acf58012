"""Containers that leak, and healthy ones that look like it: C programs and Python, each with what it is."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.kernel.runtime_fixtures import make_rootfs
from tests.kernel.workload import build

PYTHON = "/usr/bin/python3"
LIST_LEAK = "import time\nkept = []\nwhile True:\n    kept.append(list(range({step})))\n    time.sleep({pause})\n"
LIST_FREED = (
    "import time\nkept = []\nwhile True:\n    kept.append(bytearray({step}))\n"
    "    if len(kept) > 20:\n        kept.clear()\n    time.sleep({pause})\n"
)


@dataclass(frozen=True, slots=True)
class Leaker:
    """A container's program. `kind`: the kind of memory that it leaks; None: it does not leak."""

    name: str
    script: str
    kind: str | None
    pattern: str = ""
    """Part of the pattern's name."""


def leakers(step_kib: int, pause_ms: int) -> list[Leaker]:
    """All of them, each taking `step_kib` every `pause_ms`."""

    def grow(kind: str, kib: int = step_kib) -> str:
        return f"exec /bin/grow {kind} {kib} {pause_ms}"

    values: Mapping[str, object] = {"step": step_kib * 1024 // 40, "pause": pause_ms / 1000}
    freed: Mapping[str, object] = {"step": step_kib * 1024, "pause": pause_ms / 1000}
    return [
        Leaker("mmap", grow("mmap"), "anon"),
        Leaker("heap", grow("heap"), "anon"),
        Leaker("shm", grow("shm"), "shmem", "tmpfs"),
        Leaker("threads", grow("threads", 240), "anon", "threads"),
        Leaker("fds", grow("fds"), "anon", "file descriptors"),
        Leaker("pylist", _python(LIST_LEAK.format(**values)), "anon"),
        Leaker("collect", grow("collect"), None),
        Leaker("warm", grow("warm"), None),
        Leaker("cache", grow("cache"), None),
        Leaker("static", grow("static"), None),
        Leaker("churn", grow("churn"), None),
        Leaker("pyfreed", _python(LIST_FREED.format(**freed)), None),
    ]


def _python(text: str) -> str:
    return f"exec /bin/python3 -S -c '{text}'"


def rootfs_of_leakers(folder: Path) -> Path:
    """Make a root file system with busybox, the C program, and the system's Python with what it links to."""
    root = make_rootfs(folder)
    (root / "dev/shm").mkdir(exist_ok=True)
    shutil.copy(build("grow"), root / "bin/grow")
    shutil.copy(Path(PYTHON).resolve(), root / "bin/python3")
    linked = subprocess.run(["ldd", PYTHON], capture_output=True, text=True, check=True).stdout
    for word in linked.split():
        if word.startswith("/"):
            target = root / word.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(word, target)
    version = subprocess.run(
        [PYTHON, "-c", "import sysconfig; print(sysconfig.get_path('stdlib'))"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    library = Path(version or sysconfig.get_path("stdlib"))
    leave_out = shutil.ignore_patterns("test", "dist-packages", "site-packages", "config-*", "lib2to3", "idlelib")
    shutil.copytree(library, root / str(library).lstrip("/"), ignore=leave_out, symlinks=True)
    return root
