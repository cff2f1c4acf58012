"""Options and arguments that commands share, so that the same thing has the same name everywhere."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from rtdebug.errors import UsageProblem
from rtdebug.host.sizes import parse_bytes
from rtdebug.render.guess import did_you_mean
from rtdebug.tracing.options import EVENTS

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

_SHORTEST_S = 0.001
_LONGEST_S = 36500 * 86400.0
_SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def size(text: str) -> int:
    """Type of an option: bytes, from 65536, 64k, 64KiB, 1.5M, 2GiB; units are powers of 1024."""
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def duration(text: str) -> float:
    """Type of an option: seconds, 1 ms to 100 years, from 30, 30s, 500ms, 5m, 2h, 1d."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([a-z]*)", text.strip().lower(), re.ASCII)
    if not match or match[2] not in _SECONDS or not float(match[1]):
        raise click.BadParameter(f"'{text}' is no duration: give 30, 30s, 500ms, 5m, 2h or 1d")
    seconds = float(match[1]) * _SECONDS[match[2]]
    if not _SHORTEST_S <= seconds <= _LONGEST_S:
        raise click.BadParameter(f"'{text}' is out of range: give 1ms to 36500d")
    return seconds


def moment(text: str) -> float:
    """Type of an option: Unix time, from a duration ago (2h, 7d) or a date (2026-03-01, 2026-03-01T14:00:00Z).

    A date without a zone is one of this machine's.
    """
    from datetime import datetime

    try:
        return time.time() - duration(text)
    except click.BadParameter:
        pass
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError, OSError):
        raise click.BadParameter(
            f"'{text}' is no time: give how long ago (30m, 2h, 7d), or a date like 2026-03-01 or 2026-03-01 14:00"
        ) from None


def output_option(*forms: str) -> Decorator:
    """`-o table|json`; `forms` are those the command has, the default first."""
    choice = click.Choice(forms or ("table", "json"))
    return click.option(
        "-o",
        "--output",
        type=choice,
        default=choice.choices[0],
        show_default=True,
        help="Form of the output.",
    )


def interval_option(help_text: str, default: str | None = None) -> Decorator:
    """`--interval TIME`."""
    return _time_option("--interval", "interval_s", help_text, default)


def duration_option(help_text: str) -> Decorator:
    """`--duration TIME`."""
    return _time_option("--duration", "duration_s", help_text)


def _time_option(name: str, parameter: str, help_text: str, default: str | None = None) -> Decorator:
    shown = default is not None
    return click.option(
        name, parameter, type=duration, metavar="TIME", default=default, show_default=shown, help=help_text
    )


def event_names(text: str) -> tuple[str, ...]:
    """Type of an option: one event, or several with commas between them. Raises UsageProblem."""
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in EVENTS:
            raise UsageProblem(
                f"--event: no event '{name}'{did_you_mean(name, EVENTS)}", f"the events are {', '.join(EVENTS)}"
            )
    return names


def event_option() -> Decorator:
    """`--event NAME[,NAME...]`, repeatable: a tuple, each event once, empty for all."""
    return click.option(
        "--event",
        "events",
        type=event_names,
        multiple=True,
        metavar="NAME[,NAME...]",
        callback=lambda _ctx, _parameter, lists: tuple(dict.fromkeys(name for names in lists for name in names)),
        shell_complete=complete_event,
        help="Only these kinds of event; may be given several times. Of: " + ", ".join(EVENTS) + ".",
    )


def complete_event(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The last name of a list, with those before it."""
    before, comma, last = incomplete.rpartition(",")
    return [before + comma + name for name in EVENTS if name.startswith(last)]


def pid_number(text: str) -> int:
    """Type of an option: the number of a process."""
    if not re.fullmatch(r"0*[1-9]\d{0,9}", text.strip(), re.ASCII):
        raise click.BadParameter(f"'{text}' is no pid: give the number of a process, as the host counts")
    return int(text)


def pid_option() -> Decorator:
    """`--pid PID`, as the host numbers it."""
    return click.option(
        "--pid",
        type=pid_number,
        metavar="PID",
        help="Only this process, not its children, by its pid on the host.",
    )


def baseline_options(help_text: str, *more: str, default: str | None = None) -> Decorator:
    """`--baseline[=METHOD]` and `--window TIME`: what is usual for a figure; `more` are further words for METHOD."""
    method = click.option(
        "--baseline",
        is_flag=False,
        flag_value="mad",
        default=default,
        show_default=default is not None,
        type=click.Choice(["mad", "2sigma", "2.5sigma", *more]),
        help=f"{help_text}: by median and MAD, or mean and standard deviation.",
    )
    window = click.option(
        "--window",
        "window_s",
        type=duration,
        default="30m",
        show_default=True,
        metavar="TIME",
        help="With --baseline: what is usual is what was so for this time.",
    )
    return lambda function: method(window(function))


def runc_root_option() -> Decorator:
    """`--runc-root DIR`, repeatable: a tuple of paths."""
    return click.option(
        "--runc-root",
        "runc_roots",
        type=click.Path(file_okay=False, path_type=Path),
        multiple=True,
        metavar="DIR",
        help="One more --root of runc or crun to look for containers in.",
    )


def target_argument(required: bool = True) -> Decorator:
    """TARGET: a container by any name its owner knows it by; the shell completes running ones."""
    return click.argument("target", required=required, shell_complete=complete_container)


def complete_container(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names and short ids of running containers that begin with `incomplete`.

    A shell that completes must never show an error, so none is raised here.
    """
    try:
        from rtdebug.containers.resolve import list_containers

        containers = list_containers().containers
    except Exception:  # whatever it is: no completion
        return []
    return _matching([(container.name, container.id, container.runtime) for container in containers], incomplete)


def _matching(containers: Sequence[tuple[str | None, str, str | None]], incomplete: str) -> list[CompletionItem]:
    """Names first; ids only where somebody begins to type one. Nothing a shell could trip over (D13)."""
    items = [
        CompletionItem(label, help=runtime)
        for name, full_id, runtime in containers
        for label in (name or full_id[:12], full_id[:12] if incomplete else None)
        if label and label.startswith(incomplete) and re.fullmatch(r"[\w./@-]+", label, re.ASCII)
    ]
    return list({item.value: item for item in items}.values())
