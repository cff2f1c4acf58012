"""What verdicts need beside rtdebug itself."""

from __future__ import annotations

from importlib.util import find_spec

from rtdebug.errors import HostUnable


def require_extras(*more: str) -> None:
    """Raise HostUnable, with the remedy, before verdicts are tried that cannot be made. `more`: for a page."""
    missing = [name for name in ("scipy", "sklearn", "pyarrow", *more) if find_spec(name) is None]
    if missing:
        raise HostUnable(f"verdicts on leaks need {', '.join(missing)}", "pip install 'rtdebug[leaks]'")
