"""Why a trace cannot run here: every reason at once, looked for only when there is one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rtdebug.errors import HostUnable, RtdebugError
from rtdebug.host.capabilities import Capability, read_effective

NEEDED = frozenset({Capability.CAP_BPF, Capability.CAP_PERFMON})
"""Without these nothing is loaded, and other things fail first and less clearly."""


@contextmanager
def every_reason() -> Iterator[None]:
    """Around the start of a trace: what fails for one missing thing lists all that are missing, with remedies.

    Raises HostUnable at once without the capabilities to trace, and for every RtdebugError inside whose reason
    may be the host; errors of the user's own (usage, target) pass as they are.
    """
    held = read_effective()
    if held is not None and not held >= NEEDED:
        raise _all_missing() or HostUnable("this process may not trace", "run as root")
    try:
        yield
    except RtdebugError as error:
        if error.exit_code not in (RtdebugError.exit_code, HostUnable.exit_code):
            raise
        raise _all_missing() or error from error


def _all_missing() -> HostUnable | None:
    from rtdebug.host.features import blocking, host_unable, run_checks  # takes a second: not before it is needed

    checks = run_checks()
    return host_unable(checks) if blocking(checks) else None
