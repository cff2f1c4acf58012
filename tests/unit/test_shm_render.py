"""`rtdebug shm` on the screen and as JSON: what is not known is `-` and null, and nothing hostile comes through."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace

import pytest

from rtdebug.render import shm, shm_removal, shm_watch
from rtdebug.shm.limits import LimitKind
from rtdebug.shm.model import Creator, ObjectKind
from rtdebug.shm.notes import notes_on
from rtdebug.shm.orphans import Rules, judge
from rtdebug.shm.removal import Removal
from rtdebug.shm.volumes import Volume, VolumeKind
from tests.unit.shm_things import MIB, NOW_NS, container, found, limit, mount, report, user
from tests.unit.test_shm_advice import event, watch

HOSTILE = "/dev/shm/a\x1b[31m\nb\u202e"
SEGMENT = found(
    kind=ObjectKind.SYSV, name="0x5eed0002", inode_id=3, attached=0, creator=Creator(0, 77, None), size_bytes=4 * MIB
)


def test_a_table_to_read_at_night():
    memory = limit(LimitKind.MEMORY_CGROUP, 512 * MIB, 300 * MIB, "/docker/web")
    named = found(name="/dev/shm/nccl-a1")
    used = found(name="/dev/shm/queue", mappers=(user(), user(9, "nginx", False)), holders=(user(),), orphan=False)
    text = shm.shm_table(report(mounts=(mount(limits=(limit(), memory)),), objects=(used, named, SEGMENT)))
    heading, _, *lines = text.splitlines()
    assert re.fullmatch(r"Shared memory of web \(docker\) at \d\d:\d\d:\d\d", heading)
    assert lines == """\
TMPFS       SIZE    USED    LEFT  INODES LEFT  VOLUME   LIMITED FIRST BY
/dev/shm  64 MiB  10 MiB  54 MiB          990  its own  its size
/dev/shm: 54 MiB to its size (then ENOSPC or Bus error); 300 MiB to memory limit 512 MiB of
  /docker/web (then an OOM kill)

KIND   NAME               SIZE  TAKEN         AGE   UID  MAPPED  OPEN  USED BY
posix  /dev/shm/queue    6 MiB  5 MiB  10 min 0 s  1000       2     1  python3 (4711), nginx (9, outside)
posix  /dev/shm/nccl-a1  6 MiB  5 MiB  10 min 0 s  1000       0     0  orphan, named as by NCCL
sysv   0x5eed0002 id 3   4 MiB  5 MiB  10 min 0 s     0       0     -  orphan, by a process that is gone (77)

Orphans: 2 objects that nobody uses; removing them frees 10 MiB: --remove-orphans
""".splitlines()


def test_nothing_hostile_reaches_the_terminal():
    bad = found(name=HOSTILE, holders=(user(comm="\x1b]0;x\x07"),))
    mounts = (mount(path=HOSTILE, covered=True), mount(path=HOSTILE, inodes_left=0))
    whole = report(objects=(bad,), mounts=mounts, container=container(name="\x1b[2J"))
    judged = judge([bad, replace(bad, changed_ns=NOW_NS)], mounts, Rules(), NOW_NS)
    seen = watch(mount(path=HOSTILE))
    texts = [
        shm.shm_table(whole),
        shm_removal.verdict_table(judged, NOW_NS),
        shm_removal.removal_table([Removal(bad, HOSTILE)]),
        "\n".join(shm_watch._summary(seen, 80)),
    ]
    for text in texts:
        assert text.replace("\n", "").isprintable(), text
        assert "\\x1b" in text
    document = json.loads(shm.shm_json(whole))
    assert document["objects"][0]["name"] == HOSTILE
    assert shm.shm_json(whole).count("\n") == 1


def test_the_document():
    memory = limit(LimitKind.MEMORY_CGROUP, 512 * MIB, 300 * MIB, "/docker/web")
    document = json.loads(shm.shm_json(report(mounts=(mount(limits=(limit(), memory)),)), ("a note",)))
    (path,) = document["mounts"]
    assert (path["path"], path["size_bytes"], path["used_bytes"]) == ("/dev/shm", 64 * MIB, 10 * MIB)
    assert (path["limited_by"], path["left_bytes"]) == ("mount_size", 54 * MIB)
    assert [each["kind"] for each in path["limits"]] == ["mount_size", "memory_cgroup"]
    (each,) = document["objects"]
    assert (each["kind"], each["name"], each["orphan"]) == ("posix", "/dev/shm/psm_1f2e", True)
    assert each["creator"] == {"uid": 1000, "pid": None, "comm": None}
    assert (each["mappers"], each["charged_to"], each["attached"]) == ([], None, None)
    assert document["notes"] == ["a note"]
    assert document["orphan_bytes"] == 5 * MIB


def test_what_is_not_known_is_null_and_a_dash():
    unknown = found(size_bytes=None, allocated_bytes=None, creator=Creator(None), changed_ns=None, orphan=None)
    blind = mount(size_bytes=None, used_bytes=None, inodes=None, inodes_left=None, limits=(), covered=True)
    whole = report(objects=(unknown,), mounts=(blind,))
    document = json.loads(shm.shm_json(whole))
    assert {document["mounts"][0][key] for key in ("size_bytes", "used_bytes", "limited_by", "left_bytes")} == {None}
    assert {document["objects"][0][key] for key in ("size_bytes", "allocated_bytes", "age_ns", "orphan")} == {None}
    (row,) = [line for line in shm.shm_table(whole).splitlines() if line.startswith("posix")]
    assert row.split() == ["posix", "/dev/shm/psm_1f2e", "-", "-", "-", "-", "0", "0", "-"]


def test_many_objects_are_added_up():
    many = tuple(found(inode_id=number) for number in range(shm.MOST_ROWS + 812))
    text = shm.shm_table(report(objects=many))
    assert "and 812 smaller ones, 4.0 GiB in all: -o json has every one" in text


def test_empty_read_only_mounts_are_left_out():
    masks = tuple(mount(path=f"/proc/{name}", read_only=True, used_bytes=0) for name in ("acpi", "scsi"))
    text = shm.shm_table(report(mounts=(mount(), *masks)))
    assert "/proc/acpi" not in text and "(left out: 2 empty and read-only)" in text
    assert len(json.loads(shm.shm_json(report(mounts=(mount(), *masks))))["mounts"]) == 3


@pytest.mark.parametrize(
    ("whole", "says"),
    [
        (report(mounts=(), dev_shm_fstype=None), "there is no /dev/shm"),
        (report(mounts=(), dev_shm_fstype="overlay"), "is not a tmpfs but overlay"),
        (report(mounts=(mount(path="/dev"),)), "only a folder of the tmpfs above it"),
        (report(mounts=(mount(covered=True), mount())), "is covered by another mount"),
        (report(mounts=(mount(inodes_left=0),)), "no inode left of 1000"),
        (report(mounts=(mount(options={"huge": "always"}),)), "mounted huge=always"),
        (report(mounts=(mount(read_only=True),)), "EROFS"),
        (report(segments_seen=False), "SysV segments are not shown"),
        (report(cut=("/dev/shm",)), "/dev/shm has 50,000 files or more"),
        (
            report(objects=(found(charged_to=("/docker/gone",)), found(charged_to=("/docker/gone",)))),
            "10.0 MiB of what lies in it were charged to cgroup /docker/gone",
        ),
        (report(unseen_pids=(1,)), "could not look into all of process 1"),
        (
            report(mounts=(mount(volume=Volume(VolumeKind.HOST, host_path="/dev/shm")),)),
            "the host's own (/dev/shm)",
        ),
        (
            report(
                mounts=(mount(volume=Volume(VolumeKind.EMPTY_DIR, "dshm"), limits=(limit(LimitKind.HALF_OF_RAM),)),)
            ),
            "the kubelet evicts the pod",
        ),
    ],
)
def test_notes(whole, says):
    assert says in " ".join(notes_on(whole))


@pytest.mark.parametrize(
    "whole",
    [
        report(),
        report(mounts=(mount(volume=Volume(VolumeKind.EMPTY_DIR, "dshm")),)),
        report(mounts=(mount(inodes=None, inodes_left=None), mount(path="/cache", read_only=True))),
        report(objects=(found(charged_to=("/docker/web/sub",)), found(charged_to=("/docker/web", "/")))),
        report(mounts=(mount(), mount(path="/run", volume=Volume(VolumeKind.HOST, host_path="/run")))),
    ],
)
def test_no_note_without_need(whole):
    assert notes_on(whole) == ()


def test_removal_as_a_document():
    judged = judge([found(), replace(SEGMENT, changed_ns=NOW_NS)], (mount(),), Rules(), NOW_NS)
    would = json.loads(shm_removal.removal_json(judged, None, NOW_NS))
    assert ([each["name"] for each in would["would_remove"]], would["freed_bytes"]) == (["/dev/shm/psm_1f2e"], 5 * MIB)
    assert [each["reason"] for each in would["kept"]] == ["changed 0 s ago: younger than 60 s (--min-age)"]
    done = json.loads(shm_removal.removal_json(judged, [Removal(found(), "it is gone")], NOW_NS))
    assert (done["removed"], done["freed_bytes"]) == ([], 0)
    assert [each["reason"] for each in done["kept"]][-1] == "it is gone"


def test_lines_of_a_watch_into_a_file():
    seen = watch(mount(used_bytes=10 * MIB), mount(used_bytes=30 * MIB), mount(used_bytes=30 * MIB))
    out = io.StringIO()
    view = shm_watch.LineWatch(seen, out)
    view.refresh()
    for _ in range(2):
        seen.sample()
        view.refresh()
    view.lines([event("shm_full", used_bytes=64 * MIB, size_bytes=64 * MIB, length_bytes=MIB, path="/dev/shm/x")])
    view.summary()
    lines = out.getvalue().splitlines()
    assert lines[0].endswith("/dev/shm: 10 MiB of 64 MiB, peak 10 MiB, 54 MiB left to its size")
    assert lines[1].endswith("/dev/shm: 30 MiB of 64 MiB, peak 30 MiB, 54 MiB left to its size")
    assert "shm_full" in lines[2] and "no room for 1 MiB" in lines[2]
    assert "/dev/shm: peak 64 MiB of 64 MiB, full once" in lines
    assert "/dev/shm: recommended size: 192 MiB" in lines


def test_a_terminal_is_drawn_again(capsys):
    seen = watch(mount(used_bytes=10 * MIB), mount(used_bytes=30 * MIB))
    view = shm_watch.ScreenWatch(seen, 60)
    view.refresh()
    first = capsys.readouterr().out
    assert "\x1b" not in first
    seen.sample()
    view.refresh()
    second = capsys.readouterr().out
    assert second.startswith(f"\x1b[{first.count(chr(10))}F\x1b[J")
    assert "30 MiB" in second
    assert all(len(row) <= 60 for row in first.splitlines())
