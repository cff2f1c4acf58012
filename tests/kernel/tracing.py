"""Runs `rtdebug trace` as its user does: as a process of its own, known by its JSON lines and its standard error.

    with Workload("madvise", 23, "MADV_COLD", cgroup=cgroup) as workload, Trace(target(cgroup)) as trace:
        workload.go()
        workload.finish()
    assert trace.result.count("madvise") == 23

A workload waits at its gate while the trace attaches, so nothing of it is missed and nothing before it is seen.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

from tests.kernel import tracer
from tests.kernel.tracer import PATIENCE_S, ROOT, wait_until
from tests.kernel.workload import Workload, memory_mount

PAGE = os.sysconf("SC_PAGE_SIZE")
T = TypeVar("T")

Event = dict[str, Any]


def target(cgroup: Path) -> str:
    """Return the TARGET that means a folder of the memory controller."""
    return f"cgroup:/{cgroup.relative_to(memory_mount()[0])}"


@dataclass(frozen=True, slots=True)
class Traced:
    """What a trace that has ended said."""

    returncode: int
    events: tuple[Event, ...]
    """All lines but the summary."""
    summary: Event | None
    stderr: tuple[str, ...]
    """Its lines."""

    def of(self, *names: str, **fields: object) -> list[Event]:
        """Return the events of these names whose fields have these values."""
        return [event for event in self.events if event["event"] in names and _has(event, fields)]

    def count(self, *names: str, **fields: object) -> int:
        """Return how many calls these events stand for: an aggregated line stands for several."""
        return sum(event.get("count", 1) for event in self.of(*names, **fields))

    def one(self, name: str, **fields: object) -> Event:
        """Return the only such event."""
        found = self.of(name, **fields)
        assert len(found) == 1, f"{len(found)} events {name} with {fields}: {found or self.events}"
        return found[0]


def _has(event: Event, fields: Mapping[str, object]) -> bool:
    return all(key in event and event[key] == value for key, value in fields.items())


class Trace:
    """A running trace in a `with` block, attached from its first line on. `result` is there after the block.

    `wrap` is a command that starts another, for example `setpriv ...`; `command` one that traces by another name.
    """

    def __init__(
        self,
        *arguments: object,
        wrap: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        command: str = "trace",
    ) -> None:
        more = {**os.environ, **(environment or {})}
        self._start = partial(
            tracer.Trace, *arguments, "-o", "json", wrap=wrap, command=command, cwd=ROOT, env=more
        )
        self._events: list[Event] = []
        self._heard_bytes = 0
        self._result: Traced | None = None

    def __enter__(self) -> Self:
        self._trace = self._start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._trace:
            if kind is None:
                self.stop()

    @property
    def pid(self) -> int:
        """Of the tracing process."""
        return self._trace.pid

    @property
    def result(self) -> Traced:
        """What it said. Only after stop(), finish() or the `with` block."""
        assert self._result is not None, "the trace still runs"
        return self._result

    def stop(self) -> Traced:
        """End it as Ctrl-C does, and return what it said."""
        if self._result is None and self._trace.process.poll() is None:
            self._trace.process.send_signal(signal.SIGINT)
        return self.finish()

    def finish(self) -> Traced:
        """Wait until it ends by itself, and return what it said."""
        if self._result is None:
            ended = self._trace.wait(PATIENCE_S)
            events = self._hear()
            ends = [event for event in events if event["event"] == "summary"]
            assert len(ends) <= 1, ends
            assert not ends or events[-1] is ends[0], "something came after the summary"
            self._result = Traced(
                ended.returncode,
                tuple(event for event in events if event["event"] != "summary"),
                ends[0] if ends else None,
                tuple(ended.stderr.splitlines()),
            )
        return self._result

    def wait_for(self, name: str, **fields: object) -> Event:
        """Wait for an event while the trace runs, and return the first of its kind."""
        return self._wait(lambda: self._first(name, fields), f"{name} {fields}")

    def wait_for_notice(self, part: str) -> str:
        """Wait for a line on standard error that holds `part`."""

        def found() -> str | None:
            return next((line for line in self._trace.stderr().splitlines() if part in line), None)

        return self._wait(found, f"a notice with {part!r}")

    def _first(self, name: str, fields: Mapping[str, object]) -> Event | None:
        return next((event for event in self._hear() if event["event"] == name and _has(event, fields)), None)

    def _hear(self) -> list[Event]:
        """All events up to now."""
        *lines, _ = self._trace.stdout(self._heard_bytes).split(b"\n")
        self._heard_bytes += sum(len(line) + 1 for line in lines)
        self._events += map(json.loads, lines)
        return self._events

    def _wait(self, answer: Callable[[], T | None], what: str) -> T:
        def answered() -> T | None:
            dead = self._trace.process.poll() is not None
            found = answer()
            assert found or not dead, f"no {what}: it ended, {self._trace.stderr()} {self._events}"
            return found

        return wait_until(answered, what)


_PREAMBLE = """
import ctypes, errno, json, mmap, os, signal, sys, time
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long

def call(number, *arguments):
    "A system call as it is: its result, or -errno."
    ctypes.set_errno(0)
    kept = [ctypes.c_long(a) if isinstance(a, int) else ctypes.c_char_p(a) for a in arguments]
    result = _libc.syscall(ctypes.c_long(number), *kept)
    return -ctypes.get_errno() if result == -1 and ctypes.get_errno() else result

def say(**values):
    print(json.dumps(values), flush=True)

def wait():
    "Until the test says go()."
    assert sys.stdin.readline()

sys.dont_write_bytecode = True
say(pid=os.getpid())
wait()
"""


class Script:
    """A Python workload, for calls that want exact arguments. Waits at its gate like a `Workload`.

    It has call(number, ...), say(key=value, ...) and wait(), see _PREAMBLE. `wrap` is a command that executes it,
    for example in namespaces of its own.
    """

    def __init__(self, text: str, *arguments: object, cgroup: Path | None = None, wrap: Sequence[str] = ()) -> None:
        self._process = subprocess.Popen(
            [*wrap, sys.executable, "-I", "-S", "-c", _PREAMBLE + text, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._stderr = ""
        try:
            self.pid: int = self.hear()["pid"]
            if cgroup is not None:
                (cgroup / "cgroup.procs").write_text(str(self.pid))
        except BaseException:
            self.__exit__()
            raise

    def hear(self) -> dict[str, Any]:
        """Wait for the next thing it says."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            _, self._stderr = self._process.communicate(timeout=PATIENCE_S)
            raise AssertionError(f"the script ended with {self._process.returncode}: {self._stderr}")
        heard: dict[str, Any] = json.loads(line)
        return heard

    def lines(self) -> Iterator[str]:
        """Give what it prints until its end, when that is no longer a script's own."""
        assert self._process.stdout is not None
        yield from self._process.stdout

    def go(self) -> None:
        """Let it go on from where it waits."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def finish(self) -> int:
        """Wait for its end and return its exit status, as in subprocess."""
        _, self._stderr = self._process.communicate(timeout=PATIENCE_S)
        assert self._process.returncode <= 0, self._stderr
        return self._process.returncode

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()


def small_shm(size: str = "3m", *more: str) -> list[str]:
    """Return a command that executes another with a /dev/shm of its own, of this size."""
    options = ",".join([f"size={size}", *more])
    mount = f'mount -t tmpfs -o {options} rtdebug-test-shm /dev/shm && exec "$@"'
    return ["unshare", "--mount", "--ipc", "sh", "-c", mount, "sh"]


def no_kernel_log() -> list[str]:
    """Return a command that executes another for which /dev/kmsg is a device that is not there."""
    steps = ("mount -t tmpfs rtdebug-test-kmsg /mnt", "mknod /mnt/kmsg c 1 255", "mount --bind /mnt/kmsg /dev/kmsg")
    return ["unshare", "--mount", "sh", "-c", " && ".join([*steps, 'exec "$@"']), "sh"]


def run_traced(
    cgroup: Path, options: Iterable[object], name: str, *arguments: object
) -> tuple[Traced, dict[str, str], int]:
    """Run a workload in a traced cgroup; return what the trace said, the values of its last step, and its pid."""
    with Workload(name, *arguments, cgroup=cgroup) as workload, Trace(target(cgroup), *options) as trace:
        workload.go()
        result = workload.finish()
    return trace.result, result.steps[-1].values, workload.pid


def script_traced(
    text: str, cgroup: Path, *options: object, wrap: Sequence[str] = ()
) -> tuple[Traced, dict[str, Any], int]:
    """Run a script in a traced cgroup; return what the trace said, what the script said last, and its status."""
    with Script(text, cgroup=cgroup, wrap=wrap) as script, Trace(target(cgroup), *options) as trace:
        script.go()
        said = script.hear()
        status = script.finish()
    return trace.result, said, status
