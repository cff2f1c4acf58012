"""The page of metrics: what Prometheus' own parser and promtool make of it, whatever containers are called."""

from __future__ import annotations

import re
import subprocess

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rtdebug.export.counters import Counts, Owned
from rtdebug.export.model import Reading, State
from rtdebug.render.metrics import MetricsPage
from rtdebug.render.metrics_list import BUILD, HOST, LAST_KILL, LAST_RSS, OF_COUNTS, OF_STATES, Family
from tests.conftest import ROOT
from tests.unit.export_things import box, full_counts, full_state, snapshot
from tests.unit.test_linters import tool

FAMILIES: tuple[Family, ...] = (
    *(each.family for each in (*OF_STATES, *OF_COUNTS)),
    LAST_KILL,
    LAST_RSS,
    *(family for family, _ in HOST),
    BUILD,
)
Labels = dict[str, str]


def samples(page: bytes) -> dict[str, list[tuple[Labels, float]]]:
    found: dict[str, list[tuple[Labels, float]]] = {}
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    return found


def full_page() -> bytes:
    web = box(pod="web-1", namespace="prod", image="web:1")
    return MetricsPage().page(snapshot((full_state(web),), full_counts(web)))


def test_promtool_has_nothing_to_say() -> None:
    done = subprocess.run(
        [tool("promtool"), "check", "metrics"], input=full_page(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert (done.returncode, done.stdout.decode()) == (0, "")


def test_every_metric_is_on_a_full_page_with_the_labels_it_says() -> None:
    found = samples(full_page())
    assert {family.name for family in FAMILIES} <= set(found)
    for family in FAMILIES:
        own = {label for labels, _ in found[family.name] for label in labels}
        assert set(family.labels) <= own, family.name


def test_the_document_lists_every_metric_with_its_type_and_labels() -> None:
    text = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(rtdebug_\w+)` \| (\w+) \| ([^|]*) \|", text, re.MULTILINE)
    documented = {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
    assert documented == {family.name: (family.kind, set(family.labels)) for family in FAMILIES}


def test_values_and_units() -> None:
    found = samples(full_page())
    who = {"container": "web", "container_id": "abababababab", "namespace": "prod", "pod": "web-1"}
    assert found["rtdebug_container_memory_pressure_seconds_total"] == [
        ({**who, "share": "some"}, pytest.approx(0.001019)),
        ({**who, "share": "full"}, pytest.approx(0.00102)),
    ]
    assert found["rtdebug_oom_victims_total"] == [
        ({**who, "limit_cgroup": "/docker", "limit_owner": "above", "victim": "python"}, 3)
    ]
    assert found["rtdebug_oom_last_kill_timestamp_seconds"] == [(who, 1_700_000_000.5)]
    assert found["rtdebug_container_baseline_outside"][0] == ({**who, "figure": "anon_bytes"}, 1)
    assert found["rtdebug_container_baseline_deviation_ratio"][0][1] == 2


def test_what_is_not_known_is_absent_and_never_0() -> None:
    page = MetricsPage().page(snapshot((State(box(), Reading({"usage_bytes": 5}, {}, {})),), trace_up=False))
    found = {name for name in samples(page) if name.startswith("rtdebug_container_")}
    assert found == {
        "rtdebug_container_info",
        "rtdebug_container_memory_usage_bytes",
        "rtdebug_container_unresponsive",
    }
    assert "rtdebug_oom_kills_total" not in samples(page)


def test_counters_of_a_running_container_begin_at_0_while_the_trace_runs() -> None:
    found = samples(MetricsPage().page(snapshot((full_state(box()),))))
    assert found["rtdebug_oom_kills_total"][0][1] == 0
    assert {labels["reason"] for labels, _ in found["rtdebug_sigbus_total"]} == {
        "tmpfs_full", "beyond_end_of_file", "hwpoison", "other",
    }  # fmt: skip


def test_counters_of_a_container_that_is_gone_stay_and_those_of_no_container_have_no_name() -> None:
    gone = full_counts(box("gone", "cd" * 32))
    nobody = Owned(None, {("oom_kills",): 1}, None)
    found = samples(MetricsPage().page(snapshot((full_state(box()),), Counts((*gone.owned, nobody)))))
    kills = {labels.get("container", ""): value for labels, value in found["rtdebug_oom_kills_total"]}
    assert kills == {"web": 0, "gone": 3, "": 1}


HOSTILE = [
    "x" * 300,
    'a"b\\c\nd\re',
    "\x1b[31mred\x1b[0m\x07",
    "name\n# TYPE evil counter\nevil 1",
    "bytes \udcff\udcfe",
    "\u202egnp.exe \u2028 \x85",
    "{}=,",
    "",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_breaks_nothing(name: str) -> None:
    web = box(name, cgroup="/docker/" + name)
    counts = Counts((Owned(web, {("oom_victims", name, name, name): 1, ("oom_kills",): 1}, None),))
    page = MetricsPage().page(snapshot((full_state(web),), counts))
    found = samples(page)
    assert "evil" not in found
    assert found["rtdebug_oom_kills_total"][0][1] == 1
    text = page.decode()
    assert all(line.isprintable() for line in text.split("\n"))
    assert max(len(value) for labels, _ in found["rtdebug_oom_victims_total"] for value in labels.values()) <= 256


def test_containers_that_look_alike_stay_different() -> None:
    boxes = [
        box("web", "ab" * 32, "/docker/a"),
        box("web", "ab" * 32, "/other/a"),
        box("web", "ab" * 6 + "cd" * 26, "/docker/c"),
        box("x" * 300 + "1", "1" * 64),
        box("x" * 300 + "2", "1" * 12 + "2" * 52, "/docker/a"),
        box("\x1b", "5" * 64, "/docker/e"),
        box("\\x1b", "5" * 64, "/docker/f"),
    ]
    found = samples(MetricsPage().page(snapshot(tuple(map(full_state, boxes)))))
    for name, all_of_it in found.items():
        seen = [tuple(sorted(labels.items())) for labels, _ in all_of_it]
        assert len(seen) == len(set(seen)), name
    assert len(found["rtdebug_container_memory_usage_bytes"]) == len(boxes)


def test_victims_that_look_alike_are_one() -> None:
    web = box()
    values = {("oom_victims", "/a", "above", "\x1b"): 2, ("oom_victims", "/a", "above", "\\x1b"): 3}
    found = samples(MetricsPage().page(snapshot((full_state(web),), Counts((Owned(web, values, None),)))))
    assert [value for _, value in found["rtdebug_oom_victims_total"]] == [5]
