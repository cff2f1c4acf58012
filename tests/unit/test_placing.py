"""A file that somebody asked for by name: whole or not there, and nothing but a file ever replaced."""

import os
import socket
import stat

import pytest

from rtdebug.errors import RtdebugError, UsageProblem
from rtdebug.host.placing import placed_file, refuse_taken
from rtdebug.render.write import write_text


def write(path, replace, content=b"new"):
    with placed_file(path, replace) as file:
        file.write(content)


def names(folder):
    return sorted(each.name for each in folder.iterdir())


def make_link(path):
    (path.parent / "target").write_bytes(b"old")
    path.symlink_to("target")


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


NO_FILES = {
    "a link to a file": make_link,
    "a link to nothing": lambda path: path.symlink_to("nothing"),
    "a link to a device": lambda path: path.symlink_to("/dev/null"),
    "a link to standard output": lambda path: path.symlink_to("/proc/self/fd/1"),
    "a pipe": os.mkfifo,
    "a socket": make_socket,
    "a folder": lambda path: path.mkdir(),
}


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("kind", NO_FILES)
def test_what_is_no_file_stays(tmp_path, kind, replace):
    path = tmp_path / "a"
    NO_FILES[kind](path)
    before, mode = names(tmp_path), path.lstat().st_mode
    with pytest.raises(UsageProblem):
        write(path, replace)
    with pytest.raises(UsageProblem):
        write_text(path, "new")
    assert names(tmp_path) == before and path.lstat().st_mode == mode
    assert not (tmp_path / "target").exists() or (tmp_path / "target").read_bytes() == b"old"


def test_a_file_is_replaced_when_asked_for(tmp_path):
    path = tmp_path / "a"
    write(path, False)
    with pytest.raises(UsageProblem, match="there already"):
        write(path, False, b"newer")
    with pytest.raises(UsageProblem, match="there already"):
        refuse_taken(path, False)
    assert path.read_bytes() == b"new"
    write(path, True, b"newer")
    assert path.read_bytes() == b"newer" and names(tmp_path) == ["a"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_one_that_comes_meanwhile_is_not_replaced(tmp_path):
    """Two at once with one name: the first stays whole."""
    path = tmp_path / "a"
    with pytest.raises(UsageProblem, match="there already"), placed_file(path, False) as file:
        file.write(b"second")
        write(path, False, b"first")
    assert path.read_bytes() == b"first" and names(tmp_path) == ["a"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ValueError("x"), KeyboardInterrupt()])
def test_nothing_is_left_after_an_error(tmp_path, error):
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with pytest.raises((RtdebugError, ValueError, KeyboardInterrupt)), placed_file(path, True) as file:
        file.write(b"half")
        raise error
    assert path.read_bytes() == b"old" and names(tmp_path) == ["a"]


def test_a_long_name(tmp_path):
    path = tmp_path / ("x" * 255)
    write(path, False)
    assert path.read_bytes() == b"new"
    with pytest.raises(RtdebugError, match="too long"):
        write(tmp_path / ("x" * 256), False)
