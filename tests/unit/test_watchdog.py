"""What the watchdog undoes, and when: at the end of the block, and however its parent ends."""

import os
import signal
import subprocess
import sys
import time

import pytest

from rtdebug.errors import RtdebugError
from rtdebug.host.watchdog import Watchdog

PARENT = """
import os, signal, sys, time
from pathlib import Path
from rtdebug.host.watchdog import Watchdog
mark = Path(sys.argv[1])
dog = Watchdog(lambda: mark.write_text(mark.read_text() + "undone"))
if os.fork() == 0:       # a child that outlives us, and holds the pipe
    os.setsid()
    print("ready", flush=True)
    time.sleep(3)
    os._exit(0)
time.sleep(60)
"""


def test_undone_at_the_end_of_the_block(tmp_path):
    mark = tmp_path / "mark"
    with Watchdog(lambda: mark.touch()):
        time.sleep(0.05)
        assert not mark.exists()
    assert mark.exists()


def test_a_failure_is_told():
    def fail() -> None:
        raise OSError("no")

    dog = Watchdog(fail)
    with pytest.raises(RtdebugError):
        dog.close()
    dog.close()  # once


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_undone_once_however_the_parent_ends(tmp_path, number):
    mark = tmp_path / "mark"
    mark.write_text("")
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, mark], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    ) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        os.killpg(parent.pid, number)  # as a terminal sends it: to all of the group
        parent.wait()
        deadline = time.monotonic() + 5
        while mark.read_text() != "undone" and time.monotonic() < deadline:
            time.sleep(0.01)
    assert mark.read_text() == "undone"
