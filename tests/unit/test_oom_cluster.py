"""Clusters of OOM kills: what they share, and how they lie in time."""

from __future__ import annotations

import json

from rtdebug.containers.model import Container
from rtdebug.oom.cluster import find_clusters
from rtdebug.oom.episode import make_episode
from rtdebug.oom.kernel_log import read_oom_log
from rtdebug.render.oom_clusters import clusters_json, clusters_table
from tests.unit.oom_dumps import MIB, Task, memcg_dump

CART, PAY = "/docker/" + "a7" * 32, "/docker/" + "b3" * 32


def kill(clock, cgroup=CART, comm="worker-1", host="node-7", rss=15_000, owner=None):
    lines = memcg_dump({"anon": 60 * MIB}, [Task(7001, comm, rss)], cgroup=cgroup)
    (record,) = read_oom_log([f"2026-03-{clock}+00:00 {host} kernel: {line}" for line in lines])
    return make_episode(record, f"{host}.log", owner=owner)


def test_workers_of_one_container_are_one_cluster():
    episodes = [kill(f"01T1{hour}:00:00", comm=f"worker-{hour}", rss=14_000 + hour) for hour in range(5)]
    episodes += [kill("02T10:00:00", cgroup=PAY, comm="java")]
    first, second = find_clusters(episodes)
    assert (first.owner_kind, first.owner, first.comm, first.kills) == ("container", "a7" * 32, "worker-#", 5)
    assert (first.pattern, first.median_interval_s) == ("periodic", 3600)
    assert (first.kind, first.dominant_kind) == ("anon_one_process", "anon")
    assert first.median_held_bytes == 14_002 * 4096
    assert first.median_limit_bytes == 64 * MIB
    assert first.last_ns - first.first_ns == 4 * 3600 * 10**9
    assert (second.kills, second.pattern, second.median_interval_s) == (1, "once", None)


def test_containers_of_one_image_on_many_hosts():
    def owner(cgroup):
        return Container(cgroup[-64:], "x", "docker", None, "running", cgroup, image="shop/cart:7")

    episodes = [
        kill(f"01T10:0{minute}:00", path, host=host, owner=owner)
        for minute, (path, host) in enumerate([(CART, "node-7"), (PAY, "node-8"), (CART, "node-7")])
    ]
    (cluster,) = find_clusters(episodes)
    assert (cluster.owner_kind, cluster.owner, cluster.containers) == ("image", "shop/cart:7", 2)
    assert cluster.hosts == ("node-7", "node-8")
    assert cluster.pattern == "burst"


def test_uneven_distances():
    episodes = [kill(f"{day:02d}T10:00:00") for day in (1, 2, 5, 14, 16)]
    assert find_clusters(episodes)[0].pattern == "repeated"


def test_names_that_are_no_utf_8():
    episodes = [kill("01T10:00:00", comm="a\udcff", host="node"), kill("01T11:00:00", comm="a\udcff", host="node")]
    assert [(each.comm, each.kills) for each in find_clusters(episodes)] == [("a\udcff", 2)]


def test_shown():
    clusters = find_clusters([kill("01T10:00:00"), kill("01T11:00:00")])
    table = clusters_table(clusters)
    assert "container a7a7a7a7a7a7" in table
    assert table.splitlines()[-1] == "2 OOM kills in 1 cluster"
    fields = json.loads(clusters_json(clusters))
    assert (fields["event"], fields["kills"], fields["first"]) == ("oom_cluster", 2, "2026-03-01T10:00:00.000000000Z")
    assert find_clusters([]) == []
