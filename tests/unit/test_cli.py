import os
import re
import resource
import select
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

from rtdebug import __version__
from rtdebug.cli import COMMANDS, run
from rtdebug.commands.options import _matching, duration, event_option, output_option, pid_number, size
from rtdebug.errors import HostUnable, RtdebugError, TargetError, UsageProblem

ROOT = Path(__file__).parents[2]
GROUP = """
import os, sys, click
from rtdebug.cli import run
from rtdebug.errors import *

@click.group()
def group(): pass

@group.command()
def endless():
    try:
        while True:
            click.echo("line")
    finally:
        print("cleaned up", file=sys.stderr)

@group.command()
def other_pipe():
    raise BrokenPipeError(32, "some socket")

@group.command()
def bug():
    raise ValueError("unex\\x1bpected")

@group.command()
def sleep():
    import time
    print("ready", flush=True)
    time.sleep(60)

@group.command()
def odd():
    print("\\u2026 \\udcff")

@group.command()
def echo():
    click.echo("line")

@group.command()
def large():
    import signal
    signal.signal(signal.SIGUSR1, lambda *_: None)
    click.echo("x" * (1 << 20), nl=False)

@group.command()
@click.argument("file")
def file(file):
    with open(file, "w") as other:
        print("to standard output")
        print("to standard error", file=sys.stderr)
        os.write(1, b"to descriptor 1")
        os.write(2, b"to descriptor 2")
        other.write("mine")

sys.exit(run(sys.argv[1:], group))
"""


def rtdebug(*args, **environ):
    return subprocess.run(
        [sys.executable, "-m", "rtdebug", *args],
        cwd=ROOT,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
    )


def start(*args, **options):
    return subprocess.Popen(
        [sys.executable, "-c", GROUP, *args], cwd=ROOT, stderr=subprocess.PIPE, text=True, **options
    )


def group_that(action):
    @click.group()
    def group():
        pass

    @group.command("go")
    def go():
        action()

    return group


def raising(error):
    def action():
        raise error

    return group_that(action)


def test_help_names_every_command_and_loads_none():
    code = (
        "import sys; from rtdebug.cli import run; run(['--help']);"
        "heavy = {'numpy', 'pandas', 'cffi', 'rich', 'ctypes', 'subprocess'} & set(sys.modules);"
        "print(sorted(heavy), [name for name in sys.modules if name.startswith('rtdebug.commands.')])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    *shown, loaded = done.stdout.splitlines()
    assert loaded == "[] ['rtdebug.commands.lazy']"
    for name, what in COMMANDS:
        assert re.search(rf"^  {name} +{re.escape(what)}$", "\n".join(shown), re.MULTILINE)


def test_help_takes_less_than_a_fifth_of_a_second():
    """Of the processor: it waits for nothing, and by the clock others would be measured too (benchmarks/run help)."""

    def once():
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        rtdebug("--help")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(once() for _ in range(5)) < 0.2


def test_dash_h_and_version():
    assert rtdebug("-h").stdout == rtdebug("--help").stdout
    assert rtdebug("--version").stdout == f"rtdebug {__version__}\n"
    assert "rtdebug completion" in rtdebug("completion", "-h").stdout


def test_no_command_is_wrong_usage_and_shows_help():
    done = rtdebug()
    assert (done.returncode, done.stdout) == (2, "")
    assert "Commands:" in done.stderr


@pytest.mark.parametrize(
    ("args", "message", "hint"),
    [
        pytest.param(
            ["docter"], "no command 'docter', did you mean 'doctor'?", "'rtdebug --help'", id="guess"
        ),
        pytest.param(["xyzzy"], "no command 'xyzzy'", "'rtdebug --help'", id="no guess"),
        pytest.param(["a\x1b[2J"], r"no command 'a\x1b[2J'", "'rtdebug --help'", id="hostile"),
        pytest.param(["--nosuch"], "No such option", "'rtdebug --help'", id="option"),
        pytest.param(["completion"], "Missing argument", "'rtdebug completion --help'", id="argument"),
        pytest.param(["doctor", "-o", "xml"], "'xml' is not one of", "'rtdebug doctor --help'", id="choice"),
    ],
)
def test_wrong_usage_is_two_lines_and_exit_2(args, message, hint, capsys):
    assert run(args) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("rtdebug: ")
    assert message in first
    assert second == f"hint: see {hint}"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RtdebugError("it failed", "try this"), 1),
        (UsageProblem("it failed", "try this"), 2),
        (HostUnable("it failed", "try this"), 3),
        (TargetError("it failed", "try this"), 4),
    ],
)
def test_errors_are_message_and_hint_with_their_exit_status(error, status, capsys):
    assert run(["go"], raising(error)) == status
    assert capsys.readouterr() == ("", "rtdebug: it failed\nhint: try this\n")


def test_a_hint_may_have_lines_but_a_message_may_not_forge_any(capsys):
    run(["go"], raising(TargetError("no 'a\nhint: rm -rf /\x1b[2J'", "bcc: install it\nBTF: boot\x07")))
    assert capsys.readouterr().err == (
        "rtdebug: no 'a\\nhint: rm -rf /\\x1b[2J'\nhint: bcc: install it\n      BTF: boot\\x07\n"
    )


def test_an_error_without_hint_is_one_line(capsys):
    run(["go"], raising(RtdebugError("it failed")))
    assert capsys.readouterr().err == "rtdebug: it failed\n"


def test_success_and_interrupt(capsys):
    assert run(["go"], group_that(lambda: None)) == 0
    assert run(["go"], raising(KeyboardInterrupt())) == 130
    assert run(["go"], raising(click.Abort())) == 130
    assert capsys.readouterr() == ("", "")


def test_an_unexpected_exception_is_one_message_and_how_to_report_it():
    done = start("bug", stdout=subprocess.PIPE)
    _, err = done.communicate()
    assert done.returncode == 1
    assert err.splitlines()[0] == r"rtdebug: internal error: ValueError: unex\x1bpected"
    assert "RTDEBUG_TRACEBACK=1" in err
    assert "Traceback" not in err


def test_the_traceback_is_there_for_who_asks():
    done = start("bug", stdout=subprocess.PIPE, env={**os.environ, "RTDEBUG_TRACEBACK": "1"})
    _, err = done.communicate()
    assert done.returncode == 1
    assert err.startswith("Traceback")
    assert "\x1b" not in err


def test_a_reader_that_goes_away_ends_it_quietly_after_its_cleanup():
    process = start("endless", stdout=subprocess.PIPE)
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=20) == 0
    assert process.stderr.read() == "cleaned up\n"


def test_some_other_broken_pipe_is_an_error():
    process = start("other-pipe", stdout=subprocess.PIPE)
    _, err = process.communicate()
    assert process.returncode == 1
    assert "internal error: BrokenPipeError" in err


@pytest.mark.parametrize("command", ["odd", "echo"])
@pytest.mark.parametrize("unbuffered", ["", "1"])  # found at the end, or in the command
def test_a_full_disk_below_standard_output_is_told(command, unbuffered):
    with Path("/dev/full").open("w") as full:
        process = start(command, stdout=full, env={**os.environ, "PYTHONUNBUFFERED": unbuffered})
        _, err = process.communicate()
    assert process.returncode == 1
    assert err.splitlines()[0] == "rtdebug: cannot write the output: No space left on device"


def test_a_write_that_a_signal_cuts_short_is_finished():
    """Unbuffered, Python takes what the kernel took of a write for all of it, and the rest is lost."""
    process = start("large", stdout=subprocess.PIPE, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    assert select.select([process.stdout], [], [], 20)[0]
    while Path(f"/proc/{process.pid}/wchan").read_text() == "0":  # until the pipe is full and it waits
        time.sleep(0.01)
    process.send_signal(signal.SIGUSR1)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (0, "")
    assert len(out) == 1 << 20


@pytest.mark.parametrize("closed", ["1>&-", "2>&-", "0<&-", "0<&- 1>&- 2>&-"])
def test_closed_streams_are_nobodys(closed, tmp_path):
    """What is written to them must not end up in the next file that is opened."""
    command = shlex.join([sys.executable, "-c", GROUP, "file", str(tmp_path / "file")])
    done = subprocess.run(["sh", "-c", f"{command} {closed}"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0
    assert (tmp_path / "file").read_text() == "mine"
    assert ("to standard output" in done.stdout) is ("1>&-" not in closed)
    assert ("to standard error" in done.stderr) is ("2>&-" not in closed)


def test_ctrl_c_outside_a_stream_is_130_and_silent():
    process = start("sleep", stdout=subprocess.PIPE)
    assert select.select([process.stdout], [], [], 20)[0]
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (130, "")


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_a_terminal_that_lacks_a_character_gets_its_number(encoding):
    process = start(
        "odd", stdout=subprocess.PIPE, env={**os.environ, "PYTHONIOENCODING": f"{encoding}:surrogateescape"}
    )
    out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    assert out.strip().endswith(r"\udcff")
    assert (r"\u2026" in out) is (encoding == "ascii")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script(shell):
    done = rtdebug("completion", shell)
    assert done.returncode == 0
    assert "_RTDEBUG_COMPLETE" in done.stdout
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=done.stdout, text=True, check=True)


def test_the_shell_completes_commands_and_options():
    def complete(words):
        done = rtdebug(_RTDEBUG_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=str(words.count(" ")))
        return done.stdout.splitlines()

    assert complete("rtdebug comp") == ["plain,completion"]
    assert complete("rtdebug completion z") == ["plain,zsh"]
    assert complete("rtdebug doctor --mount") == ["plain,--mount-tracefs"]
    assert complete("rtdebug report --event oom") == ["plain,oom_kill"]
    assert complete("rtdebug report --event brk,sig") == ["plain,brk,sigbus"]


def test_only_container_names_that_cannot_hurt_a_shell_are_completed():
    containers = [("web", "8f3c" * 16, "docker"), ("we;b", "1234" * 16, None), (None, "abcd" * 16, "runc")]

    def complete(incomplete):
        return [(item.value, item.help) for item in _matching(containers, incomplete)]

    assert complete("") == [("web", "docker"), ("abcdabcdabcd", "runc")]
    assert complete("we") == [("web", "docker")]
    assert complete("8f") == [("8f3c8f3c8f3c", "docker")]
    assert complete("ab") == [("abcdabcdabcd", "runc")]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("65536", 65536),
        ("64k", 65536),
        ("64KiB", 65536),
        ("1.5M", 1572864),
        ("2 GiB", 2 << 30),
        ("1b", 1),
    ],
)
def test_size(text, count):
    assert size(text) == count


@pytest.mark.parametrize("text", ["", "-1", "64X", "k", "1e9", "1..5k", "٣"])
def test_what_is_no_size(text):
    with pytest.raises(click.BadParameter, match="no size"):
        size(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("30", 30), ("30s", 30), ("500ms", 0.5), ("5m", 300), ("1.5h", 5400), ("1d", 86400)]
)
def test_duration(text, seconds):
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "0s", "-5", "5 weeks", "inf", "nan"])
def test_what_is_no_duration(text):
    with pytest.raises(click.BadParameter, match="no duration"):
        duration(text)


@pytest.mark.parametrize("text", ["0.9ms", "0.0000000001", "36501d", "9" * 400])
def test_a_duration_out_of_range(text):
    with pytest.raises(click.BadParameter, match="out of range"):
        duration(text)


@pytest.mark.parametrize("text", [str(2**63), "8388608T", "9" * 400])
def test_a_size_that_no_machine_has(text):
    with pytest.raises(click.BadParameter, match="more than any machine has"):
        size(text)


def test_a_wrong_size_names_its_option(capsys):
    @click.command()
    @click.option("--min-bytes", type=size)
    def command(min_bytes):
        pass

    group = click.Group(commands={"go": command})
    assert run(["go", "--min-bytes", "x"], group) == 2
    assert "'--min-bytes': 'x' is no size" in capsys.readouterr().err


def test_output_and_event_options():
    got = []

    @click.command()
    @output_option("table", "json", "parquet")
    @event_option()
    def command(output, events):
        got.append((output, events))

    group = click.Group(commands={"go": command})
    assert run(["go"], group) == 0
    assert run(["go", "-o", "parquet", "--event", "brk", "--event", "mmap"], group) == 0
    assert run(["go", "--event", "oom_kill, sigbus", "--event", "brk,sigbus"], group) == 0
    assert got == [("table", ()), ("parquet", ("brk", "mmap")), ("table", ("oom_kill", "sigbus", "brk"))]


@pytest.mark.parametrize(
    ("given", "guess"),
    [
        ("oom", ", did you mean 'oom_kill'?"),
        ("oom_kil", ", did you mean 'oom_kill'?"),
        ("OOM-KILL", ", did you mean 'oom_kill'?"),
        ("brk,Sigbus", ", did you mean 'sigbus'?"),
        ("sgbus,brk", ", did you mean 'sigbus'?"),
        ("xyzzy", ""),
        ("", ""),
        ("brk,", ""),
    ],
)
def test_an_unknown_event_is_named_with_a_guess_before_the_list(given, guess, capsys):
    (wrong,) = {name for name in given.split(",") if name != "brk"}
    assert run(["report", "file", "--event", given]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first == f"rtdebug: --event: no event '{wrong}'{guess}"
    assert second.startswith("hint: the events are shm_open, ")
    assert "oom_kill" in second


@pytest.mark.parametrize("given", ["abc", "0", "-1", "1.5", "", "٣", "1e3", "9" * 30])
def test_what_is_no_pid(given, capsys):
    assert run(["report", "file", "--pid", given]) == 2
    assert f"'--pid': '{given}' is no pid" in capsys.readouterr().err


def test_pid():
    assert (pid_number("1"), pid_number("0042"), pid_number("4194304")) == (1, 42, 4194304)
