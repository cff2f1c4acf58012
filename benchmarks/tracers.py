"""The tracers that are compared. Each is a context manager: inside it the tracer is attached."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from rtdebug.errors import RtdebugError

ROOT = Path(__file__).parent.parent
_PATIENCE_S = 60
_LOOK_S = 0.0005
_READY = b"Tracing"
_bytecode = TemporaryDirectory(prefix="rtdebug-bench-")


@dataclass(frozen=True, slots=True)
class Tracer:
    """A running tracer."""

    process: subprocess.Popen[bytes]
    output: Path
    """What it prints."""

    def memory_bytes(self, name: str) -> int:
        """Return `Rss` or `Pss` of /proc/PID/smaps_rollup (man page proc_pid_smaps(5))."""
        for line in Path(f"/proc/{self.process.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
        raise RtdebugError(f"no {name} of process {self.process.pid}")

    def cpu_ns(self) -> int:
        """Return the time it spent on a CPU, user and system (Documentation/scheduler/sched-stats.rst)."""
        return int(Path(f"/proc/{self.process.pid}/schedstat").read_text().split()[0])


def python_environment() -> dict[str, str]:
    """Return an environment in which Python keeps its bytecode, as it does for an installed rtdebug."""
    inherited = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    return inherited | {"PYTHONPYCACHEPREFIX": _bytecode.name}


@contextmanager
def rtdebug(target: str, *options: str, cache: Path | None = None) -> Iterator[Tracer]:
    """`rtdebug trace TARGET -o json OPTIONS`."""
    environment = python_environment() | ({"RTDEBUG_CACHE": str(cache)} if cache else {})
    command = [sys.executable, "-m", "rtdebug", "trace", target, "-o", "json", *options]
    with _attached(command, environment) as tracer:
        yield tracer


@contextmanager
def bpftrace(program: str) -> Iterator[Tracer]:
    """bpftrace. It prints what BEGIN says only after the last probe is attached."""
    text = f'BEGIN {{ printf("{_READY.decode()}\\n"); }}\n{program}'
    with _attached(["bpftrace", "-B", "line", "-e", text], dict(os.environ)) as tracer:
        yield tracer


@contextmanager
def stock_bcc(arguments: Sequence[str], headers: Path) -> Iterator[Tracer]:
    """bcc of the distribution in its Python: compiles in its own process and goes on tracing in it."""
    command = ["/usr/bin/python3", str(Path(__file__).with_name("stock_bcc.py")), _READY.decode(), *arguments]
    with _attached(command, {**os.environ, "BCC_KERNEL_SOURCE": str(headers)}) as tracer:
        yield tracer


@contextmanager
def _attached(command: Sequence[str], environment: dict[str, str]) -> Iterator[Tracer]:
    """Start a tracer, wait for its line `Tracing`, end it by SIGINT at the end."""
    with TemporaryDirectory(prefix="rtdebug-bench-") as folder:
        output, messages = Path(folder) / "output", Path(folder) / "messages"
        with output.open("wb") as stdout, messages.open("wb") as stderr:
            process = subprocess.Popen(
                [*command],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
            )
        tracer = Tracer(process, output)
        try:
            _wait_until_ready(process, (output, messages))
            yield tracer
            process.send_signal(signal.SIGINT)
            process.wait(_PATIENCE_S)
        finally:
            process.kill()
            process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], files: Sequence[Path]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not any(line.startswith(_READY) for file in files for line in file.read_bytes().splitlines()):
        if process.poll() is not None or time.monotonic() > deadline:
            words = b"\n".join(file.read_bytes() for file in files).decode(errors="replace")
            raise RtdebugError(f"{process.args!r:.80} did not start to trace", words[-2000:])
        time.sleep(_LOOK_S)
