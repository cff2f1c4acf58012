"""A live process calls madvise itself, and runs on as if nothing had been, whatever ends rtdebug meanwhile."""

from __future__ import annotations

import ctypes
import errno
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rtdebug.errors import TargetError
from rtdebug.host.child import Child
from rtdebug.host.maps import Mapping, SmapsEntry, read_maps, read_smaps
from rtdebug.madvise import inject as module
from rtdebug.madvise.advice import find_advice
from rtdebug.madvise.fitness import CannotInject
from rtdebug.madvise.inject import Process, call_madvise, examine
from rtdebug.madvise.tracee import Tracee
from tests.kernel.runtime_fixtures import wait_for
from tests.kernel.workload import MIB, Step, build, parse_steps

pytestmark = pytest.mark.kernel

HUGEPAGE, NOHUGEPAGE = find_advice("HUGEPAGE").number, find_advice("NOHUGEPAGE").number
DONTDUMP, DODUMP = find_advice("DONTDUMP").number, find_advice("DODUMP").number


class Target:
    """A workload that prints where its memory is and goes on."""

    def __init__(self, name: str, *arguments: object, wrapper: tuple[str, ...] = ()) -> None:
        self.process = subprocess.Popen(
            [*wrapper, str(build(name)), *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self.process.pid
        assert self.process.stdout is not None
        (memory,) = parse_steps(self.process.stdout.readline())
        self.address = int(memory.values["address"])

    def entry(self) -> SmapsEntry:
        return next(entry for entry in read_smaps(self.pid) if entry.mapping.start <= self.address < entry.mapping.end)

    def call(self, advice: int, length: int = MIB) -> module.Injected:
        return call_madvise(self.pid, (self.address, length, advice))

    def end(self) -> Step:
        """Close its input and return what it said last."""
        said, _ = self.process.communicate(timeout=30)
        assert self.process.returncode == 0
        return parse_steps(said)[-1]

    def __enter__(self) -> Target:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def test_the_advice_is_seen_in_smaps_and_taken_back() -> None:
    with Target("borrowed", 2, 4 * MIB) as target:
        assert target.call(DONTDUMP, 4 * MIB).result == 0
        assert "dd" in (target.entry().vm_flags or ())
        assert target.call(DODUMP, 4 * MIB).result == 0
        assert "dd" not in (target.entry().vm_flags or ())
        assert target.end().values["wrong"] == "0"


def test_what_madvise_refuses_is_told() -> None:
    with Target("borrowed", 1, MIB) as target:
        assert call_madvise(target.pid, (1 << 20, 4096, DONTDUMP)).result == -errno.ENOMEM
        assert call_madvise(target.pid, (target.address + 1, 4096, DONTDUMP)).result == -errno.EINVAL


def alone(function: Callable[[], None]) -> None:
    """As a child of rtdebug that injects: of one thread, with SIGCHLD blocked; here many times in one child, which is
    quicker. Other threads (numpy's, if a test before loaded it) would take the SIGCHLD that is waited for.
    """

    def run() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        function()

    Child(run).result()


def test_a_thousand_times_into_a_busy_process_of_16_threads() -> None:
    with Target("borrowed", 16, MIB) as target:
        process = examine(target.pid)
        tids = module.threads_by_fitness(target.pid, process.machine)
        assert len(tids) == 17
        assert tids[0] == target.pid  # it sleeps in read(2), the others compute

        def borrow_all() -> None:
            for index in range(1000):
                advice = DODUMP if index % 2 else DONTDUMP
                assert module._borrow(process, tids[index % 17], (target.address, MIB, advice)).result == 0

        alone(borrow_all)
        assert "dd" not in (target.entry().vm_flags or ())
        last = target.end()
    assert int(last.values["count"]) > 1000
    assert last.values["wrong"] == "0"


def test_a_sigchld_that_another_thread_took_is_not_waited_for() -> None:
    """As happens in a process whose libraries started threads: they do not block it, so the kernel gives it to them
    if it comes between a look and the waiting."""

    def borrow_some() -> None:
        waitpid = os.waitpid

        def look_and_dawdle(pid: int, options: int) -> tuple[int, int]:
            found = waitpid(pid, options)
            time.sleep(0 if found[0] else 0.005)
            return found

        os.waitpid = look_and_dawdle
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        began = time.monotonic()
        for _ in range(3):
            assert module.inject(process, (target.address, MIB, DODUMP)).result == 0
        assert time.monotonic() - began < 10

    with Target("borrowed", 2, MIB) as target:
        process = examine(target.pid)
        Child(borrow_some).result()


OPERATIONS = [name for name in vars(Tracee) if not name.startswith("_")]


def die_after(operation: int) -> None:
    """Kill this process when it has done so many operations on its tracee."""
    left = [operation]

    def counted(name: str) -> Callable[..., object]:
        original = getattr(Tracee, name)

        def call(*arguments: object) -> object:
            result = original(*arguments)
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return call

    for name in OPERATIONS:
        setattr(Tracee, name, counted(name))


def tracer(process: Process, target: Target, prepare: Callable[[], None], times: int) -> int:
    """Fork a process that injects; its pid."""
    pid = os.fork()
    if pid == 0:
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
            prepare()
            for index in range(times):
                module.inject(process, (target.address, MIB, DODUMP if index % 2 else DONTDUMP))
        finally:
            os._exit(7)
    return pid


def test_killed_after_every_single_step_the_target_runs_on() -> None:
    with Target("borrowed", 1, MIB) as target:
        process = examine(target.pid)
        statuses = []
        for operation in range(1, 60):
            pid = tracer(process, target, lambda operation=operation: die_after(operation), times=1)
            _, status = os.waitpid(pid, 0)
            statuses.append(os.waitstatus_to_exitcode(status))
            if statuses[-1] == 7:  # it came to its end first: all steps were tried
                break
            time.sleep(0.005)
            assert target.process.poll() is None, f"killed after step {operation}, the target is dead"
        assert statuses[-1] == 7
        assert statuses[:-1] == [-signal.SIGKILL] * (len(statuses) - 1)
        assert len(statuses) > 15
        assert target.call(DODUMP).result == 0
        assert target.end().values["wrong"] == "0"


def test_killed_two_hundred_times_in_the_middle_the_target_runs_on() -> None:
    chance = random.Random(5)
    with Target("borrowed", 4, MIB) as target:
        process = examine(target.pid)
        for _ in range(200):
            pid = tracer(process, target, lambda: None, times=1_000_000)
            time.sleep(0.004 + chance.random() * 0.01)
            os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
            assert target.process.poll() is None
        assert target.call(DODUMP).result == 0
        assert target.end().values["wrong"] == "0"


@pytest.mark.parametrize("call", ["nanosleep", "futex", "poll", "ppoll"])
def test_a_blocking_call_is_restarted_with_what_is_left_of_its_time(call: str) -> None:
    with Target("blocked", call) as target:
        time.sleep(0.4)
        assert target.call(DONTDUMP).result == 0
        assert "dd" in (target.entry().vm_flags or ())
        time.sleep(0.2)
        assert target.call(DODUMP).result == 0
        values = target.end().values
    result = "-1" if call == "futex" else "0"
    assert (values["result"], values["errno"]) == (result, "ETIMEDOUT" if call == "futex" else "0")
    assert 990 <= int(values["elapsed_ms"]) <= 1300


def test_a_read_that_waits_goes_on_waiting_and_gets_its_byte() -> None:
    with Target("blocked", "read") as target:
        time.sleep(0.1)
        for _ in range(3):
            assert target.call(DONTDUMP).result == 0
        assert target.process.stdin is not None
        target.process.stdin.write("x")
        values = target.end().values
    assert (values["result"], values["errno"]) == ("1", "0")


def test_epoll_wait_ends_with_eintr_as_by_any_stop_and_never_otherwise() -> None:
    with Target("blocked", "epoll") as target:
        time.sleep(0.1)
        assert target.call(DONTDUMP).result == 0
        assert target.end().values["errno"] == "EINTR"


def test_killed_in_a_blocking_call_it_ends_as_by_a_signal() -> None:
    """The signal frame is what is left: a sleep ends with EINTR, a read is called again."""
    for call, expected in (("nanosleep", ("-1", "EINTR")), ("read", ("1", "0"))):
        with Target("blocked", call) as target:
            time.sleep(0.1)
            process = examine(target.pid)

            def dying() -> None:
                original = Tracee.set_signal_mask

                def last(tracee: Tracee, mask: int) -> None:
                    original(tracee, mask)
                    os.kill(os.getpid(), signal.SIGKILL)

                Tracee.set_signal_mask = last  # type: ignore[method-assign]

            os.waitpid(tracer(process, target, dying, times=1), 0)
            if call == "read":
                wait_for(lambda target=target: "dd" in (target.entry().vm_flags or ()), "the call to be done alone")
            assert target.process.stdin is not None
            target.process.stdin.write("x")
            values = target.end().values
        assert (values["result"], values["errno"]) == expected


def test_no_signal_is_lost_while_threads_are_borrowed() -> None:
    """Sent to the process and to the very thread, before and between: real-time signals are never merged."""
    with Target("borrowed", 4, MIB) as target:
        process = examine(target.pid)
        tids = module.threads_by_fitness(target.pid, process.machine)
        tgkill = ctypes.CDLL(None, use_errno=True).tgkill

        def send_and_borrow() -> None:
            for index in range(500):
                tid = tids[index % len(tids)]
                os.kill(target.pid, signal.SIGRTMIN)
                assert tgkill(target.pid, tid, signal.SIGRTMIN) == 0
                assert module._borrow(process, tid, (target.address, MIB, DODUMP)).result == 0

        alone(send_and_borrow)
        values = target.end().values
    assert values["signals"] == "1000"
    assert values["wrong"] == "0"


def largest(pid: int) -> Mapping:
    """Its largest unnamed memory."""
    unnamed = [mapping for mapping in read_maps(pid) if not mapping.path and mapping.perms == "rw-p"]
    return max(unnamed, key=lambda mapping: mapping.length_bytes)


def test_a_python_process_as_a_real_target() -> None:
    code = "import time; x = bytearray(64 << 20); print(id(x), flush=True); time.sleep(0.5); print(sum(x), flush=True)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        mapping = largest(process.pid)
        assert call_madvise(process.pid, (mapping.start, mapping.length_bytes, HUGEPAGE)).result == 0
        flags = next(e.vm_flags for e in read_smaps(process.pid) if e.mapping.start == mapping.start)
        assert "hg" in (flags or ())
        said, _ = process.communicate(timeout=10)
        assert (process.returncode, said) == (0, "0\n")
    finally:
        process.kill()
        process.communicate()


def test_redis_answers_right_while_it_is_borrowed(tmp_path: Path) -> None:
    server = shutil.which("redis-server")
    assert server, "redis-server is needed: scripts/setup --test"
    path = tmp_path / "redis.sock"
    command = [server, "--port", "0", "--unixsocket", str(path), "--save", "", "--dir", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        wait_for(path.exists, "redis to listen")
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            client.settimeout(10)
            stream = client.makefile("rwb")
            found = examine(process.pid)
            mapping = largest(process.pid)

            def ask_and_borrow() -> None:
                for number in range(500):
                    stream.write(b"INCR n\r\n")
                    stream.flush()
                    if number % 2:
                        assert module.inject(found, (mapping.start, mapping.length_bytes, DODUMP)).result == 0
                    assert stream.readline() == b":%d\r\n" % (number + 1)

            alone(ask_and_borrow)
            assert process.poll() is None
    finally:
        process.terminate()
        process.wait(10)


def test_a_process_under_another_tracer_is_refused_by_its_name() -> None:
    strace = shutil.which("strace")
    assert strace
    with Target("borrowed", 1, MIB) as target:
        other = subprocess.Popen([strace, "-p", str(target.pid), "-o", "/dev/null"], stderr=subprocess.DEVNULL)
        try:
            wait_for(lambda: f"TracerPid:\t{other.pid}\n" in Path(f"/proc/{target.pid}/status").read_text(), "strace")
            with pytest.raises(CannotInject, match=f"by process {other.pid} .'strace'"):
                target.call(DONTDUMP)
        finally:
            other.terminate()
            other.wait(10)


def test_a_stopped_process_stays_stopped_and_is_refused() -> None:
    with Target("borrowed", 1, MIB) as target:
        os.kill(target.pid, signal.SIGSTOP)
        wait_for(lambda: ") T " in Path(f"/proc/{target.pid}/stat").read_text(), "the stop")
        with pytest.raises(CannotInject, match="is stopped"):
            target.call(DONTDUMP)
        assert ") T " in Path(f"/proc/{target.pid}/stat").read_text()
        os.kill(target.pid, signal.SIGCONT)
        assert target.end().values["wrong"] == "0"


def test_a_thread_on_a_piece_of_the_heap_is_left_alone() -> None:
    with Target("blocked", "coroutine") as target:
        time.sleep(0.1)
        with pytest.raises(CannotInject, match="coroutine"):
            target.call(DONTDUMP)
        assert "dd" not in (target.entry().vm_flags or ())
        assert target.process.stdin is not None
        target.process.stdin.write("x")
        assert target.end().values["result"] == "1"


def test_a_zombie_and_a_kernel_thread_are_refused() -> None:
    process = subprocess.Popen(["true"])
    try:
        wait_for(lambda: ") Z " in Path(f"/proc/{process.pid}/stat").read_text(), "its end")
        with pytest.raises(TargetError, match="has exited"):
            call_madvise(process.pid, (0, 4096, DONTDUMP))
    finally:
        process.wait()
    with pytest.raises(TargetError, match="thread of the kernel"):
        call_madvise(2, (0, 4096, DONTDUMP))


# seccomp ------------------------------------------------------------------------------------------

_FILTERED = """
import ctypes, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
program = b"".join(struct.pack("<HBBI", *line) for line in {program})
buffer = ctypes.create_string_buffer(program)
class Prog(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
assert libc.prctl(38, 1, 0, 0, 0) == 0
prog = Prog(len(program) // 8, ctypes.addressof(buffer))
assert libc.prctl(22, 2, ctypes.byref(prog)) == 0
print("ready", flush=True)
sys.stdin.read()
print("fine", flush=True)
"""
_ALLOW, _KILL, _EPERM = 0x7FFF0000, 0x80000000, 0x00050001


def madvise_is(action: int) -> list[tuple[int, int, int, int]]:
    number = module.architecture().MADVISE
    return [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, action), (0x06, 0, 0, _ALLOW)]


@pytest.mark.parametrize(
    ("action", "refusal"), [(_ALLOW, None), (_KILL, "kills the process"), (_EPERM, "fails it with an error")]
)
def test_a_seccomp_filter_is_asked_first(action: int, refusal: str | None) -> None:
    code = _FILTERED.format(program=madvise_is(action))
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        mapping = next(mapping for mapping in read_maps(process.pid) if mapping.path == "[heap]")
        arguments = (mapping.start, 4096, DODUMP)
        if refusal is None:
            assert call_madvise(process.pid, arguments).result == 0
        else:
            with pytest.raises(CannotInject, match=f"seccomp filter {refusal} when it calls madvise"):
                call_madvise(process.pid, arguments)
        said, _ = process.communicate(timeout=10)
        assert (process.returncode, said) == (0, "fine\n")
    finally:
        process.kill()
        process.communicate()


def test_strict_mode_is_refused() -> None:
    pid = os.fork()
    if pid == 0:
        libc = ctypes.CDLL(None)
        read_fd, _ = os.pipe()
        libc.prctl(22, 1, 0, 0, 0)
        os.read(read_fd, 1)
        os._exit(0)
    try:
        wait_for(lambda: "\nSeccomp:\t1" in Path(f"/proc/{pid}/status").read_text(), "strict mode")
        with pytest.raises(CannotInject, match="strict"):
            call_madvise(pid, (0, 4096, DONTDUMP))
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
