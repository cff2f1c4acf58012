"""What hangs, dies or raises is left out, and put aside; everybody else is read."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from rtdebug.export.apart import Apart
from rtdebug.export.background import Background
from rtdebug.export.helper import Helper


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    """Opening it for reading waits for a writer that never comes."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return path


def read(path: Path) -> str:
    return path.read_text()


def files(tmp_path: Path, count: int) -> dict[str, Path]:
    found = {}
    for number in range(count):
        path = tmp_path / f"file{number}"
        path.write_text(f"text {number}")
        found[str(number)] = path
    return found


def test_everything_is_read(tmp_path: Path) -> None:
    apart = Apart(read)
    assert apart.read(files(tmp_path, 1000)) == {str(number): f"text {number}" for number in range(1000)}
    assert apart.read({}) == {}
    assert not apart.stuck


def test_one_that_hangs_costs_its_patience_once(tmp_path: Path, fifo: Path) -> None:
    clock = [0.0]
    apart = Apart(read, patience_s=0.3, now_s=lambda: clock[0])
    items = files(tmp_path, 20)
    items = {**dict(list(items.items())[:10]), "hangs": fifo, **dict(list(items.items())[10:])}
    assert len(apart.read(items)) == 20
    assert apart.stuck == {"hangs"}
    started = time.monotonic()
    assert len(apart.read(items)) == 20
    assert time.monotonic() - started < 0.25  # it was not tried
    clock[0] = 61
    fifo.unlink()
    fifo.write_text("answers again")
    assert apart.read(items)["hangs"] == "answers again"
    assert not apart.stuck


def test_many_that_hang_do_not_make_a_pass_endless(tmp_path: Path, fifo: Path) -> None:
    apart = Apart(read, patience_s=0.2, now_s=lambda: 0.0)
    items = {**{f"hangs{number}": fifo for number in range(7)}, **files(tmp_path, 3)}
    started = time.monotonic()
    assert apart.read(items) == {}
    assert time.monotonic() - started < 2
    apart.read(items)
    assert len(apart.read(items)) == 3  # the third pass begins where the second had no time left
    assert len(apart.stuck) == 7


def test_one_that_kills_the_child_is_put_aside(tmp_path: Path) -> None:
    def read_or_die(path: Path) -> str:
        if path.name == "file1":
            os._exit(3)
        return read(path)

    apart = Apart(read_or_die)
    assert set(apart.read(files(tmp_path, 3))) == {"0", "2"}
    assert apart.stuck == {"1"}


def test_one_that_raises_is_just_not_known(tmp_path: Path) -> None:
    apart = Apart(read)
    assert set(apart.read({**files(tmp_path, 2), "gone": tmp_path / "gone"})) == {"0", "1"}
    assert not apart.stuck


def test_a_container_that_has_gone_is_forgotten(fifo: Path, tmp_path: Path) -> None:
    apart = Apart(read, patience_s=0.2)
    apart.read({"hangs": fifo})
    deadline = time.monotonic() + 5
    while apart.stuck and time.monotonic() < deadline:
        apart.read(files(tmp_path, 1))
    assert not apart.stuck


def test_the_background_answers_later_and_gives_up(fifo: Path) -> None:
    asked: Background[str] = Background(patience_s=0.3, pause_s=0)
    asked.ask(lambda: "answer")
    answer = None
    deadline = time.monotonic() + 5
    while answer is None and time.monotonic() < deadline:
        answer = asked.poll()
    assert answer == "answer"
    slow: Background[str] = Background(patience_s=0.2, pause_s=0, cost_share=0)
    slow.ask(lambda: read(fifo))
    assert slow.poll() is None and not slow.may_ask()
    deadline = time.monotonic() + 5
    while not slow.may_ask() and time.monotonic() < deadline:
        assert slow.poll() is None
    assert slow.may_ask()
    asked.close()
    slow.close()


def test_a_helper_has_none_of_our_descriptors_but_those_it_needs(tmp_path: Path) -> None:
    kept = os.open(tmp_path / "kept", os.O_CREAT | os.O_RDWR)
    other = os.open(tmp_path / "other", os.O_CREAT | os.O_RDWR)

    def work() -> None:
        fds = sorted(fd for fd in range(256) if Path(f"/proc/self/fd/{fd}").exists())
        os.write(kept, repr(fds).encode())

    helper = Helper(work, (kept,))
    helper.end(5)
    assert helper.is_over()
    assert (tmp_path / "kept").read_text() == repr([0, 1, 2, kept])
    os.close(kept)
    os.close(other)
