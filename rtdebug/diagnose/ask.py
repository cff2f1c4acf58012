"""From a target to its diagnosis; a container that is down is looked for in the kernel log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from rtdebug.containers.model import Container
from rtdebug.containers.resolve import called, find_container, list_containers
from rtdebug.diagnose.app_log import WORDS, AppMessage, read_app_log
from rtdebug.diagnose.facts import Around, Asked, Facts, Moment, read_diagnosis, read_moment
from rtdebug.diagnose.finding import Finding
from rtdebug.diagnose.rules import diagnose
from rtdebug.errors import AmbiguousTarget, NotRunning, RtdebugError, TargetError
from rtdebug.host.cgroup import MemoryHierarchy
from rtdebug.limits.facts import place_of
from rtdebug.oom.gather import Places
from rtdebug.oom.scan import BLOCK_BYTES, words_in_lines
from rtdebug.shm.report import read_uses

_MESSAGES_AT_MOST = 10_000

Notice = Callable[[str], None]


def read_messages(path: Path) -> tuple[AppMessage, ...]:
    """What a program's log (`-`: standard input) says of shared memory. Raises RtdebugError."""
    try:
        with open(0 if str(path) == "-" else path, "rb", closefd=str(path) != "-") as file:
            blocks = iter(lambda: file.read1(BLOCK_BYTES), b"")
            lines = (line.decode(errors="replace") for line in words_in_lines(blocks, WORDS))
            return tuple(islice(read_app_log(lines), _MESSAGES_AT_MOST))
    except OSError as error:
        raise RtdebugError(f"cannot read {path}: {error.strerror}", "give the log of the program, as text") from None


def diagnose_one(
    target: str,
    runc_roots: Sequence[Path],
    kernel_logs: Sequence[Path],
    messages: tuple[AppMessage, ...],
    sample_s: float,
    notice: Notice,
) -> tuple[Facts, tuple[Finding, ...]]:
    """One container. Raises TargetError if nobody, not even the kernel log or the program's, knows it."""
    around = Around(lambda: list_containers(runc_roots), Places(tuple(kernel_logs)))
    try:
        container, notes = find_container(target, runc_roots)
    except TargetError as unknown:
        return _of_one_that_is_down(unknown, Asked(target, None, None, messages), around)
    for note in notes:
        notice(note)
    facts = read_diagnosis(Asked(target, container, around.inventory.hierarchy, messages), around, sample_s)
    return facts, diagnose(facts)


def _of_one_that_is_down(unknown: TargetError, asked: Asked, around: Around) -> tuple[Facts, tuple[Finding, ...]]:
    """By its id where a runtime remembers that: logs know no names. Raises TargetError if no log knows it either."""
    if isinstance(unknown, AmbiguousTarget):
        raise unknown from None
    known = called(asked.target, around.inventory)
    first = replace(known[0], pid=None, status="stopped", cgroup=None) if known else None
    ids = frozenset(container.id for container in known)
    facts = read_diagnosis(replace(asked, container=first, ids=ids), around, 0)
    if facts.episodes or asked.messages:
        return facts, diagnose(facts)
    if first is None or facts.notes:
        raise unknown from None
    raise NotRunning(
        f"container {asked.target!r} does not run, and {around.log} has no OOM kill of it",
        "it ended for another reason, or that log has turned over: `rtdebug oom --journal --container NAME` asks the "
        "journal, --kernel-log FILE reads another log, --app-log FILE the program's own",
    ) from None


def diagnose_all(
    runc_roots: Sequence[Path],
    kernel_logs: Sequence[Path],
    sample_s: float,
    notice: Notice,
    progress: Callable[[int, int], object],
) -> Iterator[tuple[str, Facts, tuple[Finding, ...]]]:
    """Every running container; the two looks at the counters are the same time apart for all."""
    around = Around(lambda: list_containers(runc_roots), Places(tuple(kernel_logs)))
    inventory = around.inventory
    for note in inventory.notes:
        notice(note)
    running = [container for container in inventory.containers if container.is_running and not container.sandbox]
    before = {container.id: _first_look(container, inventory.hierarchy) for container in running}
    uses = read_uses(running, inventory.hierarchy)
    time.sleep(sample_s if running else 0)
    for done, container in enumerate(running):
        progress(done, len(running))
        asked = Asked(container.id, container, inventory.hierarchy, before=before[container.id], uses=uses)
        facts = read_diagnosis(asked, around, 0)
        yield container.name or container.id, facts, diagnose(facts)


def _first_look(container: Container, hierarchy: MemoryHierarchy) -> Moment | None:
    try:
        return read_moment(place_of(container, hierarchy).path)
    except RtdebugError:
        return None
