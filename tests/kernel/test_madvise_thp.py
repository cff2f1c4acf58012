"""The shipped plans of `rtdebug madvise run` under every setting of transparent huge pages. In a guest of the lab only:
the settings are the whole machine's.

    scripts/vm-test 6.12 -- tests/kernel/test_madvise_thp.py
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from rtdebug.madvise.apply_plan import read_host
from rtdebug.madvise.plan_text import shipped_plans
from tests.kernel.test_madvise_run import inhabited, leaves, run
from tests.kernel.tracing import target
from tests.kernel.workload import MIB

ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")
SHMEM_ENABLED = ENABLED.with_name("shmem_enabled")

IN_GUEST = "lab.cgroup=" in Path("/proc/cmdline").read_text()
pytestmark = [pytest.mark.kernel, pytest.mark.skipif(not IN_GUEST, reason="only in a guest of scripts/vm-test")]


@pytest.fixture(params=["always", "madvise", "never"])
def setting(request: pytest.FixtureRequest) -> Iterator[str]:
    before = {path: path.read_text().split("[")[1].split("]")[0] for path in (ENABLED, SHMEM_ENABLED)}
    try:
        ENABLED.write_text(request.param)
        SHMEM_ENABLED.write_text({"madvise": "advise"}.get(request.param, request.param))
        yield request.param
    finally:
        for path, chosen in before.items():
            path.write_text(chosen)


def answer(*arguments: object) -> dict:
    with inhabited(128 * MIB) as cgroup:
        done = run(target(cgroup), *arguments, "-o", "json")
        assert done.returncode == 0, done.stderr
        assert leaves(cgroup) == []
    return json.loads(done.stdout)


def huge(document: dict, advice: str | None, memory: str = "anon") -> float:
    (found,) = [
        each["median"]
        for each in (*document["baseline"], *document["results"])
        if (each["memory"], each["advice"], each["measure"]) == (memory, advice, "thp_bytes")
    ]
    return found


def hindrances(document: dict, advice: str, memory: str = "anon") -> set[str | None]:
    return {each["hindrance"] for each in document["results"] if (each["memory"], each["advice"]) == (memory, advice)}


def test_huge_pages_of_anonymous_memory(setting: str) -> None:
    document = answer("anon", "8M", "HUGEPAGE,NOHUGEPAGE,COLLAPSE", "runs=3")
    assert document["thp_enabled"] == setting
    assert huge(document, None) == (8 * MIB if setting == "always" else 0)
    assert huge(document, "MADV_NOHUGEPAGE") == 0
    if read_host().collapses:
        assert huge(document, "MADV_COLLAPSE") == 8 * MIB, "it does not ask for the setting"
    else:
        assert {each["errno"] for each in document["results"] if each["advice"] == "MADV_COLLAPSE"} == {"EINVAL"}
    if setting == "never":
        assert huge(document, "MADV_HUGEPAGE") == 0
        assert hindrances(document, "MADV_HUGEPAGE") == {"transparent_hugepage/enabled is never"}
    else:
        assert huge(document, "MADV_HUGEPAGE") == 8 * MIB
        assert hindrances(document, "MADV_HUGEPAGE") == {None}
    unneeded = next(iter(hindrances(document, "MADV_NOHUGEPAGE")))
    assert unneeded is None if setting == "always" else "none to avoid" in (unneeded or "")


def test_huge_pages_of_shared_memory(setting: str) -> None:
    document = answer("memfd", "8M", "HUGEPAGE", "runs=3")
    assert huge(document, None, "memfd") == (8 * MIB if setting == "always" else 0)
    assert huge(document, "MADV_HUGEPAGE", "memfd") == (0 if setting == "never" else 8 * MIB)
    assert (hindrances(document, "MADV_HUGEPAGE", "memfd") == {None}) is (setting != "never")


@pytest.mark.parametrize("plan", sorted(shipped_plans()))
def test_shipped_plans(setting: str, plan: str) -> None:
    document = answer(plan, "--size", "4M", "--runs", 2)
    assert (document["plan"], document["stopped"], document["not_measured"]) == (plan, None, [])
    assert {each["runs"] for each in document["baseline"] if each["measure"] == "total_ns"} == {2}
    assert document["results"]
