"""Which orphans may go: each refusal, and beside it what must go."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rtdebug.shm.model import Creator, ObjectKind
from rtdebug.shm.orphans import MIN_AGE_NS, Rules, judge, maker_by_name
from rtdebug.shm.volumes import Volume, VolumeKind
from tests.unit.shm_things import DEVICE, NOW_NS, SECOND, found, mount, user

SEGMENT = found(kind=ObjectKind.SYSV, name="0x5eed0002", inode_id=65538, device_id=None, attached=0)


def verdict(each, rules=None, mounts=None):
    (judged,) = judge([each], (mount(),) if mounts is None else mounts, rules or Rules(), NOW_NS)
    return judged.refusal


@pytest.mark.parametrize("each", [found(), SEGMENT])
def test_an_old_orphan_may_go(each):
    assert verdict(each) is None


@pytest.mark.parametrize("each", [found(orphan=False, holders=(user(),)), found(orphan=None), found(orphan=False)])
def test_what_is_used_or_not_known_is_not_even_a_candidate(each):
    assert judge([each], (mount(),), Rules(0), NOW_NS) == ()


def test_age():
    at_the_limit = found(changed_ns=NOW_NS - MIN_AGE_NS)
    assert verdict(at_the_limit) is None
    younger = verdict(replace(at_the_limit, changed_ns=NOW_NS - MIN_AGE_NS + SECOND))
    assert younger == "changed 59 s ago: younger than 60 s (--min-age)"
    assert verdict(found(changed_ns=NOW_NS + 5 * SECOND)) is not None  # a clock that was set back
    assert verdict(found(changed_ns=None)) == "its age is not known"
    assert verdict(found(changed_ns=NOW_NS), Rules(0)) is None


def test_outside_of_the_containers_mounts():
    assert verdict(found(device_id=DEVICE + 1)) == "it lies in no tmpfs of the container"
    assert verdict(found(), mounts=(mount(covered=True),)) == "it lies in no tmpfs of the container"
    assert verdict(found(), mounts=(mount(read_only=True),)) == "/dev/shm is read-only in the container"


@pytest.mark.parametrize(
    ("charged_to", "goes"),
    [
        (("/docker/web",), True),
        (("/docker/web/worker",), True),
        (("/docker/web", "/docker/other"), False),
        (("/docker/webx",), False),
        (("/",), False),
        (None, False),
        ((), False),
    ],
)
def test_where_others_are_too_only_what_the_container_pays_for(charged_to, goes):
    host = (mount(volume=Volume(VolumeKind.HOST, host_path="/dev/shm")),)
    refusal = verdict(found(shared=True, charged_to=charged_to), Rules(cgroup="/docker/web"), host)
    assert (refusal is None) is goes


def test_a_process_in_the_root_cgroup_owns_nothing_of_the_hosts():
    assert verdict(found(shared=True, charged_to=("/docker/x",)), Rules(cgroup="/")) is not None
    assert verdict(found(shared=True, charged_to=("/docker/x",)), Rules(cgroup=None)) is not None


@pytest.mark.parametrize(
    ("each", "glob", "meant"),
    [
        (found(name="/dev/shm/nccl-a1"), "nccl-*", True),
        (found(name="/dev/shm/sub/nccl-a1"), "nccl-*", True),
        (found(name="/dev/shm/sub/nccl-a1"), "/dev/shm/sub/*", True),
        (found(name="/dev/shm/xnccl-a1"), "nccl-*", False),
        (SEGMENT, "0x5eed*", True),
        (SEGMENT, "65538", True),
        (SEGMENT, "655", False),
        (found(name="/dev/shm/NCCL-a1"), "nccl-*", False),
    ],
)
def test_names(each, glob, meant):
    assert bool(judge([each], (mount(),), Rules(names=("other", glob)), NOW_NS)) is meant


def test_postgresql_may_attach_a_segment_again():
    """dsm_pin_segment: it lives without anybody who maps it, as long as the server does."""
    segment = found(name="/dev/shm/PostgreSQL.2088012784")
    running = Rules(running=frozenset({"postgres", "sh"}))
    assert "PostgreSQL runs here" in (verdict(segment, running) or "")
    assert verdict(segment, replace(running, names=("PostgreSQL.*",))) is None
    assert verdict(segment, Rules(running=frozenset({"sh"}))) is None
    assert verdict(found(), running) is None


@pytest.mark.parametrize(
    ("name", "maker"),
    [
        ("PostgreSQL.2088012784", "PostgreSQL"),
        ("psm_1f2e3d4c", "Python's multiprocessing.shared_memory"),
        ("torch_1394_2747491098", "PyTorch"),
        ("nccl-WU88OE", "NCCL"),
        ("sgl_shm_mm_17", "SGLang"),
        ("sem.mp-x1", "Python's multiprocessing"),
        ("sem.lock", "sem_open(3)"),
        ("mine", None),
    ],
)
def test_whose_name_it_is(name, maker):
    assert maker_by_name(found(name=f"/dev/shm/{name}")) == maker
    assert maker_by_name(found(name=f"/cache/{name}", kind=ObjectKind.FILE, creator=Creator(0))) is None
