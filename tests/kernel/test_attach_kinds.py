"""Every way of attaching that this kernel has gives the same events.

A way is forced by what the trace finds in its cache: programs compiled for tracepoints without types, or programs
without the BTF id of the kernel function. With RTDEBUG_ATTACH_TABLE=FILE what was seen is appended there, a line for
each event: `kernel release, way, event, count`, from which scripts/vm-test makes docs/kernels.md.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rtdebug.errors import RtdebugError
from rtdebug.host import trials
from tests.kernel.tracing import ROOT, Script, Trace, Traced, no_kernel_log, small_shm, target
from tests.kernel.workload import MIB, Workload, build, memory_cgroup

pytestmark = pytest.mark.kernel

LIMIT = 64 * MIB
EXACT = {
    "shm_open": 4,
    "shm_unlink": 1,
    "shmget": 1,
    "shmat": 1,
    "shmdt": 1,
    "shmctl": 1,
    "memfd_create": 1,
    "process_madvise": 23,
    "oom_kill": 1,
}
"""Of the programs below; how many pages a write fills before ENOSPC is another matter, so is how far a leak gets."""
AT_LEAST_ONE = ("mmap", "munmap", "brk", "madvise", "ftruncate", "shm_full", "sigbus")


def without_fentry(document: dict[str, Any]) -> None:
    document["function_ids"] = {}


def without_function_probes(document: dict[str, Any]) -> None:
    document["function_ids"] = {}
    document["functions"]["on_out_of_memory_kprobe"] = "00" * 8  # no program that a kernel takes


def needs(attempt: Callable[[str], None], name: str) -> None:
    """Skip where this kernel cannot do it, by rtdebug's own trial."""
    try:
        attempt(name)
    except RtdebugError as error:
        pytest.skip(f"{error.message}")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a trace puts into an empty cache."""
    folder = tmp_path_factory.mktemp("cache")
    with memory_cgroup(LIMIT) as cgroup, Trace(target(cgroup), environment={"RTDEBUG_CACHE": str(folder)}):
        pass
    (program,) = folder.glob("program-*.json")
    return program


@contextmanager
def forced(
    change: Callable[[dict[str, Any]], None] | None, compiled: Path, folder: Path
) -> Iterator[dict[str, str]]:
    """Yield the environment in which a trace finds a changed program in its cache."""
    document = json.loads(compiled.read_text())
    if change is not None:
        change(document)
    program = folder / compiled.name
    program.write_text(json.dumps(document))
    yield {"RTDEBUG_CACHE": str(folder)}
    assert list(folder.glob("program-*.json")) == [program], "the trace compiled another one"


def bad_day(environment: dict[str, str]) -> Traced:
    """Have the demo's programs run in a traced cgroup."""
    with (
        memory_cgroup(LIMIT) as cgroup,
        Script("os.execv(sys.argv[1], ['demo'])", build("demo"), cgroup=cgroup, wrap=small_shm("16m")) as demo,
        Workload("process_madvise", 23, "MADV_COLD", cgroup=cgroup) as advice,
        Trace(target(cgroup), environment=environment) as trace,
    ):
        advice.go()
        advice.finish()
        demo.go()
        for _ in demo.lines():
            pass
        demo.finish()
    return trace.result


def note(way: str, counts: Counter[str]) -> None:
    """Add to the table of the lab."""
    path = os.environ.get("RTDEBUG_ATTACH_TABLE")
    if path:
        with Path(path).open("a", encoding="utf-8") as file:
            for event, count in sorted(counts.items()):
                print(platform.release(), way, event, count, sep="\t", file=file)


def check(traced: Traced) -> Counter[str]:
    """The events that these programs make, each as often as it must be."""
    counts = Counter({name: traced.count(name) for name in {event["event"] for event in traced.events}})
    assert {name: counts[name] for name in EXACT} == EXACT
    assert [name for name in AT_LEAST_ONE if not counts[name]] == []
    assert traced.summary is not None
    assert traced.summary["lost_events"] == 0
    return counts


def test_typed_raw_tracepoints(compiled: Path, tmp_path: Path) -> None:
    needs(trials.try_typed_raw_tracepoint, "mark_victim")
    with forced(None, compiled, tmp_path) as environment:
        note("typed raw tracepoint", check(bad_day(environment)))


def test_raw_tracepoints_by_name(compiled: Path, tmp_path: Path) -> None:
    with forced(without_types, compiled, tmp_path) as environment:
        note("raw tracepoint", check(bad_day(environment)))


COMPILE_WITHOUT_TYPES = """
import os, sys
from pathlib import Path
from rtdebug.tracing.compiler import compile_program
from rtdebug.tracing.program import program_source
content = compile_program(program_source(), Path(sys.argv[1]), typed=False).to_bytes("")
Path(sys.argv[2]).write_bytes(content)
os._exit(0)
"""


def without_types(document: dict[str, Any]) -> None:
    """Take the programs that are compiled where the kernel has no typed tracepoints."""
    with tempfile.TemporaryDirectory(prefix="rtdebug-") as name:
        folder = Path(name)
        command = [sys.executable, "-c", COMPILE_WITHOUT_TYPES, folder / "shim", folder / "program"]
        subprocess.run(command, cwd=ROOT, check=True)
        untyped = json.loads((folder / "program").read_bytes())
    assert untyped["tracepoint_ids"] == {}
    document.update(untyped, made_for=document["made_for"])


@pytest.mark.parametrize(
    ("way", "change", "attempt"),
    [
        pytest.param("fentry", None, trials.try_fentry, id="fentry"),
        pytest.param("kprobe", without_fentry, trials.try_kprobe, id="kprobe"),
        pytest.param("none", without_function_probes, None, id="none"),
    ],
)
def test_what_was_short_without_the_kernel_log(
    way: str,
    change: Callable[[dict[str, Any]], None] | None,
    attempt: Callable[[str], None] | None,
    compiled: Path,
    tmp_path: Path,
) -> None:
    """The program on out_of_memory() says it; without it, the full cgroup is found by its numbers."""
    if attempt is not None:
        needs(attempt, "out_of_memory")
    with (
        forced(change, compiled, tmp_path) as environment,
        memory_cgroup(LIMIT) as parent,
        memory_cgroup(4 * LIMIT, parent=parent) as cgroup,
        Workload("oom", 2 * LIMIT, cgroup=cgroup) as workload,
        Trace(target(parent), environment=environment, wrap=no_kernel_log()) as trace,
    ):
        trace.wait_for_notice("kernel log")
        workload.go()
        workload.finish()
    report = trace.result.one("oom_kill", pid=workload.pid)
    assert (report["constraint"], report["oom_memcg"]) == ("memcg", f"/{parent.name}")
    probed = way != "none"
    assert report["limit_source"] == ("out_of_memory" if probed else "at_limit")
    assert report["order"] == (0 if probed else None)
    assert (report["gfp_mask"] is not None) == probed
    if probed:
        note(way, Counter({"oom_kill: cgroup, order, gfp_mask": 1}))
