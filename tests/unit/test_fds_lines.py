"""host/fds.py: the lines of maps that lie on a device, among thousands that do not; and a bound on what is kept."""

import os
import signal
from contextlib import ExitStack

from rtdebug.host import fds
from rtdebug.host.fds import internal_devices, lines_of_devices, read_file_uses

SHM = b"7f00-7f10 rw-s 00000000 00:1a 5                          /dev/shm/a b (deleted)"
MEMFD = b"7f10-7f20 rw-s 00001000 00:01 77                         /memfd:x"
NAMED = b"7f20-7f30 rw-s 00000000 fe:00 9                          /data/ 00:1a 5 /dev/shm/b"
BOTH = b"7f30-7f40 rw-s 00000000 00:1a 6                          /dev/shm/ 00:1a 00:01 9 /x"
CUT = b"7f40-7f50 rw-s 000"
OTHER = b"7f50-7f60 rw-p 00000000 00:00 0 "
DEVICES = frozenset((os.makedev(0, 0x1A), os.makedev(0, 1)))


def spans(*lines, end=b"\n"):
    found = lines_of_devices(b"\n".join(lines) + end, DEVICES)
    return sorted((line["span"], line["inode"], line["name"]) for line in found)


def test_only_lines_whose_own_device_it_is():
    assert spans(OTHER, SHM, NAMED, OTHER, BOTH, MEMFD, OTHER) == [
        (b"7f00-7f10", b"5", b"/dev/shm/a b (deleted)"),
        (b"7f10-7f20", b"77", b"/memfd:x"),
        (b"7f30-7f40", b"6", b"/dev/shm/ 00:1a 00:01 9 /x"),
    ]


def test_first_last_and_cut_lines():
    assert [span for span, *_ in spans(SHM, end=b"")] == [b"7f00-7f10"]
    assert [span for span, *_ in spans(CUT, MEMFD, CUT, end=b"")] == [b"7f10-7f20"]
    assert spans(b"7f00-7f10 rw-s 0 00:1a", end=b" ") == []
    assert spans(b"", end=b"") == []


def test_more_files_than_are_kept_are_not_forgotten_silently(monkeypatch):
    """Else a file whose user was not looked at would pass for an orphan."""
    monkeypatch.setattr(fds, "MOST_USED_FILES", 5)
    with ExitStack() as stack:
        for number in range(20):
            stack.callback(os.close, os.memfd_create(f"rtdebug-many-{number}"))
        uses = read_file_uses([os.getpid()], internal_devices())
    assert len(uses.by_key) == 5 and uses.unseen == {os.getpid()}


def test_few_paths_of_a_file_that_many_have_open():
    memfd = os.memfd_create("rtdebug-shared")
    children = []
    try:
        for _ in range(8):
            pid = os.fork()
            if pid == 0:
                signal.pause()
                os._exit(0)
            children.append(pid)
        uses = read_file_uses(children, internal_devices())
        status = os.fstat(memfd)
        use = uses.of(status.st_dev, status.st_ino)
        assert use.holders == set(children) and 0 < len(use.paths) <= 3
    finally:
        for pid in children:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
        os.close(memfd)
