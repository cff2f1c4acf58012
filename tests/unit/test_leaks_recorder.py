"""The loop of `rtdebug leaks record`, on a tree of cgroups of our own, and what it says."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import signal
import struct
import termios
import threading
import time
from pathlib import Path

import pytest

from rtdebug.containers.model import Container
from rtdebug.host.cgroup import MemoryHierarchy
from rtdebug.leaks.recorder import Progress, Recorder
from rtdebug.leaks.sample import Sample, Sampler
from rtdebug.leaks.selection import Selection
from rtdebug.leaks.store import read_series
from rtdebug.leaks.tables import SITES, Row
from rtdebug.leaks.writer import StoreWriter
from rtdebug.render.leaks_record import ready_line, status_line, summary_json, summary_text
from rtdebug.render.terminal import StatusLine
from tests.unit.test_leaks_sample import V2, make_cgroup

ID = "4f9b0c3d2e1a" + "0" * 52
PROGRESS = Progress(
    containers=1000,
    processes=1,
    samples=7,
    missed=0,
    lost_rows=0,
    elapsed_ns=90 * 10**9,
    cpu_ns=9 * 10**8,
    size_bytes=5 << 20,
)


class Sites:
    """A source of sites that is slow."""

    def __init__(self, slow_s: float = 0.0) -> None:
        self.watched: list[set[int]] = []
        self._slow_s = slow_s

    def watch(self, sample: Sample) -> None:
        self.watched.append(set(sample.pids))

    def rows(self, time_ns: int) -> list[Row]:
        time.sleep(self._slow_s)
        return [tuple({"time_ns": time_ns, "kind": "mmap"}.get(name) for name in SITES)]


def recorder(tmp_path: Path, sites: Sites | None = None, **options) -> tuple[Recorder, list[Progress]]:
    make_cgroup(tmp_path / "cgroup/a", V2, (os.getpid(),))
    hierarchy = MemoryHierarchy(2, tmp_path / "cgroup")
    told: list[Progress] = []
    selection = Selection(hierarchy, [Container("a", None, None, 1, "running", "/a")], ("a",), ())
    writer = StoreWriter(tmp_path / "store", "red", 1 << 30, print)
    run = Recorder(selection, Sampler(hierarchy, "red"), writer, sites=sites, tell=told.append, **options)
    return run, told


def rows(tmp_path: Path) -> int:
    return len(read_series([tmp_path / "store"]).cgroups)


def test_a_duration_and_a_grid_of_times(tmp_path: Path) -> None:
    sites = Sites()
    run, told = recorder(tmp_path, sites, interval_s=0.1, duration_s=0.55)
    ready: list[int] = []
    began_s = time.monotonic()
    progress = run.run(lambda: ready.append(len(told)))
    assert time.monotonic() - began_s >= 0.55
    assert ready == [1], "after the first sample"
    assert progress.samples + progress.missed >= 6
    assert progress.samples == len(told) == len(sites.watched)
    assert sites.watched[0] == {os.getpid()}
    assert (progress.containers, progress.processes) == (1, 1)
    assert rows(tmp_path) == 1, "who reads the store sees the first sample at once"


def test_samples_that_come_too_late_are_counted_not_caught_up(tmp_path: Path) -> None:
    run, _ = recorder(tmp_path, Sites(slow_s=0.25), interval_s=0.1, duration_s=0.8)
    progress = run.run(lambda: None)
    assert progress.missed >= 2
    assert progress.samples <= 5


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_properly(tmp_path: Path, number: signal.Signals) -> None:
    run, _ = recorder(tmp_path, interval_s=60)
    before = signal.getsignal(number)
    began_s = time.monotonic()
    threading.Timer(0.3, os.kill, (os.getpid(), number)).start()
    assert run.run(lambda: None).samples == 1
    assert time.monotonic() - began_s < 30
    assert signal.getsignal(number) is before


def test_new_cgroups_of_containers_are_found_by_their_path(tmp_path: Path) -> None:
    make_cgroup(tmp_path / "docker", V2)
    now_s = 0.0
    selection = Selection(MemoryHierarchy(2, tmp_path), [], (), (), lambda: now_s)
    assert selection.containers() == []
    make_cgroup(tmp_path / "docker" / ID / "inner", V2)
    make_cgroup(tmp_path / "system.slice/cron.service", V2)
    (found,) = selection.containers()
    assert (found.id, found.runtime, found.name, found.cgroup) == (ID, "docker", None, f"/docker/{ID}")


def test_names_win_over_paths(tmp_path: Path) -> None:
    make_cgroup(tmp_path / "docker" / ID / "inner", V2)
    named = Container(ID, "web", "docker", 1, "running", f"/docker/{ID}")
    assert Selection(MemoryHierarchy(2, tmp_path), [named], (), (), lambda: 0.0).containers() == [named]


def test_the_status_line() -> None:
    line = "1,000 containers, 1 process: 7 samples in 1 min 30 s, 5 MiB, 1.0% of a CPU"
    assert status_line(PROGRESS) == line
    assert len(line) <= 100


def test_the_summary() -> None:
    store = Path("/var/lib/x")
    assert summary_text(PROGRESS, store).splitlines()[1:] == [
        "Recorded to /var/lib/x; see `rtdebug leaks report /var/lib/x`."
    ]
    bad = Progress(1, 2, 3, missed=1, lost_rows=5, elapsed_ns=10**9, cpu_ns=1, size_bytes=0)
    assert summary_text(bad, store).splitlines()[1:3] == [
        "1 sample missed: sampling took longer than the interval",
        "5 rows lost: the store could not be written",
    ]
    assert json.loads(summary_json(PROGRESS, store)) == {
        "store": "/var/lib/x",
        **{name: getattr(PROGRESS, name) for name in Progress.__slots__},
    }


def test_the_ready_line() -> None:
    assert ready_line(Path("s"), 10.0, (), ()).startswith("Recording all containers of this host every 10 s into s.")
    line = ready_line(Path("s"), 0.5, ("web", "db"), ("stacks", "malloc"))
    assert line.startswith("Recording web, db and allocation sites (stacks, malloc) every 0.5 s into s.")


def test_a_status_line_on_a_terminal_only() -> None:
    plain = io.StringIO()
    status = StatusLine(plain)
    status.show("x")
    status.clear()
    assert plain.getvalue() == ""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 5, 0, 0))
    with os.fdopen(follower, "w") as terminal:
        status = StatusLine(terminal)
        status.show("samples")
        status.clear()
        status.clear()
        expected = b"\r\x1b[Ksamp\r\x1b[K"
        shown = b""
        while len(shown) < len(expected):  # a terminal gives what has arrived so far
            shown += os.read(leader, 1000)
        assert shown == expected
    os.close(leader)
