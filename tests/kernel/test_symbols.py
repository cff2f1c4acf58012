"""Symbols of real processes: every kind of binary, other namespaces, deleted files, code made at run time.

The second witness is the process itself: it prints the addresses of its functions.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rtdebug.tracing.symbols import Symbolizer

pytestmark = pytest.mark.kernel

WORKLOADS = Path(__file__).parents[1] / "workloads"
FLAGS = ["-O1", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls"]


def compile_c(source: str, target: Path, *flags: str) -> Path:
    subprocess.run(["cc", *FLAGS, "-o", target, WORKLOADS / source, *flags], check=True)
    return target


@dataclass
class Target:
    """A running symbols_target and what it said of itself."""

    process: subprocess.Popen[str]
    pid: int = 0
    ns_pid: int = 0
    functions: dict[str, int] = field(default_factory=dict)
    stack: list[int] = field(default_factory=list)
    jit: int | None = None
    perf_map: Path | None = None

    def read_until_ready(self) -> None:
        for line in self.process.stdout:
            word, *values = line.split()
            match word:
                case "pid":
                    self.ns_pid = int(values[0])
                case "function":
                    self.functions[values[0]] = int(values[1], 16)
                case "stack":
                    self.stack = [int(value, 16) for value in values]
                case "jit":
                    self.jit, self.perf_map = int(values[0], 16), Path(values[1])
                case "ready":
                    return
        raise AssertionError(f"target ended with {self.process.wait()}")

    def ask(self, line: str) -> str:
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().split()[1]

    def end(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def running(*command: object) -> Iterator[Target]:
    process = subprocess.Popen(
        [str(word) for word in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    target = Target(process, process.pid)
    try:
        target.read_until_ready()
        yield target
    finally:
        process.stdin.close()  # its end of file
        process.wait(10)
        process.stdout.close()
        if target.perf_map is not None:
            target.perf_map.unlink(missing_ok=True)


def texts(target: Target, *names: str, symbolizer: Symbolizer | None = None) -> list[str]:
    symbolizer = symbolizer or Symbolizer()
    addresses = [target.functions[name] + 1 for name in names]
    return [str(symbolizer.symbolize(target.pid, target.ns_pid, [address])[0]) for address in addresses]


@pytest.fixture(scope="module")
def binaries(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("binaries")
    dynamic = compile_c("symbols_target.c", folder / "dynamic", "-rdynamic", "-DWITH_DLOPEN")
    stripped = folder / "stripped"
    subprocess.run(["strip", "-o", stripped, dynamic], check=True)
    return {
        "dynamic": dynamic,
        "no-pie": compile_c("symbols_target.c", folder / "no-pie", "-no-pie"),
        "static": compile_c("symbols_target.c", folder / "static", "-static"),
        "static-pie": compile_c("symbols_target.c", folder / "static-pie", "-static-pie"),
        "stripped": stripped,
        "mini": add_minidebuginfo(dynamic, stripped, folder),
        "other": compile_c("symbols_target.c", folder / "other", "-rdynamic", "-DPREFIX=other_"),
    }


def add_minidebuginfo(full: Path, stripped: Path, folder: Path) -> Path:
    """As in the GDB manual, "MiniDebugInfo"."""
    debug, mini = folder / "debug", folder / "mini"
    subprocess.run(["objcopy", "-S", "--keep-symbol=target_hidden", full, debug], check=True)
    subprocess.run(["xz", "-k", debug], check=True)
    subprocess.run(
        ["objcopy", "--add-section", f".gnu_debugdata={debug}.xz", stripped, mini],
        check=True,
        stderr=subprocess.DEVNULL,
    )
    return mini


@pytest.mark.parametrize("name", ["dynamic", "no-pie", "static", "static-pie", "mini"])
def test_functions_and_stack(binaries, name):
    with running(binaries[name]) as target:
        assert texts(target, "leaf", "middle", "hidden") == [
            f"target_leaf+0x1 ({name})",
            f"target_middle+0x1 ({name})",
            f"target_hidden+0x1 ({name})",
        ]
        frames = Symbolizer().symbolize(target.pid, target.ns_pid, target.stack)
        assert [frame.symbol for frame in frames] == ["target_leaf", "target_middle", "target_outer", "main"]
        assert [frame.address for frame in frames] == target.stack
        assert all(frame.offset_bytes > 0 for frame in frames)
        assert frames[0].module == str(binaries[name])


def test_stripped_program_has_its_exported_functions(binaries):
    with running(binaries["stripped"]) as target:
        leaf, hidden, malloc = texts(target, "leaf", "hidden", "malloc")
    assert leaf == "target_leaf+0x1 (stripped)"
    nm = subprocess.run(["nm", binaries["dynamic"]], check=True, capture_output=True, text=True).stdout
    value = next(int(line.split()[0], 16) for line in nm.splitlines() if line.endswith(" target_hidden"))
    assert hidden == f"[unknown] (stripped+{value + 1:#x})"
    assert malloc.startswith("malloc+0x1 (libc.so")


def test_libc_of_a_dynamic_and_of_a_static_program(binaries):
    with running(binaries["dynamic"]) as target:
        assert texts(target, "malloc", "madvise") == ["malloc+0x1 (libc.so.6)", "madvise+0x1 (libc.so.6)"]
    with running(binaries["static"]) as target:
        assert texts(target, "malloc", "madvise") == ["malloc+0x1 (static)", "madvise+0x1 (static)"]


def test_one_symbolizer_for_all(binaries):
    symbolizer = Symbolizer()
    with running(binaries["dynamic"]) as one, running(binaries["other"]) as two:
        for _ in range(2):
            assert texts(one, "leaf", "malloc", symbolizer=symbolizer) == [
                "target_leaf+0x1 (dynamic)",
                "malloc+0x1 (libc.so.6)",
            ]
            assert texts(two, "leaf", "malloc", symbolizer=symbolizer) == [
                "other_leaf+0x1 (other)",
                "malloc+0x1 (libc.so.6)",
            ]


def test_deleted_after_start_and_replaced(binaries, tmp_path):
    program = tmp_path / "program"
    shutil.copy(binaries["dynamic"], program)
    with running(program) as target:
        program.unlink()
        shutil.copy(binaries["other"], program)
        assert texts(target, "leaf") == ["target_leaf+0x1 (program)"]


def test_other_mount_namespace_hides_the_path(binaries, tmp_path):
    """The host has another program at the same path."""
    inside, seen = tmp_path / "inside", tmp_path / "seen"
    inside.mkdir()
    seen.mkdir()
    shutil.copy(binaries["dynamic"], inside / "program")
    shutil.copy(binaries["other"], seen / "program")
    script = f'mount --bind "{inside}" "{seen}" && exec "{seen}/program"'
    with running("unshare", "-m", "--propagation", "private", "sh", "-c", script) as target:
        assert texts(target, "leaf") == ["target_leaf+0x1 (program)"]
        assert (
            Symbolizer().symbolize(target.pid, None, [target.functions["leaf"]])[0].module
            == f"{seen}/program"
        )


def test_perf_map_of_a_process_in_other_namespaces(binaries):
    """Its /tmp is its own, and its pid there is another."""
    # The program itself lies below /tmp: it is kept open.
    keep = f'exec 8<"{binaries["static"]}" && mount -t tmpfs rtdebug-symbols /tmp && exec /proc/self/fd/8'
    command = ["unshare", "-m", "-p", "-f", "--mount-proc", "--propagation", "private", "bash", "-c", keep]
    with running(*command) as target:
        assert target.ns_pid == 1
        assert not Path("/tmp/perf-1.map").exists()
        target.pid = only_child(target.process.pid)
        symbolizer = Symbolizer()
        assert texts(target, "leaf", symbolizer=symbolizer)[0].startswith("target_leaf+0x1 (")
        (frame,) = symbolizer.symbolize(target.pid, target.ns_pid, [target.jit + 5])
        assert str(frame) == "LazyCompile:*hot file.js:7+0x5 (perf-1.map)"
        (frame,) = symbolizer.symbolize(target.pid, target.ns_pid, [target.jit + 0x40])
        assert str(frame) == "[unknown] ([anon]+0x40)"
        target.perf_map = None


def kill_and_wait(pid: int) -> None:
    """Of a process that is not our child."""
    pidfd = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        assert select.select([pidfd], [], [], 10)[0]
    finally:
        os.close(pidfd)


def only_child(pid: int) -> int:
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


def test_library_loaded_later(binaries, tmp_path):
    library = compile_c("symbols_library.c", tmp_path / "lib late\x1b.so", "-shared", "-fPIC")
    link = tmp_path / "link.so"
    link.symlink_to(library)
    symbolizer = Symbolizer()
    with running(binaries["dynamic"]) as target:
        texts(target, "leaf", symbolizer=symbolizer)
        address = int(target.ask(f"load {link} library_call"), 16)
        assert address
        (frame,) = symbolizer.symbolize(target.pid, target.ns_pid, [address])
    assert frame.symbol == "library_call"
    assert frame.module == str(library)


def test_process_that_is_gone(binaries):
    symbolizer = Symbolizer()
    with running(binaries["dynamic"]) as target:
        before = symbolizer.symbolize(target.pid, target.ns_pid, target.stack)
        target.end()
        assert symbolizer.symbolize(target.pid, target.ns_pid, target.stack) == before
        # Never asked for, but in a file that was read.
        assert texts(target, "hidden", symbolizer=symbolizer) == ["target_hidden+0x1 (dynamic)"]
        unknown = Symbolizer().symbolize(target.pid, target.ns_pid, target.stack)
        assert [str(frame) for frame in unknown] == [f"[unknown] ({address:#x})" for address in target.stack]


def test_child_that_is_gone_before_it_is_looked_at(binaries):
    symbolizer = Symbolizer()
    with running(binaries["dynamic"]) as target:
        expected = symbolizer.symbolize(target.pid, target.ns_pid, target.stack)
        child = int(target.ask("fork"))
        symbolizer.forked(target.pid, child)
        kill_and_wait(child)
        target.end()
        assert symbolizer.symbolize(child, child, target.stack) == expected
        symbolizer.execed(child)
        assert {frame.symbol for frame in symbolizer.symbolize(child, child, target.stack)} == {None}


def test_vdso():
    vdso = ctypes.CDLL("linux-vdso.so.1")
    name = "__vdso_clock_gettime" if os.uname().machine == "x86_64" else "__kernel_clock_gettime"
    address = ctypes.cast(vdso[name], ctypes.c_void_p).value
    (frame,) = Symbolizer().symbolize(os.getpid(), os.getpid(), [address])
    assert frame.module == "[vdso]"
    assert frame.symbol.endswith("clock_gettime")
    assert frame.offset_bytes == 0
