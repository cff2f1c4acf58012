"""The `rtdebug` command: finds the subcommand, and turns what it raises into a message and an exit status.

Subcommands are loaded when they are called, so that `rtdebug --help` answers at once. `main` is the only
place that prints errors or exits.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import select
import sys
from collections.abc import Sequence
from typing import NoReturn, TypeGuard

import click

from rtdebug import __version__
from rtdebug.commands.lazy import LazyGroup
from rtdebug.errors import RtdebugError
from rtdebug.render.escape import escape

COMMANDS = (
    ("ps", "List running containers with their memory and /dev/shm."),
    ("diagnose", "Say why a container runs out of memory, and what to change."),
    ("oom", "Explain OOM kills, from this host's kernel log or from files."),
    ("shm", "Show shared memory, what limits it, and what was left behind."),
    ("snapshot", "Write all about a container's memory into one file."),
    ("show", "Show a snapshot; needs no root."),
    ("diff", "Show what changed between two snapshots, or in a while."),
    ("leaks", "Find out which containers leak memory, and where."),
    ("trace", "Show what a container does to its memory, live."),
    ("report", "Show a recording of a trace; needs no root."),
    ("limits", "Show memory limits, what is wrong, and what they should be."),
    ("reclaim", "Take idle memory from a container, see what it costs."),
    ("madvise", "Find, measure and give advice on memory: huge pages and others."),
    ("export", "Serve metrics of all containers for Prometheus."),
    ("doctor", "Check what this host can do, and how to get the rest."),
    ("completion", "Print the completion script for a shell."),
)
"""Name of each command, which is also its module in rtdebug/commands, and what it is for in one line. In the
order in which somebody with a problem needs them."""

COMPLETE_VARIABLE = "_RTDEBUG_COMPLETE"
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
_INTERRUPTED = 130  # 128 + SIGINT, as a shell says it
_BUG_HINT = "this is a bug in rtdebug: please report it with the command line and what RTDEBUG_TRACEBACK=1 shows"


@click.command(
    cls=LazyGroup,
    entries=COMMANDS,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Begin with `rtdebug ps` and `rtdebug diagnose NAME`. Every command explains itself: rtdebug COMMAND --help",
)
@click.version_option(__version__, prog_name="rtdebug", message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Find out what happened to a container's memory: with eBPF, without kernel headers."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        ctx.exit(click.UsageError.exit_code)


def main() -> NoReturn:
    """Run the command line of this process and exit with its status."""
    sys.exit(run(sys.argv[1:]))


def run(args: Sequence[str], group: click.Group | None = None) -> int:
    """Run one command line (of `group`, else of rtdebug); print what goes wrong and return the exit status.

    0 done, 1 failed while running, 2 wrong usage, 3 this host cannot do it, 4 no such container, 130
    interrupted. A reader of standard output that went away is no error: 0.
    """
    _open_missing_streams()
    _make_output_safe()
    try:
        code = _invoke(list(args), group or cli)
        if sys.stdout is not None:
            sys.stdout.flush()
    except click.ClickException as error:
        ctx = error.ctx if isinstance(error, click.UsageError) else None
        _complain(error.format_message(), f"see '{ctx.command_path} --help'" if ctx else "")
        return error.exit_code
    except RtdebugError as error:
        _complain(error.message, error.hint)
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return _INTERRUPTED
    except BrokenPipeError as error:
        if not _reader_is_gone():
            return _internal_error(error)
        _discard_output()
        return 0
    except Exception as error:  # the last resort
        if _is_full_output(error):
            _discard_output()
            _complain(f"cannot write the output: {error.strerror}", "what was not written is lost")
            return RtdebugError.exit_code
        return _internal_error(error)
    return code


def _invoke(args: list[str], group: click.Group) -> int:
    if instruction := os.environ.get(COMPLETE_VARIABLE):
        from click.shell_completion import shell_complete

        return shell_complete(group, {}, "rtdebug", COMPLETE_VARIABLE, instruction)
    # not cli.main(): that would print errors of its own and make a broken pipe exit status 1
    try:
        with group.make_context("rtdebug", args) as ctx:
            group.invoke(ctx)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    return 0


def _open_missing_streams() -> None:
    """A closed standard stream (`>&-`) becomes /dev/null: else the next file opened, a recording or a BPF map,
    would take its number, and what is written to the stream.
    """
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(fd)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)  # the lowest free number: mostly `fd` itself
            os.dup2(null, fd)
            if null != fd:
                os.close(null)
            os.set_inheritable(fd, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(fd, mode, closefd=False))  # noqa: SIM115 - for as long as we live


def _make_output_safe() -> None:
    """What the terminal's encoding lacks comes out as `\\u2026`, never as an exception or raw bytes."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    raw = getattr(sys.stdout, "buffer", None)
    if isinstance(raw, io.FileIO) and sys.stdout is sys.__stdout__ is not None:
        # PYTHONUNBUFFERED: what the kernel took of a write, cut short by a signal, would pass for all of it
        encoding = sys.__stdout__.encoding
        sys.__stdout__.detach()
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(raw), encoding, "backslashreplace", write_through=True)


def _is_full_output(error: Exception) -> TypeGuard[OSError]:
    """A disk below standard output that takes no more; errors of files that we open have a file name."""
    return isinstance(error, OSError) and error.errno in _FULL and error.filename is None


def _reader_is_gone() -> bool:
    """Is it standard output that broke, and not some other pipe or socket?"""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))
    except (OSError, ValueError, AttributeError):
        return False


def _discard_output() -> None:
    """Else Python flushes standard output once more at its end, and complains."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


def _complain(message: str, hint: str = "") -> None:
    """`rtdebug: message`, and the hint below it, each of its lines escaped."""
    first, *rest = [escape(line) for line in hint.splitlines()] or [""]
    lines = [f"rtdebug: {escape(message)}"]
    if hint:
        lines += [f"hint: {first}", *(f"      {line}" for line in rest)]
    with contextlib.suppress(OSError):
        print("\n".join(lines), file=sys.stderr, flush=True)


def _internal_error(error: Exception) -> int:
    if os.environ.get("RTDEBUG_TRACEBACK"):
        import traceback

        for line in "".join(traceback.format_exception(error)).splitlines():
            print(escape(line), file=sys.stderr)
    _complain(f"internal error: {type(error).__name__}: {error}", _BUG_HINT)
    return RtdebugError.exit_code
