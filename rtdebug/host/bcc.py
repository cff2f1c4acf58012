"""Where the distribution's bcc is, and which version, without importing it: it would keep LLVM in memory."""

from __future__ import annotations

import os
import re
from pathlib import Path

from rtdebug.errors import HostUnable

_FOLDERS = (
    "usr/lib/python3/dist-packages/bcc",
    "usr/local/lib/python3/dist-packages/bcc",
    "usr/lib/python3.*/site-packages/bcc",
    "usr/local/lib/python3.*/site-packages/bcc",
    "usr/lib/python3.*/dist-packages/bcc",
)
INSTALL_HINT = "apt-get install python3-bpfcc (Fedora: python3-bcc); the bcc on PyPI is another program"


def find_bcc(root: Path = Path("/")) -> Path:
    """The folder of the distribution's bcc, or the one that RTDEBUG_BCC names. Raises HostUnable.

    PyPI's `bcc` is another program: ours has libbcc.py.
    """
    chosen = os.environ.get("RTDEBUG_BCC")
    folders = (
        [Path(chosen)]
        if chosen
        else [folder for pattern in _FOLDERS for folder in sorted(root.glob(pattern), reverse=True)]
    )
    for folder in folders:
        if (folder / "libbcc.py").is_file():
            return folder
    raise HostUnable("bcc is not installed", INSTALL_HINT)


def parse_version(text: str) -> str | None:
    """`0.26.0` of bcc's version.py; None if it does not say."""
    match = re.search(r"""__version__\s*=\s*['"]([^'"]+)""", text)
    return match[1] if match else None


def read_version(folder: Path) -> str | None:
    """Version of the bcc in `folder`; None if it does not say."""
    try:
        return parse_version((folder / "version.py").read_text(encoding="utf-8"))
    except OSError:
        return None
