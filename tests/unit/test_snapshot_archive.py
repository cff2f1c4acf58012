"""The file of a snapshot: whole, private, readable with ordinary tools, and nothing lost."""

import json
import os
import re
import stat
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from rtdebug.containers.model import Container
from rtdebug.errors import RtdebugError, UsageProblem
from rtdebug.snapshot.archive import ArchiveError, default_path, read_archive, refuse_existing, write_archive
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


def test_an_existing_file_is_not_replaced_by_accident(tmp_path):
    path = tmp_path / "a"
    refuse_existing(path, force=False)
    refuse_existing(None, force=False)
    path.touch()
    refuse_existing(path, force=True)
    with pytest.raises(UsageProblem, match="there already"):
        refuse_existing(path, force=False)
