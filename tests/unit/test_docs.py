"""The documents say what the code does: keys of events, options, commands, links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from rtdebug.cli import COMMANDS, cli
from rtdebug.oom.kill import OomKill
from rtdebug.oom.report import build_report
from rtdebug.render.jsonl import encode_event
from rtdebug.render.summary import summary_fields
from rtdebug.tracing.decode import Decoder
from rtdebug.tracing.fields import Host
from rtdebug.tracing.line import EventLine
from rtdebug.tracing.options import AGGREGATED, EVENTS
from rtdebug.tracing.summary import SummaryBuilder
from tests.conftest import ROOT
from tests.unit.records import SCHEMA, call, counted, event

DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
NUMBER = r"\d+(?:[.,]\d+)*"
COMMAND_NAMES = [name for name, _ in COMMANDS]


def section(name: str) -> str:
    """The text below a heading of docs/events.md, down to the next heading."""
    text = (ROOT / "docs" / "events.md").read_text(encoding="utf-8")
    match = re.search(rf"^##+ {re.escape(name)}\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL)
    assert match, f"docs/events.md has no section {name}"
    return match[1]


def documented(name: str) -> set[str]:
    """The keys in the first column of a section's table."""
    cells = re.findall(r"^\| (`[^|]*?) \|", section(name), re.MULTILINE)
    return {key for cell in cells for key in re.findall(r"`(\w+)`", cell)}


def line_of(name: str) -> EventLine:
    decoder = Decoder(SCHEMA, Host("x86_64", 4096), 0)
    if name == "oom_kill":
        return build_report(OomKill(time_ns=5, pid=7, tid=7)).to_line(0)
    lines = decoder.calls(call(name)) if name in AGGREGATED else decoder.events(event(name))
    return next(iter(lines))


RESULT = documented("Result of a call")
TMPFS = documented("A tmpfs that is full")


@pytest.mark.parametrize("name", EVENTS)
def test_keys_of_an_event(name: str) -> None:
    shared = {"shm_full": TMPFS, "sigbus": TMPFS, "oom_kill": set[str]()}.get(name, RESULT)
    assert set(line_of(name).fields) == documented(name) | shared


def test_keys_of_calls_that_were_added_up() -> None:
    decoder = Decoder(SCHEMA, Host("x86_64", 4096), 0)
    lines = [next(decoder.aggregates(0, counted(name))) for name in sorted(AGGREGATED)]
    assert {key for line in lines for key in line.fields} == documented("Added up") | {"errno"}


def test_keys_of_every_event() -> None:
    own = line_of("shmdt")
    keys = set(re.findall(r'"(\w+)":', encode_event(own))) - set(own.fields)
    assert keys == documented("Keys of every event")


def test_keys_of_the_summary() -> None:
    assert set(summary_fields(SummaryBuilder().finish(0, 1, 0))) == documented("The summary line")


@pytest.mark.parametrize("name", COMMAND_NAMES)
def test_the_readme_knows_every_command_and_the_documents_every_option(name: str) -> None:
    readme = readme_text()
    documents = readme + "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md"))
    command = cli.get_command(click.Context(cli), name)
    assert isinstance(command, click.Command)
    for path, each in with_subcommands(name, command):
        options = [option for parameter in each.params for option in parameter.opts if option.startswith("--")]
        assert f"rtdebug {path}" in readme
        assert [option for option in options if option not in documents and option != "--output"] == []


def with_subcommands(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from with_subcommands(f"{path} {name}", below)


def readme_text() -> str:
    return (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readme_knows_every_event() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [name for name in EVENTS if f"`{name}`" not in text] == []


def test_the_readmes_figures_are_those_of_the_benchmarks() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    costs = readme.partition("\n## What it costs\n")[2].partition("\n## ")[0]
    measured = set(re.findall(NUMBER, (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")))
    assert costs
    assert set(re.findall(NUMBER, costs)) - measured == set()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)", path.read_text(encoding="utf-8"))
    inside = [link for link in links if "://" not in link]
    missing = {(path.parent / link).resolve() for link in inside if not (path.parent / link).exists()}
    assert not missing
