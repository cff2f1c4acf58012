"""Counters of the trace: they go on when a container is gone, and nobody can make any number of them."""

from __future__ import annotations

from rtdebug.containers.model import Container
from rtdebug.export.counters import OTHER, Counters, Delta, LastKill
from rtdebug.export.traced import Adder, keys_of
from rtdebug.tracing.line import EventLine, Value


def box(name: str) -> Container:
    return Container(name, name, "docker", 7, "running", f"/docker/{name}")


def delta(container_id: str | None, counts: dict[tuple[str, ...], int], kill: LastKill | None = None) -> Delta:
    return Delta(container_id, container_id, "docker", None, counts, kill)


def line(event: str, container_id: str | None = "web", comm: str = "python", **fields: Value) -> EventLine:
    cgroup = "/docker/web" if container_id == "web" else "/other"
    return EventLine(3_000_000_000, event, container_id, None, None, cgroup, 5, None, None, comm, fields)


def values(counters: Counters, container_id: str) -> dict[tuple[str, ...], int]:
    owned = [each for each in counters.counts().owned if (each.container.id if each.container else "") == container_id]
    return dict(owned[0].values) if owned else {}


def test_they_add_up_and_outlive_the_container() -> None:
    counters = Counters(100)
    counters.see([box("web")])
    counters.add(delta("web", {("oom_kills",): 2}, LastKill(5.0, 77)))
    counters.see([])
    counters.add(delta("web", {("oom_kills",): 1}))
    assert values(counters, "web") == {("oom_kills",): 3}
    (owned,) = counters.counts().owned
    assert owned.container is not None and owned.container.status == "stopped"
    assert owned.last_kill == LastKill(5.0, 77)


def test_processes_in_no_container_are_counted() -> None:
    counters = Counters(100)
    counters.add(delta(None, {("shm_full",): 3}))
    (owned,) = counters.counts().owned
    assert owned.container is None and dict(owned.values) == {("shm_full",): 3}


def test_a_cgroup_that_the_trace_did_not_know_is_a_containers() -> None:
    counters = Counters(100)
    counters.see([box("web")])
    for cgroup, count in (("/docker/web/below", 1), ("/docker/web", 2), ("/user.slice", 4), (None, 8)):
        counters.add(Delta(None, None, None, cgroup, {("oom_kills",): count}))
    assert values(counters, "web") == {("oom_kills",): 3}
    assert values(counters, "") == {("oom_kills",): 12}


def test_who_is_dead_the_longest_goes_first() -> None:
    counters = Counters(6)
    for name in ("old", "new", "live"):
        counters.add(delta(name, {("oom_kills",): 1, ("shm_full",): 1}))
    counters.see([box("new"), box("live")])
    counters.see([box("live")])
    counters.add(delta("fresh", {("oom_kills",): 1}))
    ids = [owned.container.id for owned in counters.counts().owned if owned.container]
    assert "old" not in ids and {"new", "live", "fresh"} <= set(ids)
    assert counters.counts().dropped == 2


def test_without_room_events_are_refused_and_that_is_counted() -> None:
    counters = Counters(2)
    counters.see([box("live")])
    counters.add(delta("live", {("oom_kills",): 1, ("shm_full",): 1}))
    counters.see([box("live")])
    counters.add(delta("live", {("sigbus", "other"): 5, ("oom_kills",): 1}))
    assert values(counters, "live") == {("oom_kills",): 2, ("shm_full",): 1}
    assert counters.counts().refused == 5


def test_a_container_that_renames_its_processes_gets_twenty_victims() -> None:
    counters = Counters(1000)
    for number in range(50):
        counters.add(delta("web", {("oom_victims", "/docker/web", "container", f"comm{number}"): 1}))
    found = values(counters, "web")
    assert len(found) == 21
    assert found["oom_victims", OTHER, OTHER, OTHER] == 30


def test_what_a_line_counts() -> None:
    assert keys_of(line("oom_kill", oom_memcg="/a", limit_owner="above")) == {
        ("oom_kills",): 1,
        ("oom_victims", "/a", "above", "python"): 1,
    }
    assert keys_of(line("sigbus", reason="tmpfs_full")) == {("sigbus", "tmpfs_full"): 1}
    assert keys_of(line("sigbus", reason=None)) == {("sigbus", "other"): 1}
    assert keys_of(line("shm_full")) == {("shm_full",): 1}
    assert keys_of(line("madvise", advice="MADV_COLD", count=23, failures=0, length_bytes=4096)) == {
        ("madvise_calls", "madvise", "MADV_COLD", "ok"): 23,
        ("madvise_bytes", "madvise", "MADV_COLD"): 4096,
    }
    assert keys_of(line("madvise", advice="0x7777", count=3, failures=3, length_bytes=4096)) == {
        ("madvise_calls", "madvise", "other", "failed"): 3
    }
    assert keys_of(line("mmap")) == {}


def test_a_kill_is_sent_at_once_and_the_rest_when_asked() -> None:
    sent: list[object] = []
    adder = Adder(sent.append)
    adder.lines([line("shm_full"), line("shm_full", "db")])
    assert sent == []
    adder.lines([line("oom_kill", anon_rss_bytes=5, file_rss_bytes=None, shmem_rss_bytes=2)])
    web = next(each for each in sent if isinstance(each, Delta) and each.container_id == "web")
    assert dict(web.counts) == {("shm_full",): 1, ("oom_kills",): 1, ("oom_victims", "", "", "python"): 1}
    assert web.last_kill == LastKill(3.0, 7)
    adder.flush()
    assert len(sent) == 2
