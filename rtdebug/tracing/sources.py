"""Where the BPF programs' sources lie: inside the installed package, or beside it in a checkout."""

from __future__ import annotations

from pathlib import Path

from rtdebug.errors import HostUnable

PACKAGE = Path(__file__).resolve().parent.parent


def bpf_folder(package: Path = PACKAGE) -> Path:
    """Return the folder that holds events.h and the programs: a wheel's, or a checkout's (editable or bare).

    Raises HostUnable when neither is there.
    """
    for folder in (package / "bpf", package.parent / "bpf"):
        if (folder / "events.h").is_file():
            return folder
    raise HostUnable(
        f"the BPF sources are missing beside {package}", "reinstall rtdebug: its folder bpf/ must be there"
    )


def read_source(name: str) -> str:
    """Return the text of one file of bpf/, for example `events.h`. Raises HostUnable when it is not there."""
    path = bpf_folder() / name
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise HostUnable(f"cannot read {path}: {error.strerror}", "reinstall rtdebug") from error
