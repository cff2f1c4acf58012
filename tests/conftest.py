"""What all tests share: where the repository is, and where the real cases are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def root() -> Path:
    """Root of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def cases() -> Path:
    """Folder of real cases, kept outside the repository: RTDEBUG_CASES, or ../shared/cases."""
    folder = Path(os.environ.get("RTDEBUG_CASES") or ROOT.parent / "shared" / "cases")
    if not folder.is_dir():
        pytest.skip(f"no real cases here: {folder} (RTDEBUG_CASES names the folder)")
    return folder
