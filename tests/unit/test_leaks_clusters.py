"""Findings and clusters: what leaks the same way is one group, with what it shares."""

from dataclasses import replace

import pytest

from rtdebug.leaks.clusters import clusters, repository
from rtdebug.leaks.findings import FDS, HEAP, MMAP, THREADS, findings
from rtdebug.leaks.site_growth import SiteGrowth
from rtdebug.leaks.verdict import judge_series
from tests.unit.leak_series import MIB, leaking, series, steady


def judged(name, kind="anon", process=None, executable=None, image=None, value=None, growth=300 * MIB, seed=1):
    made = series(leaking(growth=growth, seed=seed) if value is None else value, name, kind)
    labels = replace(
        made.labels,
        container_id=name * 4,
        process=process,
        executable=executable,
        image=image,
        unit="count" if kind in ("threads", "fds") else "bytes",
    )
    return judge_series(replace(made, labels=labels))


def service(image, executable, names, growth=300 * MIB):
    for seed, name in enumerate(names):
        yield judged(name, image=f"{image}:1.{seed}", growth=growth, seed=seed)
        yield judged(name, "rss_anon", f"{executable}-9f", executable, f"{image}:1.{seed}", growth=growth, seed=seed)


def test_a_container_and_its_process_are_one_finding():
    found = findings(service("shop/web", "python3", ["a"]))
    assert len(found) == 1
    assert found[0].executable == "python3"
    assert found[0].judged.verdict.labels.kind == "anon"


def test_a_process_in_a_container_that_does_not_grow():
    calm = judged("a", value=steady())
    worker = judged("a", "rss_anon", "worker-1", "worker")
    assert [finding.judged.verdict.labels.process for finding in findings([calm, worker])] == ["worker-1"]


def test_two_services_are_two_clusters():
    each = [
        *service("shop/web", "python3", [f"web{n}" for n in range(6)]),
        *service("shop/cart", "java", [f"cart{n}" for n in range(3)], growth=2000 * MIB),
        judged("tmp", "shmem"),
        judged("calm", value=steady()),
    ]
    groups = clusters(findings(each))
    assert [len(group.members) for group in groups] == [3, 6, 1]
    assert [group.number for group in groups] == [1, 2, 3]
    assert groups[0].common["executable"] == "java"
    assert groups[1].common["image"] == "shop/web"
    assert "executable python3 (0 % of the others)" in groups[1].apart
    hourly = sum(member.judged.verdict.growth_per_hour for member in groups[1].members)
    assert groups[1].growth_per_hour == pytest.approx(hourly)
    assert groups[1].typical in groups[1].members


def test_kinds_are_never_one_cause():
    groups = clusters(findings([judged("a"), judged("b", "shmem"), judged("c", "page_tables")]))
    assert len(groups) == 3


def test_patterns_of_the_field():
    count = 4000
    threads = judged("a", "threads", "java-1", "java", value=100 + 400 * leaking(growth=1, base=0) / MIB / MIB)
    growing = [100 + 0.1 * at for at in range(count)]
    threads = judged("a", "threads", "java-1", "java", value=growing)
    assert findings([judged("a"), threads])[0].pattern == THREADS
    fds = judged("a", "fds", "java-1", "java", value=growing)
    assert findings([judged("a"), fds])[0].pattern == FDS
    stairs = [100 * MIB + 16 * MIB * (at // 400) + at % 7 for at in range(count)]
    assert findings([judged("a", value=stairs)])[0].pattern == HEAP
    site = SiteGrowth(None, "a" * 4, "app-1", "mmap", "mmap\nload_model\nmain", 9e8, 1e8, None)
    (found,) = findings([judged("a")], [site])
    assert found.pattern == MMAP
    assert found.site is site
    for kind in ("shmem", "slab", "kernel_stack", "page_tables", "sock"):
        assert findings([judged("a", kind)])[0].pattern.split(":")[0].split(" ")[0] in (
            "tmpfs",
            "slab",
            "kernel",
            "page",
            "socket",
        )


def test_no_findings_no_clusters():
    assert clusters(findings([judged("calm", value=steady())])) == []


def test_many_alike_are_quick():
    one = findings([judged("a", image="x/y:1")])[0]
    (group,) = clusters([one] * 5000)
    assert len(group.members) == 5000


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("registry:5000/shop/web:1.2", "registry:5000/shop/web"),
        ("web@sha256:ab", "web"),
        ("web", "web"),
        (None, None),
        ("", None),
    ],
)
def test_releases_stay_together(image, name):
    assert repository(image) == name
