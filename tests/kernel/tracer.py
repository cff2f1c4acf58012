"""Runs `rtdebug` as its users do: a process of its own, known by what it prints and how it ends.

    with Trace(f"cgroup:{cgroup}", "-o", "json") as trace:
        ...                     # attached: the workload may go
        ended = trace.stop()
    assert ended.returncode == 0
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kernel import leftovers

ROOT = Path(__file__).parent.parent.parent
RTDEBUG = (sys.executable, "-m", "rtdebug")
PATIENCE_S = 30


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended. `returncode` is as in subprocess."""

    returncode: int
    stdout: bytes
    stderr: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        """All JSON lines; each of them must parse."""
        return [json.loads(line) for line in self.stdout.splitlines()]

    @property
    def summary(self) -> dict[str, Any]:
        """The last JSON line."""
        summary = self.lines[-1]
        assert summary["event"] == "summary"
        return summary

    def events(self, *names: str) -> list[dict[str, Any]]:
        """JSON lines of these events."""
        return [line for line in self.lines if line["event"] in names]

    def total(self, event: str) -> dict[str, int]:
        """Count, failures and bytes of an event in the summary."""
        found = [total for total in self.summary["event_totals"] if total["event"] == event]
        return found[0] if found else {"count": 0, "failures": 0, "length_bytes": 0}


def environment(**more: str) -> dict[str, str]:
    """Our own environment, with this repository's rtdebug in any folder."""
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


def rtdebug(*arguments: object, timeout_s: float = 60, **options: Any) -> Ended:
    """Run rtdebug to its end."""
    command = [*RTDEBUG, *map(str, arguments)]
    options.setdefault("env", environment())
    done = subprocess.run(command, capture_output=True, timeout=timeout_s, check=False, **options)
    return Ended(done.returncode, done.stdout, done.stderr.decode(errors="backslashreplace"))


def shell(script: str, *arguments: object, timeout_s: float = 60, env: Mapping[str, str] | None = None) -> Ended:
    """Run a shell script in which `$rtdebug` is the command; `$1` and so on are the arguments."""
    text = f"rtdebug={shlex.quote(shlex.join(RTDEBUG))}\n{script}"
    command = ["bash", "-c", text, "bash", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, timeout=timeout_s, check=False, env=env or environment())
    return Ended(done.returncode, done.stdout, done.stderr.decode(errors="backslashreplace"))


def wait_until(true: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> Any:
    """Ask until the answer is true, and return it."""
    deadline = time.monotonic() + patience_s
    while not (answer := true()):
        assert time.monotonic() < deadline, f"not within {patience_s} s: {what}"
        time.sleep(0.02)
    return answer


def loaded_programs() -> set[int]:
    """Ids of all BPF programs of this host."""
    return {number for number, _ in leftovers.programs()}


class Trace:
    """A running `rtdebug trace`, attached when the constructor returns. In a `with` block it never stays.

    `wrap` is a command that starts another; `command` one of rtdebug that traces by another name.
    """

    def __init__(
        self,
        *arguments: object,
        attached: bool = True,
        wrap: Sequence[str] = (),
        command: str = "trace",
        **options: Any,
    ) -> None:
        self._files = ExitStack()
        files = (tempfile.TemporaryFile(), tempfile.TemporaryFile())  # noqa: SIM115 - __exit__ does
        self._stdout, self._stderr = map(self._files.enter_context, files)
        options.setdefault("env", environment())
        options.setdefault("stdout", self._stdout)
        options.setdefault("cwd", "/")
        options.setdefault("stdin", subprocess.DEVNULL)
        words = [*wrap, *RTDEBUG, command, *map(str, arguments)]
        self.process = subprocess.Popen(words, stderr=self._stderr, **options)
        self.pid = self.process.pid
        if attached:
            try:
                self.wait_for("Tracing ")
            except BaseException:
                self.__exit__()
                raise

    def __enter__(self) -> Trace:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._files.close()

    def programs(self) -> set[int]:
        """Ids of the BPF programs it holds."""
        return set(leftovers.held_bpf(self.pid)["prog"])

    def stderr(self) -> str:
        """What it said so far."""
        size = os.fstat(self._stderr.fileno()).st_size
        return os.pread(self._stderr.fileno(), size, 0).decode(errors="backslashreplace")

    def stdout(self, offset: int = 0) -> bytes:
        """What it showed so far, from `offset` on."""
        size = os.fstat(self._stdout.fileno()).st_size
        return os.pread(self._stdout.fileno(), size - offset, offset)

    def wait_for(self, text: str) -> None:
        """Wait until it says `text` on standard error."""

        def said() -> bool:
            ended = self.process.poll() is not None
            found = text in self.stderr()
            assert found or not ended, f"ended with {self.process.returncode}: {self.stderr()}"
            return found

        wait_until(said, f"{text!r} on standard error")

    def wait_for_output(self, text: str) -> None:
        """Wait until it shows `text` on standard output."""
        wait_until(lambda: text.encode() in self.stdout(), f"{text!r} on standard output")

    def stop(self, number: int = signal.SIGINT) -> Ended:
        """Send it a signal, and wait for its end."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self, timeout_s: float = PATIENCE_S) -> Ended:
        """Wait for its end."""
        returncode = self.process.wait(timeout_s)
        return Ended(returncode, self.stdout(), self.stderr())
