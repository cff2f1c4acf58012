"""/dev/kmsg records and the reader, on a socket pair that behaves as the device does: one record per read."""

import errno
import os
import select
import socket
from pathlib import Path

import pytest

from rtdebug.errors import HostUnable, RtdebugError
from rtdebug.host.kmsg import KmsgReader, parse_kmsg_record


def test_fields_of_a_kernel_record():
    record = parse_kmsg_record(b"3,427,1294281774,-;Memory cgroup out of memory: Killed process 71\n")
    assert (record.sequence, record.time_us) == (427, 1294281774)
    assert (record.facility, record.level) == (0, 3)
    assert record.from_kernel
    assert record.message == "Memory cgroup out of memory: Killed process 71"
    assert record.caller is None
    assert not record.fields


def test_caller_and_continuation_lines():
    record = parse_kmsg_record(b"6,7,8,-,caller=T713;usb 1-1: new\n SUBSYSTEM=usb\n DEVICE=c189:2\nstray\n")
    assert record.caller == "T713"
    assert dict(record.fields) == {"SUBSYSTEM": "usb", "DEVICE": "c189:2"}
    assert record.message == "usb 1-1: new"


def test_user_space_is_never_the_kernel():
    record = parse_kmsg_record(b"12,1,2,-;Out of memory: Killed process 1 (init)\n")
    assert (record.facility, record.level) == (1, 4)
    assert not record.from_kernel


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        pytest.param(rb"a\x0ab", "a\nb", id="newline"),
        pytest.param(rb"\x1b[31m", "\x1b[31m", id="escape sequence stays for the renderer to show"),
        pytest.param(rb"\xc3\xa9t\xc3\xa9", "été", id="utf-8"),
        pytest.param(rb"\xff\xfe", "\udcff\udcfe", id="not utf-8"),
        pytest.param(rb"\x5cx41", r"\x41", id="a logged backslash is not unescaped twice"),
        pytest.param(rb"50\x", r"50\x", id="cut escape"),
        pytest.param(b"a;b;c", "a;b;c", id="semicolons"),
    ],
)
def test_unescaping(raw, text):
    assert parse_kmsg_record(b"6,1,2,-;" + raw + b"\n").message == text


@pytest.mark.parametrize("raw", [b"", b"no separator", b"6,1;text\n", b"x,1,2,-;text\n", b"6,1,2;text\n"])
def test_another_form_is_an_error_with_a_hint(raw):
    with pytest.raises(RtdebugError) as caught:
        parse_kmsg_record(raw)
    assert caught.value.hint


@pytest.fixture
def device():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    with ours, theirs:
        yield ours.fileno(), theirs


def test_reads_what_there_is_and_does_not_block(device):
    fd, writer = device
    reader = KmsgReader(fd)
    assert reader.read() == []
    for sequence in range(23):
        writer.send(b"6,%d,5,-;line %d\n" % (sequence, sequence))
    assert [record.sequence for record in reader.read()] == list(range(23))
    assert reader.read() == []
    assert reader.lost == 0


def test_sits_in_epoll(device):
    fd, writer = device
    reader = KmsgReader(fd)
    with select.epoll() as epoll:
        epoll.register(reader.fileno(), select.EPOLLIN)
        assert epoll.poll(0) == []
        writer.send(b"6,1,2,-;x\n")
        assert [ready for ready, _ in epoll.poll(0)] == [fd]


class Device:
    """Gives records and errors in turn."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def read(self, _fd, _size):
        if not self.answers:
            raise BlockingIOError
        answer = self.answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer


def overrun():
    return OSError(errno.EPIPE, os.strerror(errno.EPIPE))


@pytest.mark.parametrize(
    ("answers", "lost", "seen"),
    [
        pytest.param([b"6,10,1,-;a\n", overrun(), b"6,28,1,-;b\n"], 17, [10, 28], id="counted by sequence"),
        pytest.param([overrun(), b"6,28,1,-;b\n"], 1, [28], id="no earlier record: at least one"),
        pytest.param([b"6,10,1,-;a\n", b"6,12,1,-;b\n"], 0, [10, 12], id="a gap alone is no loss"),
    ],
)
def test_overrun_is_counted(answers, lost, seen):
    reader = KmsgReader(-1, Device(*answers).read)
    assert [record.sequence for record in reader.read()] == seen
    assert reader.lost == lost


def test_other_errors_are_not_swallowed():
    with pytest.raises(OSError, match="Input/output"):
        KmsgReader(-1, Device(OSError(errno.EIO, os.strerror(errno.EIO))).read).read()


def test_no_kernel_log_is_said_with_its_remedy(tmp_path):
    with pytest.raises(HostUnable) as caught:
        KmsgReader.open(tmp_path / "kmsg")
    assert "kmsg" in caught.value.message
    assert "dmesg_restrict" in caught.value.hint


def test_dev_null_in_its_place_is_no_kernel_log() -> None:
    with pytest.raises(HostUnable, match="not the kernel log"):
        KmsgReader.open(Path("/dev/null"))
