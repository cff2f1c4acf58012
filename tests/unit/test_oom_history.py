"""The ring of a cgroup's last minutes."""

from dataclasses import dataclass, field

import pytest

from rtdebug.oom.history import MemoryHistory

S = 1_000_000_000


@dataclass(frozen=True)
class Reading:
    usage_bytes: int | None
    stat: dict = field(default_factory=dict)
    kmem_usage_bytes: int | None = None


def test_keeps_the_newest_and_their_order():
    readings = iter(Reading(number) for number in range(100))
    history = MemoryHistory(lambda: next(readings), span_ns=7 * S)
    for second in range(23):
        assert history.sample(second * S)
    assert [sample.time_ns // S for sample in history.samples()] == list(range(16, 23))
    assert [sample.usage_bytes for sample in history.samples()] == list(range(16, 23))


def test_not_before_it_is_due():
    history = MemoryHistory(lambda: Reading(1))
    assert history.due_ns is None
    assert history.sample(0)
    assert history.due_ns == S
    assert not history.sample(S - 1)
    assert history.sample(S)
    assert len(history.samples()) == 2


@pytest.mark.parametrize(
    ("stat", "expected"),
    [
        pytest.param({"anon": 1, "file": 2, "shmem": 3, "slab": 4}, (1, 2, 3, 4), id="v2"),
        pytest.param(
            {"rss": 1, "cache": 2, "shmem": 3, "total_rss": 11, "total_cache": 12, "total_shmem": 13},
            (11, 12, 13, None),
            id="v1 counts what is below in total_",
        ),
        pytest.param({"rss": 1, "cache": 0}, (1, 0, None, None), id="old v1 has no shmem: unknown, not 0"),
        pytest.param({}, (None, None, None, None), id="nothing"),
    ],
)
def test_kinds(stat, expected):
    history = MemoryHistory(lambda: Reading(None, stat), cgroup="/a")
    history.sample(5)
    (sample,) = history.samples()
    assert (sample.anon_bytes, sample.file_bytes, sample.shmem_bytes, sample.slab_bytes) == expected
    assert sample.usage_bytes is None
    assert (history.last_stat.stat, history.last_stat.time_ns, history.last_stat.cgroup) == (stat, 5, "/a")


def test_a_cgroup_that_is_gone_ends_nothing():
    answers = iter([Reading(1), OSError("no such device"), None, Reading(2)])

    def read():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    history = MemoryHistory(read)
    assert [history.sample(second * S) for second in range(4)] == [True, False, False, True]
    assert [sample.usage_bytes for sample in history.samples()] == [1, 2]
    assert history.last_stat.time_ns == 3 * S
