"""However rtdebug is installed (wheel, editable, bare checkout), it finds the sources in bpf/."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.conftest import ROOT

FIND = "from rtdebug.tracing.sources import bpf_folder; print(bpf_folder())"


def build(target: str, folder: Path) -> Path:
    """Build a wheel with the hatchling that is installed: no network, no isolation."""
    pytest.importorskip("hatchling")
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(folder)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    (wheel,) = folder.glob("*.whl")
    return wheel


def install(wheel: Path, folder: Path) -> Path:
    """Unpack a pure Python wheel as pip would."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def run_python(code: str, cwd: Path) -> str:
    """Run code in a fresh interpreter that sees no checkout by itself (-P: the folder is not on the path)."""
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def sources(folder: Path) -> dict[str, bytes]:
    """Return the files of a bpf folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_wheel_holds_the_bpf_sources(tmp_path: Path) -> None:
    site = install(build("wheel", tmp_path / "dist"), tmp_path / "site")
    found = run_python(f"import sys; sys.path.insert(0, {str(site)!r}); {FIND}", tmp_path)
    assert Path(found) == site / "rtdebug" / "bpf"
    assert sources(Path(found)) == sources(ROOT / "bpf")


def test_wheel_holds_the_plans_of_experiments(tmp_path: Path) -> None:
    site = install(build("wheel", tmp_path / "dist"), tmp_path / "site")
    code = "from rtdebug.madvise import plan_text as p; print(len([p.read_plan([name]) for name in p.shipped_plans()]))"
    assert run_python(f"import sys; sys.path.insert(0, {str(site)!r}); {code}", tmp_path) == "4"


def test_wheel_holds_nothing_but_the_package(tmp_path: Path) -> None:
    site = install(build("wheel", tmp_path / "dist"), tmp_path / "site")
    assert {path.name for path in site.iterdir() if not path.name.endswith(".dist-info")} == {"rtdebug"}


def test_editable_install_finds_the_checkout(tmp_path: Path) -> None:
    site = install(build("wheel:editable", tmp_path / "dist"), tmp_path / "site")
    # the .pth file is read as in site-packages; what it adds goes first, before an rtdebug already installed
    code = f"""
import site, sys
before = sys.path[:]
site.addsitedir({str(site)!r})
sys.path[:] = [path for path in sys.path if path not in before] + before
{FIND}"""
    assert Path(run_python(code, tmp_path)) == ROOT / "bpf"


def test_bare_checkout_finds_its_own(tmp_path: Path) -> None:
    found = run_python(f"import sys; sys.path.insert(0, {str(ROOT)!r}); {FIND}", tmp_path)
    assert Path(found) == ROOT / "bpf"
