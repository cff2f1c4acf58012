"""Linters are tests: one command proves them all. A missing tool is a skip here, a failure in CI."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

SHELL_SCRIPTS = [
    path
    for path in [*sorted((ROOT / "scripts").glob("*")), ROOT / ".ci" / "run"]
    if path.is_file() and path.read_bytes().startswith(b"#!/usr/bin/env bash\n")
]
# Folders where many a checkout lies and which text may well name.
COMMON_FOLDERS = {"/", "/home", "/mnt", "/opt", "/root", "/srv", "/tmp", "/usr/src", "/var/tmp"}


def tool(name: str) -> str:
    """Return the tool's path: beside the running interpreter, else on PATH."""
    found = shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if found is not None:
        return found
    message = f"{name} is not installed (scripts/setup --test installs it)"
    if os.environ.get("CI"):
        pytest.fail(message, pytrace=False)
    pytest.skip(message)


def check(*command: str | Path) -> None:
    """Run a linter in the root of the repository and show what it says if it fails."""
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout


def tracked_files() -> list[Path]:
    """Return the files of the repository, those not yet added included."""
    # safe.directory: root runs the tests in a user's checkout
    options = ["-z", "--cached", "--others", "--exclude-standard"]
    command = [tool("git"), "-c", "safe.directory=*", "ls-files", *options]
    git = subprocess.run(command, cwd=ROOT, capture_output=True)
    if git.returncode != 0:
        pytest.skip("not a git checkout")
    paths = [ROOT / os.fsdecode(name) for name in git.stdout.split(b"\0") if name]
    return [path for path in paths if path.is_file()]


def bcc_imports(path: Path) -> list[int]:
    """Return the lines on which a module imports bcc."""
    lines = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        else:
            continue
        lines += [node.lineno for name in names if name.split(".")[0] == "bcc"]
    return lines


def hosts_of_this_machine() -> set[str]:
    """Return the hosts this machine gets packages from."""
    pip_config = [sys.executable, "-m", "pip", "config", "list"]
    text = subprocess.run(pip_config, capture_output=True, text=True).stdout
    for path in [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*")]:
        if path.is_file():
            text += path.read_text(errors="replace")
    hosts = set(re.findall(r"https?://(?:[^/@\s\"']*@)?([\w.-]+)", text))
    return hosts - {"localhost", "127.0.0.1"}


def test_ruff() -> None:
    check(tool("ruff"), "check", ".")


def test_mypy() -> None:
    check(tool("mypy"))


def test_imports_point_downwards_only() -> None:
    check(tool("lint-imports"), "--no-cache")


@pytest.mark.parametrize("path", SHELL_SCRIPTS, ids=lambda path: path.name)
def test_shellcheck(path: Path) -> None:
    check(tool("shellcheck"), path)


def test_scripts_are_executable() -> None:
    assert SHELL_SCRIPTS
    assert [path for path in SHELL_SCRIPTS if not os.access(path, os.X_OK)] == []


def test_only_the_compiler_imports_bcc() -> None:
    compiler = ROOT / "rtdebug" / "tracing" / "compiler.py"
    importers = {path for path in (ROOT / "rtdebug").rglob("*.py") if bcc_imports(path)}
    assert importers <= {compiler}


def test_an_import_of_bcc_is_found(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text("def late():\n    from bcc.table import Table\n\n    import os, bcc\n\nimport bccx\n")
    assert bcc_imports(module) == [2, 4]


def test_every_file_of_bpf_names_its_licence() -> None:
    sources = [path for path in (ROOT / "bpf").rglob("*") if path.suffix in {".c", ".h"}]
    assert sources
    licence = re.compile(r"/\* SPDX-License-Identifier: GPL-2\.0")
    assert [path.name for path in sources if not licence.match(path.read_text())] == []


def test_no_path_or_registry_of_this_machine_is_in_the_repository() -> None:
    forbidden = {host.encode() for host in hosts_of_this_machine()}
    if str(ROOT.parent) not in COMMON_FOLDERS:
        forbidden.add(f"{ROOT.parent}/".encode())
    found = [
        f"{path.relative_to(ROOT)}: {text.decode()}"
        for path in tracked_files()
        for text in forbidden
        if text in path.read_bytes()
    ]
    assert found == []
