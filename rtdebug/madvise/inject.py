"""Makes a live process call madvise(2) itself: a thread of it is borrowed for one system call.

The method, so that the process runs on whenever and however rtdebug ends:

1. A child of ours, in a session of its own, seizes one thread and stops it (PTRACE_SEIZE, PTRACE_INTERRUPT).
2. Below the part of its stack that is in use, a signal frame with all of its registers and its signal mask is written,
   as the kernel writes one before a signal handler.
3. The registers are set, all in one ptrace(2) call, to `syscall; ret` with madvise's arguments, and the stack such that
   `ret` leads to rt_sigreturn(2). From here on the thread would do the call and restore itself with nobody's help.
4. Signals are blocked: the frame has the true mask.
5. The thread runs through the system call and is stopped again before it returns. Mask and registers are put back,
   in this order, and it is let go. So it is mostly not rt_sigreturn that restores it: that would end a sleep that the
   stop interrupted (restart_syscall(2)) with EINTR; the kernel restarts it when the registers are the old ones.

Killed before step 3, nothing has changed; after it, the frame does the rest. No breakpoint and no single step is used,
for their SIGTRAP would kill a process without tracer.

Sources: ptrace(2), sigreturn(2), kernel/ptrace.c, kernel/signal.c (`get_signal`, `ptrace_stop`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rtdebug.errors import HostUnable, RtdebugError, TargetError
from rtdebug.host.child import Child
from rtdebug.host.maps import read_maps
from rtdebug.host.process import read_stat
from rtdebug.host.text import parse_int, read_text
from rtdebug.madvise.advice import ADVICE
from rtdebug.madvise.arch import Architecture, Loan, ThreadState, architecture
from rtdebug.madvise.fitness import CannotInject, check_process, stacks
from rtdebug.madvise.gadgets import find_gadgets
from rtdebug.madvise.stopped import (
    Process,
    Unfit,
    UnfitNow,
    check_code,
    check_seccomp,
    check_stack,
    check_thread,
)
from rtdebug.madvise.syscalls import PR_SET_PDEATHSIG, prctl
from rtdebug.madvise.tracee import Stop, Tracee, prepare

_STOP_TIMEOUT_S = 0.5
_CALL_TIMEOUT_S = 60.0
_MOST_THREADS = 64
_TRIES = 5
_WALL = 0x40000000
_ALL_SIGNALS = 2**64 - 1
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE, signal.SIGTSTP)


@dataclass(frozen=True, slots=True)
class Injected:
    """What came of a call."""

    result: int
    """What madvise(2) returned: 0, or a negative errno."""
    tid: int
    """The thread that was borrowed."""
    stopped_ns: int
    """How long that thread stood still."""


def call_madvise(pid: int, arguments: tuple[int, int, int], proc: Path = Path("/proc")) -> Injected:
    """Have process `pid` call madvise(address, length, advice).

    Needs CAP_SYS_PTRACE and, for a process with a seccomp filter, CAP_SYS_ADMIN. Raises CannotInject, TargetError (it
    has ended) or HostUnable; a madvise that fails is no error here.
    """
    process = examine(pid, proc)
    return Child(lambda: _alone(process, arguments)).result()


def examine(pid: int, proc: Path = Path("/proc")) -> Process:
    """Look whether it can be done, without touching the process. Raises as call_madvise()."""
    machine = architecture()
    check_process(pid, proc)
    stat = read_stat(pid, proc)
    mappings = read_maps(pid, proc)
    if stat is None or not mappings:
        raise _gone(pid)
    try:
        gadgets = find_gadgets(pid, mappings, machine.PATTERNS, proc)
    except PermissionError:
        raise _forbidden(pid) from None
    except OSError:
        raise _gone(pid) from None
    prepare()
    return Process(pid, stat.start_ticks, machine, gadgets, tuple(stacks(mappings)), proc)


def _alone(process: Process, arguments: tuple[int, int, int]) -> Injected:
    """In the child: what ends rtdebug does not end this."""
    os.setsid()
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    with contextlib.suppress(OSError):  # while we wait for a processor, a thread of somebody else's stands still
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    _rehearse()
    return inject(process, arguments)


def _rehearse() -> None:
    """Do it first to a process of our own: where this host forbids a step of it, that is found out here; and the other
    thread stands still for less time, since all is loaded and mapped. Raises HostUnable.
    """
    pid = os.fork()
    if pid == 0:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        while True:
            signal.pause()
    try:
        process = examine(pid)
        result = inject(process, (0, 0, ADVICE["MADV_NORMAL"].number)).result
    except RtdebugError as error:
        raise HostUnable(f"this host does not let rtdebug borrow a thread: {error.message}", error.hint) from None
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, _WALL)
    if result != 0:
        raise HostUnable(
            f"this host does not let rtdebug borrow a thread: a call with no effect failed with {-result}",
            "COLD, PAGEOUT, WILLNEED and COLLAPSE work without it",
        )


def inject(process: Process, arguments: tuple[int, int, int]) -> Injected:
    """Borrow the first thread that will do. For a process of its own, with SIGCHLD blocked: call_madvise()."""
    reasons: list[str] = []
    for tid in threads_by_fitness(process.pid, process.machine, process.proc):
        try:
            return _borrow(process, tid, arguments)
        except Unfit as unfit:
            reasons.append(f"thread {tid}: {unfit}")
    if not reasons:
        raise _gone(process.pid)
    raise CannotInject(
        f"no thread of process {process.pid} can be borrowed for the call: {reasons[0].partition(': ')[2]}",
        "\n".join([*reasons[:6], "COLD, PAGEOUT, WILLNEED and COLLAPSE need nothing from the process"]),
    )


def threads_by_fitness(pid: int, machine: Architecture, proc: Path = Path("/proc")) -> list[int]:
    """The threads to try, best first: one that sleeps in a system call which a stop does not end is there at once, and
    notices nothing; one that runs may first have to wait for a processor.
    """
    ranked = []
    for index, tid in enumerate(sorted(_tids(pid, proc))[:_MOST_THREADS]):
        stat = read_stat(tid, proc / str(pid) / "task")
        number = parse_int((read_text(proc / f"{pid}/task/{tid}/syscall") or "").partition(" ")[0])
        if stat is None or stat.state in "ZX":
            continue
        ranked.append((_rank(stat.state, number in machine.EINTR_AFTER_STOP), index, tid))
    return [tid for _, _, tid in sorted(ranked)]


def _rank(state: str, ends_with_eintr: bool) -> int:
    if state == "S":
        return 2 if ends_with_eintr else 0
    return 1 if state == "R" else 3


def _tids(pid: int, proc: Path) -> Iterator[int]:
    try:
        yield from (int(entry.name) for entry in (proc / str(pid) / "task").iterdir())
    except OSError:
        return


def _borrow(process: Process, tid: int, arguments: tuple[int, int, int]) -> Injected:
    for attempt in range(_TRIES):
        tracee = _seized(process, tid)
        try:
            _await_stop(tracee, process)
            started = time.perf_counter_ns()
            result = _call(tracee, process, arguments)
        except Unfit as unfit:
            _let_go(tracee)
            if attempt + 1 == _TRIES or not isinstance(unfit, UnfitNow):
                raise
            time.sleep(0.001 * attempt)
        except ProcessLookupError:
            raise _gone(process.pid) from None
        else:
            return Injected(result, tid, time.perf_counter_ns() - started)
    raise AssertionError("unreachable: the last attempt returns or raises")


def _seized(process: Process, tid: int) -> Tracee:
    try:
        tracee = Tracee(tid)
    except ProcessLookupError:
        raise Unfit("it has ended") from None
    except PermissionError:
        check_process(process.pid, process.proc)  # traced meanwhile?
        raise _forbidden(process.pid) from None
    stat = read_stat(process.pid, process.proc)
    if stat is None or stat.start_ticks != process.start_ticks:
        raise _gone(process.pid)
    return tracee


def _let_go(tracee: Tracee) -> None:
    """A thread that has not stopped cannot be detached; it is free when this child ends."""
    with contextlib.suppress(OSError):
        tracee.detach()


def _await_stop(tracee: Tracee, process: Process) -> None:
    """Stop the thread, unchanged. Signals that arrive meanwhile go their way."""
    tracee.interrupt()
    while True:
        stop = tracee.wait(_STOP_TIMEOUT_S)
        if stop is None:
            raise Unfit("it did not stop (is it in uninterruptible sleep, or its container paused?)")
        if stop.has_ended:
            raise Unfit("it has ended")
        if stop.is_group_stop:
            tracee.detach()
            raise CannotInject(f"process {process.pid} is stopped", f"let it run first: kill -CONT {process.pid}")
        if stop.is_event:
            return
        tracee.resume(stop.signal)


def _call(tracee: Tracee, process: Process, arguments: tuple[int, int, int]) -> int:
    """Steps 2 to 5."""
    registers = tracee.registers()
    if len(registers) != process.machine.REGISTERS_BYTES:
        _let_go(tracee)
        raise CannotInject(
            f"process {process.pid} is a 32-bit process", "COLD, PAGEOUT, WILLNEED and COLLAPSE work on it too"
        )
    check_stack(process, process.machine.stack_pointer(registers))
    state = ThreadState(registers, tracee.regset(process.machine.FPU_REGSETS), tracee.signal_mask())
    loan = process.machine.lend(state, process.gadgets, arguments)
    with (process.proc / str(process.pid) / "mem").open("r+b", buffering=0) as memory:
        check_code(process, memory.fileno())
        check_thread(tracee, process, memory.fileno(), registers)
        check_seccomp(tracee, process, arguments)
        _write(memory.fileno(), loan)
    tracee.set_registers(loan.registers)
    tracee.set_signal_mask(_ALL_SIGNALS)
    result = _through_the_call(tracee, process)
    tracee.set_signal_mask(state.signal_mask)
    tracee.set_registers(registers)
    tracee.detach()
    return result


def _write(memory_fd: int, loan: Loan) -> None:
    try:
        written = os.pwrite(memory_fd, loan.frame, loan.address)
    except OSError:
        written = 0
    if written != len(loan.frame):
        raise Unfit("its stack cannot be written to")


def _through_the_call(tracee: Tracee, process: Process) -> int:
    """Let it do the call; stop it before it is back in user mode."""
    begun = False
    tracee.resume_to_syscall()
    while not (stop := _next_stop(tracee, process)).is_syscall or not begun:
        begun = begun or stop.is_syscall
        tracee.resume_to_syscall(0 if stop.is_syscall or stop.is_event else stop.signal)
    result = process.machine.result(tracee.registers())
    tracee.interrupt()
    tracee.resume()
    while not (stop := _next_stop(tracee, process)).is_event:
        tracee.resume(stop.signal)
    return result


def _next_stop(tracee: Tracee, process: Process) -> Stop:
    stop = tracee.wait(_CALL_TIMEOUT_S)
    if stop is None:
        raise CannotInject(
            f"madvise in process {process.pid} is not done after {_CALL_TIMEOUT_S:g} s",
            "it goes on, and the thread will restore itself when it is done",
        )
    if stop.has_ended:
        raise _gone(process.pid)
    return stop


def _gone(pid: int) -> TargetError:
    return TargetError(f"process {pid} has exited", "rtdebug madvise list TARGET shows what there is now")


def _forbidden(pid: int) -> HostUnable:
    return HostUnable(
        f"may not trace process {pid}",
        "run as root with CAP_SYS_PTRACE; COLD, PAGEOUT, WILLNEED and COLLAPSE need no ptrace(2)",
    )
