"""What rtdebug raises for a person to read: one message that names the thing, and a hint what to do.

The library raises these; `rtdebug.cli.main` is the only place that prints them and turns them into the
exit status of DESIGN's contract. A traceback on the screen is a bug.
"""


class RtdebugError(Exception):
    """It failed while running (exit status 1)."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageProblem(RtdebugError):
    """The options or arguments are wrong (exit status 2)."""

    exit_code = 2


class HostUnable(RtdebugError):
    """This host cannot do it (exit status 3); the hint lists every missing thing with its remedy."""

    exit_code = 3


class TargetError(RtdebugError):
    """No such container, or the name is ambiguous (exit status 4); the hint lists candidates."""

    exit_code = 4


class NotRunning(TargetError):
    """The container is known, and does not run now."""


class AmbiguousTarget(TargetError):
    """Several containers that run are called so."""
