"""Snapshots and cgroup trees for the tests of the exporter."""

from __future__ import annotations

from pathlib import Path

from rtdebug.containers.model import Container
from rtdebug.export.counters import Counts, LastKill, Owned
from rtdebug.export.model import KINDS, Leak, Orphans, Reading, Snapshot, State
from rtdebug.host.inside import TmpfsUsage
from rtdebug.leaks.baseline import Band
from rtdebug.leaks.tables import FIGURES

MIB = 1 << 20


def box(name: str | None = "web", container_id: str = "ab" * 32, cgroup: str | None = None, **more: str) -> Container:
    return Container(container_id, name, "docker", 1, "running", cgroup or f"/docker/{container_id}", **more)  # type: ignore[arg-type]


def full_state(container: Container) -> State:
    """One that has everything."""
    band = Band(3.0, 1.0, 1.0, 2, 1_700_000_000.0)
    return State(
        container,
        Reading(
            {**{name: 1000 + at for at, name in enumerate(FIGURES)}, "thp_fault_alloc": 7, "thp_collapse_alloc": 8},
            dict.fromkeys(KINDS, 4096),
            dict.fromkeys(("anon", "file", "shmem"), 2 * MIB),
        ),
        TmpfsUsage(32 * MIB, 64 * MIB),
        Orphans(2, 5 * MIB),
        leaks={"anon": Leak(2, 100.0), "shmem": Leak(0, None)},
        bands={"anon_bytes": band, "refaults_per_second": band},
    )


def full_counts(container: Container | None) -> Counts:
    values = {
        ("oom_kills",): 3,
        ("oom_victims", "/docker", "above", "python"): 3,
        ("sigbus", "tmpfs_full"): 2,
        ("shm_full",): 4,
        ("madvise_calls", "madvise", "MADV_HUGEPAGE", "ok"): 5,
        ("madvise_bytes", "madvise", "MADV_HUGEPAGE"): 4096,
    }
    return Counts((Owned(container, values, LastKill(1_700_000_000.5, 9 * MIB)),), dropped=1, refused=2)


def snapshot(states: tuple[State, ...], counts: Counts | None = None, trace_up: bool = True) -> Snapshot:
    return Snapshot(1_700_000_000.25, 0.5, 10.0, states, 0, counts or Counts(), trace_up, 0)


STAT_V2 = (
    "anon {anon}\nfile 8388608\nkernel 3145728\nkernel_stack 65536\npagetables 131072\nsock 4096\nshmem 4194304\n"
    "anon_thp 2097152\nfile_thp 0\nshmem_thp 2097152\nslab 1048576\nworkingset_refault_anon 3\n"
    "workingset_refault_file 14\npgfault 5000\npgmajfault 11\nthp_fault_alloc 2\nthp_collapse_alloc 1\n"
)


def v2_cgroup(folder: Path, anon: int = 13 * MIB, refaults: int = 14) -> Path:
    """A folder with the files of a v2 memory cgroup."""
    folder.mkdir(parents=True, exist_ok=True)
    stat = STAT_V2.format(anon=anon).replace("workingset_refault_file 14", f"workingset_refault_file {refaults}")
    (folder / "memory.stat").write_text(stat)
    (folder / "memory.current").write_text(f"{anon + 12 * MIB}\n")
    (folder / "memory.max").write_text(f"{64 * MIB}\n")
    (folder / "memory.swap.current").write_text("8192\n")
    (folder / "memory.events").write_text("low 0\nhigh 7\nmax 9\noom 2\noom_kill 1\noom_group_kill 0\n")
    (folder / "memory.pressure").write_text(
        "some avg10=1.00 avg60=0.50 avg300=0.10 total=2500000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=1500000\n"
    )
    (folder / "cgroup.procs").write_text("")
    return folder


def v1_cgroup(folder: Path) -> Path:
    """The same of v1."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.stat").write_text(
        "cache 1\nrss 1\ntotal_cache 8388608\ntotal_rss 13631488\ntotal_rss_huge 2097152\ntotal_shmem 4194304\n"
        "total_swap 0\ntotal_pgfault 5000\ntotal_pgmajfault 11\ntotal_workingset_refault_file 14\n"
        "total_workingset_refault_anon 3\n"
    )
    (folder / "memory.usage_in_bytes").write_text(f"{25 * MIB}\n")
    (folder / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    (folder / "memory.kmem.usage_in_bytes").write_text(f"{3 * MIB}\n")
    (folder / "memory.kmem.tcp.usage_in_bytes").write_text("4096\n")
    (folder / "memory.failcnt").write_text("9\n")
    (folder / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    (folder / "cgroup.procs").write_text("41\n42\n")
    return folder
