"""Conducts an experiment from outside: starts it, hears its runs, watches over the container, ends it."""

from __future__ import annotations

import platform
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rtdebug.containers.model import Container
from rtdebug.errors import HostUnable, NotRunning, RtdebugError, TargetError, UsageProblem
from rtdebug.host.cgroup import MemoryHierarchy, nearest_memory_cgroup
from rtdebug.host.inside import read_dev_shm
from rtdebug.host.process import is_running
from rtdebug.madvise.door import Door, find_door
from rtdebug.madvise.experiment import prepare
from rtdebug.madvise.guard import watch
from rtdebug.madvise.hindrance import Settings, read_settings
from rtdebug.madvise.place import Experimenter, send_inside
from rtdebug.madvise.plan import Plan, sized
from rtdebug.madvise.room import Watch, room_bytes
from rtdebug.madvise.run import Run, run_from

_LOOK_S = 0.05
_HUGE_PAGE_BYTES = 2 << 20
_ERRORS = {error.exit_code: error for error in (RtdebugError, UsageProblem, HostUnable, TargetError)}

Progress = Callable[[int, int], None]
"""Called with the runs done and all there are."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an experiment gave."""

    plan: Plan
    """With all sizes known."""
    container: Container
    settings: Settings
    kernel: str
    namespaces: tuple[str, ...]
    """Those of the container that the experiment joined."""
    own_cgroup: bool
    """Its usage was counted apart from the container's."""
    runs: tuple[Run, ...]
    unable: Mapping[int, str] = field(default_factory=dict)
    """Cases of the plan that could not be measured, and why."""
    stopped: str | None = None
    """Why it ended before its time."""

    @property
    def counted(self) -> tuple[Run, ...]:
        """Without warm-up."""
        return tuple(run for run in self.runs if not run.warm_up)


def conduct(plan: Plan, container: Container, hierarchy: MemoryHierarchy, progress: Progress) -> Outcome:
    """Run the plan in the container. Ctrl-C ends it: then the outcome is what was measured up to there.

    Raises UsageProblem for a size beyond the container's room, NotRunning, HostUnable, RtdebugError.
    """
    cgroup = _memory_cgroup(container, hierarchy)
    door = find_door(container, hierarchy)
    settings = read_settings(door.pid, door.privileges.thp_disabled)
    plan = sized(plan, room_bytes(hierarchy, cgroup), _shm_free_bytes(door.pid))
    container_process = watch(door.pid)
    if container_process is None:
        raise _has_exited(container)
    guard = Watch(hierarchy, cgroup, container_process)
    alignment = (settings.thp.pmd_size_bytes if settings.thp else None) or _HUGE_PAGE_BYTES
    experimenter = send_inside(door, hierarchy, cgroup, partial(prepare, plan, alignment))
    hearing = _Hearing(plan, experimenter, guard, progress)
    hearing.listen()
    stopped = hearing.stopped or _ending(hearing, door)
    if hearing.error is not None and not hearing.runs:
        raise hearing.error if is_running(door.pid) else _has_exited(container)
    return Outcome(
        plan=plan,
        container=container,
        settings=settings,
        kernel=platform.release(),
        namespaces=door.namespaces,
        own_cgroup=hearing.own_cgroup,
        runs=tuple(hearing.runs),
        unable=hearing.unable,
        stopped=stopped,
    )


def _has_exited(container: Container) -> NotRunning:
    return NotRunning(f"container {container.name or container.id!r} has just exited", "start it again")


class _Hearing:
    """What has been heard so far."""

    def __init__(self, plan: Plan, experimenter: Experimenter, watch: Watch, progress: Progress) -> None:
        self._plan = plan
        self._experimenter = experimenter
        self._watch = watch
        self._progress = progress
        self.runs: list[Run] = []
        self.unable: dict[int, str] = {}
        self.stopped: str | None = None
        self.error: RtdebugError | None = None
        self.done = False
        self.own_cgroup = False
        self._own_bytes: int | None = None
        self.ended_by: int | None = None

    def listen(self) -> None:
        """Until its end, or until it has to be stopped."""
        try:
            while self.stopped is None and (said := self._experimenter.hear(_LOOK_S)) is not None:
                for each in said:
                    self._take(each)
                self._progress(len(self.runs), self._plan.total_runs)
                self.stopped = None if self.done else self._watch.complaint(self._ahead_bytes)
        except KeyboardInterrupt:
            self.stopped = "interrupted"
        finally:
            self.ended_by = self._experimenter.close()

    def _ahead_bytes(self) -> int:
        """What a run takes at most, beside what the present one has taken."""
        if self._own_bytes is None:
            return 0  # the first run is not over
        largest = max(case.size_bytes or 0 for case in self._plan.cases)
        return min(largest, max(0, largest - (self._experimenter.held_bytes() - self._own_bytes)))

    def _take(self, said: Mapping[str, Any]) -> None:
        match said:
            case {"run": dict(values)}:
                self.runs.append(run_from(values))
            case {"own_cgroup": bool(own)}:
                self.own_cgroup = own
            case {"own_bytes": int(own_bytes)}:
                self._own_bytes = own_bytes
            case {"unable": int(case), "reason": str(reason)}:
                self.unable[case] = reason
            case {"error": str(message), "hint": str(hint), "exit_code": int(code)}:
                self.error = _ERRORS.get(code, RtdebugError)(message, hint)
            case {"done": True}:
                self.done = True


def _shm_free_bytes(pid: int) -> int | None:
    """Of the container's /dev/shm; None: it has no limit, or there is none."""
    shm = read_dev_shm(pid)
    return None if shm is None or shm.size_bytes is None else shm.size_bytes - (shm.used_bytes or 0)


def _memory_cgroup(container: Container, hierarchy: MemoryHierarchy) -> str:
    if container.status == "paused":
        raise TargetError(f"container {container.name or container.id!r} is paused", "resume it first")
    cgroup = container.cgroup
    if cgroup is None or nearest_memory_cgroup(hierarchy, cgroup) is None:
        raise NotRunning(f"container {container.name or container.id!r} has no memory cgroup", "see rtdebug ps")
    return cgroup


def _ending(hearing: _Hearing, door: Door) -> str | None:
    """Why it is over before its time, by how the process inside ended."""
    if hearing.done:
        return None
    if hearing.error is not None:
        return hearing.error.message
    if not is_running(door.pid):
        return "the container ended"
    if hearing.ended_by == signal.SIGBUS:
        return "SIGBUS: the file system of its memory ran full, or its file was cut"
    if hearing.ended_by == signal.SIGKILL:
        return "its process was killed, perhaps by the OOM killer: see rtdebug oom, dmesg"
    return f"its process ended early (signal {hearing.ended_by})" if hearing.ended_by else "its process ended early"
