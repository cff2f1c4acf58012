"""What `rtdebug doctor` found: as a list for people, and as one JSON document.

The document: {"can_trace": bool, "missing": [names], "checks": [{name, state, required, detail, needed_for,
remedy}]}; `missing` holds what keeps `rtdebug trace` from running. A state is `ok`, `missing`, `degraded`, `unknown` or
`not_needed`: that is shown quietly, and its remedy is in the document only.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rtdebug.host.features import Check, State, blocking, host_unable
from rtdebug.render.escape import escape
from rtdebug.render.terminal import Style, paint
from rtdebug.tracing.line import Value

_STATE_WIDTH = 12
_NAME_WIDTH = 22
_STYLES = {
    State.OK: Style.GOOD,
    State.MISSING: Style.ALARM,
    State.DEGRADED: Style.FAILED,
    State.UNKNOWN: Style.FAILED,
    State.NOT_NEEDED: Style.QUIET,
}
_QUIET = (State.OK, State.NOT_NEEDED)
"""Nothing is to be done about these."""


def doctor_fields(checks: Sequence[Check]) -> dict[str, Value]:
    """The document, see the module's text."""
    missing = blocking(checks)
    return {
        "can_trace": not missing,
        "missing": [check.name for check in missing],
        "checks": [
            {
                "name": check.name,
                "state": check.state.value,
                "required": check.required,
                "detail": check.detail,
                "needed_for": check.needed_for,
                "remedy": check.remedy or None,
            }
            for check in checks
        ],
    }


def render_doctor(checks: Sequence[Check], width: int = 80, colour: bool = False) -> list[str]:
    """What a trace needs, then the rest, with the remedy of what is not right, and the verdict."""
    titles = {True: "rtdebug trace needs", False: "Not needed for a trace, but good to have or to know"}
    lines = [paint(f"{'STATE':{_STATE_WIDTH}}{'CHECK':{_NAME_WIDTH}}NEEDED FOR: FOUND", Style.TITLE, colour)]
    for required, title in titles.items():
        group = [check for check in checks if check.required is required]
        if group:
            lines += ["", paint(title, Style.TITLE, colour)]
        for check in group:
            lines += _entry(check, max(width, 60), colour)
    return [*lines, "", _verdict(checks, colour)]


def _entry(check: Check, width: int, colour: bool) -> list[str]:
    first, *rest = _wrap(f"{check.needed_for}: {check.detail}", width)
    state = f"{check.state.value.replace('_', ' '):{_STATE_WIDTH}}"
    style = _STYLES[check.state] if check.required or check.state in _QUIET else Style.FAILED
    lines = [f"{paint(state, style, colour)}{check.name:{_NAME_WIDTH}}{first}", *map(_indent, rest)]
    if check.remedy and check.state not in _QUIET:
        lines += map(_indent, _wrap(f"remedy: {check.remedy}", width))
    return lines


def _wrap(text: str, width: int) -> list[str]:
    return textwrap.wrap(escape(text), width - _STATE_WIDTH - _NAME_WIDTH) or [""]


def _indent(line: str) -> str:
    return " " * (_STATE_WIDTH + _NAME_WIDTH) + line


def _verdict(checks: Sequence[Check], colour: bool) -> str:
    if not blocking(checks):
        return paint("rtdebug trace can run on this host.", Style.GOOD, colour)
    return paint(f"{escape(host_unable(checks).message)}.", Style.ALARM, colour)
