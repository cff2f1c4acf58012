"""From a target to its diagnosis; a container that is down is looked for in the kernel log."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path

from rtdebug.containers.inventory import Inventory
from rtdebug.containers.resolve import called, find_container, list_containers
from rtdebug.diagnose.app_log import AppMessage, read_app_log
from rtdebug.diagnose.facts import Asked, Facts, read_diagnosis
from rtdebug.diagnose.finding import Finding
from rtdebug.diagnose.rules import diagnose
from rtdebug.errors import AmbiguousTarget, NotRunning, RtdebugError, TargetError
from rtdebug.host.stopping import Wait
from rtdebug.oom.gather import Places

_MESSAGES_AT_MOST = 10_000

Notice = Callable[[str], None]


def read_messages(path: Path) -> tuple[AppMessage, ...]:
    """What a program's log (`-`: standard input) says of shared memory. Raises RtdebugError."""
    try:
        with open(0 if str(path) == "-" else path, errors="replace", closefd=str(path) != "-") as file:
            return tuple(islice(read_app_log(file), _MESSAGES_AT_MOST))
    except OSError as error:
        raise RtdebugError(f"cannot read {path}: {error.strerror}", "give the log of the program, as text") from None


def diagnose_one(
    target: str,
    runc_roots: Sequence[Path],
    kernel_logs: Sequence[Path],
    messages: tuple[AppMessage, ...],
    sample_s: float,
    wait: Wait,
    notice: Notice,
) -> tuple[Facts, tuple[Finding, ...]]:
    """One container. Raises TargetError if nobody, not even the kernel log or the program's, knows it."""
    inventory = cache(lambda: list_containers(runc_roots))
    log = Places(tuple(kernel_logs))
    try:
        container, notes = find_container(target, runc_roots)
    except TargetError as unknown:
        return _of_one_that_is_down(unknown, Asked(target, None, None, log, messages), inventory, wait)
    for note in notes:
        notice(note)
    facts = read_diagnosis(
        Asked(target, container, inventory().hierarchy, log, messages), inventory, sample_s, wait
    )
    return facts, diagnose(facts)


def _of_one_that_is_down(
    unknown: TargetError, asked: Asked, inventory: Callable[[], Inventory], wait: Wait
) -> tuple[Facts, tuple[Finding, ...]]:
    """By its id where a runtime remembers that: logs know no names. Raises TargetError if no log knows it either."""
    if isinstance(unknown, AmbiguousTarget):
        raise unknown from None
    known = called(asked.target, inventory())
    first = replace(known[0], pid=None, status="stopped", cgroup=None) if known else None
    ids = frozenset(container.id for container in known)
    facts = read_diagnosis(replace(asked, container=first, ids=ids), inventory, 0, wait)
    if facts.episodes or asked.messages:
        return facts, diagnose(facts)
    if first is None or facts.notes:
        raise unknown from None
    raise NotRunning(
        f"container {asked.target!r} does not run, and {asked.log} has no OOM kill of it",
        "it ended for another reason, or that log has turned over: `rtdebug oom --journal --container NAME` asks the "
        "journal, --kernel-log FILE reads another log, --app-log FILE the program's own",
    ) from None


def diagnose_all(
    runc_roots: Sequence[Path], kernel_logs: Sequence[Path], sample_s: float, wait: Wait, notice: Notice
) -> Iterator[tuple[str, Facts, tuple[Finding, ...]]]:
    """Every running container."""
    inventory: Inventory = list_containers(runc_roots)
    for note in inventory.notes:
        notice(note)
    for container in inventory.containers:
        if container.is_running and not container.sandbox:
            asked = Asked(container.id, container, inventory.hierarchy, Places(tuple(kernel_logs)))
            facts = read_diagnosis(asked, lambda: inventory, sample_s, wait)
            yield container.name or container.id, facts, diagnose(facts)
