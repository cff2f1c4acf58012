"""Root file systems of Debian, made by mmdebstrap, and what rtdebug's setup wants to find in them."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

from lab.call import call
from lab.debian import host_mirror
from lab.host import CHECKOUT

WHEELS = "usr/local/share/wheels"
"""Where pip of the root finds what rtdebug needs, below the root."""
_PIP = f"""# All that rtdebug needs lies in a folder, so that no network is needed. Without these lines pip asks PyPI.
[global]
no-index = true
find-links = /{WHEELS}
"""


def make_root(folder: Path, suite: str, packages: Iterable[str], hooks: Sequence[str] = ()) -> None:
    """Fill `folder` with a suite of Debian. Each hook is a shell command that finds the folder in "$1"."""
    command = ["nice", "mmdebstrap", "--quiet", "--mode=root", "--variant=minbase", f"--include={','.join(packages)}"]
    command += [f"--customize-hook={hook}" for hook in hooks]
    call(*command, suite, folder, host_mirror())


def add_wheels(root: Path, python: str, extra: str) -> None:
    """Download rtdebug's requirements with an `extra` for a version of Python, and tell the root's pip of them."""
    folder = root / WHEELS
    folder.mkdir(parents=True)
    text = (CHECKOUT / "pyproject.toml").read_text(encoding="utf-8")
    download = (CHECKOUT / ".venv/bin/python", "-m", "pip", "download", "--quiet", "--only-binary=:all:")
    call(*download, "--python-version", python, "--dest", folder, *requirements(text, extra))
    (root / "etc/pip.conf").write_text(_PIP, encoding="ascii")


def requirements(pyproject: str, extra: str) -> list[str]:
    """What an editable installation with the `extra` needs, what builds it included."""
    parsed = tomllib.loads(pyproject)
    project = parsed["project"]
    name, extras = project["name"], project["optional-dependencies"]
    found = dict.fromkeys([*parsed["build-system"]["requires"], "editables", *project["dependencies"]])
    asked = [extra]
    for each in asked:
        for line in extras[each]:
            if line.startswith(f"{name}["):
                asked += line.removeprefix(f"{name}[").rstrip("]").split(",")
            else:
                found[line] = None
    return list(found)


def setup_packages(*options: str) -> list[str]:
    """The Debian packages that scripts/setup would install."""
    return call(CHECKOUT / "scripts/setup", "--list", *options).split()
