"""What is in deploy/: alert rules that fire, a dashboard whose queries are right, files that their readers accept."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from rtdebug.host.capabilities import Capability
from tests.conftest import ROOT
from tests.unit.test_export_metrics import FAMILIES
from tests.unit.test_linters import check, tool

DEPLOY = ROOT / "deploy"
RULES = DEPLOY / "prometheus" / "rtdebug.rules.yml"
RULE_TESTS = DEPLOY / "prometheus" / "rtdebug.rules.test.yml"
NAMES = {family.name for family in FAMILIES}


def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((DEPLOY / "grafana" / "rtdebug.json").read_text())
    return loaded


def queries() -> list[tuple[str, str]]:
    """Title of the panel and each of its queries."""
    return [(panel["title"], target["expr"]) for panel in dashboard()["panels"] for target in panel.get("targets", ())]


def unit() -> dict[str, list[str]]:
    """Settings of the systemd unit."""
    settings: dict[str, list[str]] = {}
    for line in (DEPLOY / "systemd" / "rtdebug-export.service").read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            settings.setdefault(key, []).append(value)
    return settings


def daemon_set() -> dict[str, Any]:
    documents = yaml.safe_load_all((DEPLOY / "kubernetes" / "rtdebug-export.yaml").read_text())
    return next(document for document in documents if document["kind"] == "DaemonSet")


def test_rules_are_valid() -> None:
    check(tool("promtool"), "check", "rules", RULES)


def test_every_rule_fires_and_stays_quiet() -> None:
    check(tool("promtool"), "test", "rules", RULE_TESTS)


def test_every_rule_has_both_tests() -> None:
    alerts = {rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]}
    tests = [each for test in yaml.safe_load(RULE_TESTS.read_text())["tests"] for each in test["alert_rule_test"]]
    assert {test["alertname"] for test in tests if test["exp_alerts"]} == alerts
    assert {test["alertname"] for test in tests if not test["exp_alerts"]} == alerts


def test_rules_and_dashboard_name_metrics_that_there_are() -> None:
    text = RULES.read_text() + json.dumps(dashboard())
    assert set(re.findall(r"\brtdebug_\w+", text)) <= NAMES


def test_the_document_explains_every_alert_on_containers() -> None:
    text = (ROOT / "docs" / "export.md").read_text()
    groups = {group["name"]: group["rules"] for group in yaml.safe_load(RULES.read_text())["groups"]}
    assert [rule["alert"] for rule in groups["rtdebug-containers"] if f"| {rule['alert']}" not in text] == []


def test_the_dashboard_is_whole() -> None:
    found = dashboard()
    ids = [panel["id"] for panel in found["panels"]]
    assert len(ids) == len(set(ids))
    for panel in found["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        assert panel["type"] == "row" or panel["targets"], panel["title"]


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    text = (DEPLOY / "systemd" / "rtdebug-export.service").read_text()
    here = tmp_path / "rtdebug-export.service"
    here.write_text(re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable}", text, flags=re.MULTILINE))
    done = subprocess.run([tool("systemd-analyze"), "verify", "--man=no", here], capture_output=True, text=True)
    about_us = [line for line in (done.stdout + done.stderr).splitlines() if "rtdebug" in line]
    assert about_us == []


def test_kubernetes_accepts_the_manifest() -> None:
    import kubernetes_validate

    documents = list(yaml.safe_load_all((DEPLOY / "kubernetes" / "rtdebug-export.yaml").read_text()))
    assert [document["kind"] for document in documents] == ["Namespace", "DaemonSet"]
    for document in documents:
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


def test_everywhere_the_same_capabilities_each_with_its_reason() -> None:
    (bounding,) = unit()["CapabilityBoundingSet"]
    wanted = {name.removeprefix("CAP_") for name in bounding.split()}
    (container,) = daemon_set()["spec"]["template"]["spec"]["containers"]
    assert set(container["securityContext"]["capabilities"]["add"]) == wanted
    recipe = (DEPLOY / "Containerfile").read_text()
    match = re.search(r"--cap-add=([\w,]+)", recipe)
    assert match and set(match[1].split(",")) == wanted
    table = (ROOT / "docs" / "export.md").read_text().partition("## What it may do")[2].partition("\n## ")[0]
    assert set(re.findall(r"\bCAP_(\w+)", table)) == wanted
    assert not {capability.name.removeprefix("CAP_") for capability in Capability} - wanted - {"SYS_ADMIN"}


def test_nothing_is_privileged() -> None:
    spec = daemon_set()["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    security = container["securityContext"]
    assert "privileged" not in security and security["allowPrivilegeEscalation"] is False
    assert security["capabilities"]["drop"] == ["ALL"]
    assert all(mount["readOnly"] for mount in container["volumeMounts"] if mount["name"] != "cache")
    assert not spec["automountServiceAccountToken"]


def test_the_command_lines_are_ours() -> None:
    from click.testing import CliRunner

    from rtdebug.commands.export import command

    (container,) = daemon_set()["spec"]["template"]["spec"]["containers"]
    recipe = re.search(r"^CMD (\[.*\])$", (DEPLOY / "Containerfile").read_text(), re.MULTILINE)
    assert recipe
    for arguments in (container["args"], json.loads(recipe[1]), unit()["ExecStart"][0].split()[1:]):
        assert arguments[0] == "export"
        done = CliRunner().invoke(command, [*arguments[1:], "--help"])
        assert done.exit_code == 0
        parsed = command.make_context("export", arguments[1:])
        assert parsed.params["baseline"] == "mad"
