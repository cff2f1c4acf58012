"""Small trees of /proc and cgroupfs, written into a temporary folder: what the readers take for a host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rtdebug.containers.inventory import Inventory
from rtdebug.containers.model import Container
from rtdebug.containers.roots import HostRoots
from rtdebug.host.cgroup import MemoryHierarchy


def write_files(folder: Path, files: Mapping[str, str]) -> Path:
    """Write `{relative path: text}` below `folder`."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def stat_line(pid: int, comm: str = "sleep", state: str = "S", start_ticks: int = 4711) -> str:
    return f"{pid} ({comm}) {state} 1 " + "0 " * 17 + f"{start_ticks} 0 0\n"


@dataclass(frozen=True)
class Host:
    """A host of our own below one folder."""

    folder: Path
    version: int

    @property
    def roots(self) -> HostRoots:
        return HostRoots(self.folder / "proc", self.folder / "run", self.folder / "var/lib")

    @property
    def hierarchy(self) -> MemoryHierarchy:
        return MemoryHierarchy(1 if self.version == 1 else 2, self.folder / "cgroup")

    def add_cgroup(self, cgroup: str, **files: str) -> Path:
        """`memory_stat="..."` becomes the file memory.stat."""
        named = {name.replace("memory_", "memory.", 1): text for name, text in files.items()}
        folder = self.folder / "cgroup" / cgroup.strip("/")
        return write_files(folder, {"cgroup.procs": "", "memory.stat": "", **named})

    def add_process(
        self,
        pid: int,
        cgroup: str = "/",
        comm: str = "sleep",
        *,
        argv: tuple[str, ...] = (),
        namespaces: str = "host",
        start_ticks: int = 4711,
        mountinfo: str = "",
        uid: int = 0,
    ) -> None:
        controllers = "3:memory" if self.version == 1 else "0:"
        spaces = self.folder / "namespaces"
        spaces.mkdir(exist_ok=True)
        folder = write_files(
            self.folder / "proc" / str(pid),
            {
                "comm": f"{comm}\n",
                "cmdline": "".join(f"{argument}\0" for argument in argv),
                "cgroup": f"{controllers}:{cgroup}\n",
                "stat": stat_line(pid, comm, start_ticks=start_ticks),
                "status": f"Name:\t{comm}\nTgid:\t{pid}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nNSpid:\t{pid}\n",
                "mountinfo": mountinfo,
            },
        )
        (folder / "ns").mkdir()
        for kind in ("pid", "mnt"):
            (spaces / f"{namespaces}-{kind}").touch()
            (folder / "ns" / kind).symlink_to(spaces / f"{namespaces}-{kind}")
        procs = self.add_cgroup(cgroup) / "cgroup.procs"
        procs.write_text(procs.read_text() + f"{pid}\n")

    def inventory(self, *containers: Container) -> Inventory:
        return Inventory(containers, (), self.hierarchy, self.roots)


def make_host(folder: Path, version: int = 2) -> Host:
    """An empty host with the memory controller on cgroup v1 or v2, seen by a process of ours, pid 1."""
    mount = (
        f"31 1 0:29 / {folder}/cgroup rw - cgroup cgroup rw,memory\n"
        if version == 1
        else f"31 1 0:29 / {folder}/cgroup rw - cgroup2 cgroup2 rw\n"
    )
    host = Host(folder, version)
    host.add_cgroup("/")
    write_files(folder / "cgroup", {"cgroup.controllers": "cpu memory pids\n"})
    host.add_process(1, comm="init", mountinfo=mount)
    (folder / "proc/self").symlink_to("1")
    (folder / "run").mkdir()
    return host
