"""What an experiment needs beside rtdebug itself."""

from __future__ import annotations

from importlib.util import find_spec

from rtdebug.errors import HostUnable


def require_extras() -> None:
    """Raise HostUnable, with the remedy, before an experiment is run whose answer could not be told."""
    missing = [name for name in ("scipy", "matplotlib", "pyarrow") if find_spec(name) is None]
    if missing:
        raise HostUnable(f"an experiment needs {', '.join(missing)}", "pip install 'rtdebug[madvise]'")
