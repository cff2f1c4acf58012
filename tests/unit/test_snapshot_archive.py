"""The file of a snapshot: whole, private, readable with ordinary tools, and nothing lost."""

import gzip
import io
import json
import os
import re
import stat
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from rtdebug.containers.model import Container
from rtdebug.errors import RtdebugError
from rtdebug.snapshot.archive import ArchiveError, default_path, read_archive, write_archive, write_archive_here
from rtdebug.snapshot.codec import FormError, from_plain, to_plain
from rtdebug.snapshot.model import Snapshot
from tests.unit.snapshots import hostile, snapshot


@pytest.mark.parametrize("taken", [snapshot(), hostile()], ids=["plain", "hostile"])
def test_nothing_is_lost(tmp_path, taken):
    path = tmp_path / "a.tar.gz"
    size_bytes = write_archive(taken, path)
    assert path.stat().st_size == size_bytes
    assert read_archive(path) == replace(taken, runtime=read_archive(path).runtime)
    assert to_plain(read_archive(path).runtime) == to_plain(taken.runtime)


def test_it_is_private_and_leaves_nothing_beside(tmp_path):
    path = tmp_path / "a.tar.gz"
    before = os.umask(0)
    try:
        write_archive(snapshot(), path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["a.tar.gz"]


def test_ordinary_tools_read_it(tmp_path):
    path = tmp_path / "a.tar.gz"
    write_archive(hostile(), path)
    listed = subprocess.run(["tar", "-tzf", path], capture_output=True, text=True, check=True).stdout.split()
    assert listed == ["manifest.json", "snapshot.json", "mappings.jsonl", "accounting.json"]
    with tarfile.open(path) as archive:
        contents = {name: archive.extractfile(name).read() for name in listed}
    manifest = json.loads(contents["manifest.json"])
    assert manifest["format"] == "rtdebug snapshot" and manifest["schema"] == 1 and manifest["members"] == listed
    lines = contents["mappings.jsonl"].splitlines()
    assert len(lines) == manifest["mapping_groups"] == 1
    assert json.loads(lines[0])["pid"] == 41
    assert all(content.isascii() for content in contents.values())


def test_a_failure_leaves_no_file(tmp_path):
    with pytest.raises(RtdebugError, match="cannot write"):
        write_archive(snapshot(), tmp_path / "missing" / "a.tar.gz")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"text", b"\x1f\x8b\x08broken", os.urandom(300)])
def test_what_is_no_snapshot(tmp_path, content):
    path = tmp_path / "a"
    path.write_bytes(content)
    with pytest.raises(ArchiveError) as caught:
        read_archive(path)
    assert caught.value.hint


def test_no_such_file_and_a_folder(tmp_path):
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(ArchiveError, match="cannot read"):
            read_archive(path)


@pytest.mark.parametrize("kept", [0.3, 0.6, 0.9])
def test_a_file_cut_short(tmp_path, kept):
    path = tmp_path / "a.tar.gz"
    write_archive(snapshot(), path)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * kept)])
    with pytest.raises(ArchiveError):
        read_archive(path)


def rewritten(path, change):
    """The archive with its members changed by a function."""
    with tarfile.open(path) as archive:
        members = {each.name: archive.extractfile(each).read() for each in archive}
    change(members)
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            (path.parent / "member").write_bytes(content)
            archive.add(path.parent / "member", name)
    return path


def change_json(name, **values):
    def change(members):
        members[name] = json.dumps({**json.loads(members[name]), **values}).encode()

    return change


def test_a_newer_one_is_refused_by_name(tmp_path):
    path = tmp_path / "a.tar.gz"
    write_archive(snapshot(), path)
    with pytest.raises(ArchiveError, match="newer"):
        read_archive(rewritten(path, change_json("manifest.json", schema=99)))


def test_keys_that_are_not_known_are_left_alone(tmp_path):
    path = tmp_path / "a.tar.gz"
    write_archive(snapshot(), path)
    assert read_archive(rewritten(path, change_json("snapshot.json", surprise=[1]))).container.name == "web"


@pytest.mark.parametrize(
    "values", [{"processes": "x"}, {"container": None}, {"host": {"cpus": "two"}}, {"time_ns": True}]
)
def test_values_of_another_kind_are_an_error(tmp_path, values):
    path = tmp_path / "a.tar.gz"
    write_archive(snapshot(), path)
    with pytest.raises(ArchiveError, match="not what rtdebug writes"):
        read_archive(rewritten(path, change_json("snapshot.json", **values)))


def test_a_link_in_the_archive_leads_nowhere(tmp_path):
    path = tmp_path / "a.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        link = tarfile.TarInfo("manifest.json")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    with pytest.raises(ArchiveError):
        read_archive(path)


def test_a_missing_field_is_named():
    plain = to_plain(snapshot())
    del plain["container"]["id"]
    with pytest.raises(FormError, match="id is missing"):
        from_plain(Snapshot, plain)


@pytest.mark.parametrize("name", ["../../etc/passwd", "a b\n\x1b[31m", "..", "-rf", "é" * 200, ""])
def test_the_default_name_stays_in_the_folder(name):
    taken = snapshot(container=Container("pid:4", name, None, 4, "running", "/"))
    path = default_path(taken)
    assert re.fullmatch(r"rtdebug-[\w.-]{1,60}-20231114T221500Z\.tar\.gz", str(path), re.ASCII)
    assert path == Path(path.name)


def test_a_chosen_id_is_no_random_one():
    taken = snapshot(container=Container("nightly-import-7", None, "runc", 4, "running", "/"))
    assert str(default_path(taken)).startswith("rtdebug-nightly-import-7-2023")
    taken = snapshot(container=Container("ab" * 32, None, "docker", 4, "running", "/"))
    assert str(default_path(taken)).startswith("rtdebug-abababababab-2023")


def test_two_in_one_second_are_two_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    paths = [write_archive_here(snapshot())[0] for _ in range(3)]
    assert [str(path).partition("Z")[2] for path in paths] == [".tar.gz", "-2.tar.gz", "-3.tar.gz"]
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(map(str, paths))


def packed(*members):
    """A tar.gz of (TarInfo, content)."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for member, content in members:
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


def bare(name, kind=tarfile.REGTYPE, link=""):
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, link
    return member


def bomb(name, count):
    """So many zeros, told as a member of any kind, in a few kilobytes."""
    member = bare(name, tarfile.XHDTYPE if name == "pax" else tarfile.REGTYPE)
    member.size = count
    chunk = b"0" * (1 << 20)
    file = io.BytesIO()
    with gzip.open(file, "wb", compresslevel=1) as packer:
        packer.write(member.tobuf(tarfile.USTAR_FORMAT))
        for _ in range(count >> 20):
            packer.write(chunk)
    return file.getvalue()


DEEP = b"[" * 1_000_000
HOSTILE_FILES = {
    "a link to itself": packed((bare("manifest.json", tarfile.SYMTYPE, "manifest.json"), b"")),
    "a hard link out": packed((bare("manifest.json", tarfile.LNKTYPE, "/etc/passwd"), b"")),
    "a pipe": packed((bare("manifest.json", tarfile.FIFOTYPE), b"")),
    "a path that leads out": packed((bare("../../manifest.json"), b"{}")),
    "nested too deep": packed((bare("manifest.json"), DEEP)),
    "nested too deep, an object": packed((bare("manifest.json"), b'{"a":' * 1_000_000)),
    "no object": packed((bare("manifest.json"), b"[]")),
    "not UTF-8": packed((bare("manifest.json"), b"\xff\xff")),
    "a number of a million digits": packed((bare("manifest.json"), b'{"schema":' + b"9" * 1_000_000 + b"}")),
    "empty": packed(),
    "two archives": packed((bare("manifest.json"), b"{}")) * 2,
}


@pytest.mark.parametrize("what", HOSTILE_FILES)
def test_a_hostile_file_is_an_error_like_any_other(tmp_path, what):
    path = tmp_path / "a"
    path.write_bytes(HOSTILE_FILES[what])
    with pytest.raises(ArchiveError) as caught:
        read_archive(path)
    assert len(caught.value.message) < 300


@pytest.mark.parametrize("name", ["snapshot.json", "mappings.jsonl", "other", "pax"])
def test_a_bomb_is_put_down_early(tmp_path, name):
    """A megabyte that unpacks to a gigabyte, in a member of ours, in another one, in a header."""
    path = tmp_path / "bomb"
    path.write_bytes(bomb(name, 1 << 30))
    code = (
        "import sys; from pathlib import Path; from rtdebug.snapshot.archive import *\n"
        "try: read_archive(Path(sys.argv[1]))\n"
        "except ArchiveError as error: print(error.message)\n"
        "print(Path('/proc/self/status').read_text())"
    )
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True, timeout=60)
    assert "larger than any snapshot" in done.stdout
    peak_kib = int(done.stdout.partition("VmHWM:")[2].split()[0])  # not ru_maxrss: that is the forking pytest's too
    assert peak_kib < 700 << 10


@pytest.mark.parametrize("lines", [b"[]", b'"x"', b'{"pid": "7"}', b"{", b"7", DEEP])
def test_lines_that_are_no_mappings(tmp_path, lines):
    path = tmp_path / "a.tar.gz"
    write_archive(snapshot(), path)
    with pytest.raises(ArchiveError):
        read_archive(rewritten(path, lambda members: members.update({"mappings.jsonl": lines})))


def test_a_pipe_is_read_too(tmp_path):
    """rtdebug show <(ssh host cat FILE)."""
    path, pipe = tmp_path / "a.tar.gz", tmp_path / "pipe"
    write_archive(snapshot(), path)
    os.mkfifo(pipe)
    with subprocess.Popen(["cp", path, pipe]):
        assert read_archive(pipe) == read_archive(path)
