"""OomTask: the processes of the limited cgroup, from the task table of the kernel log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rtdebug.oom.record import TaskRow

TASKS_AT_MOST = 20


@dataclass(frozen=True, slots=True)
class OomTask:
    """One process at the time of the kill. A column that the kernel did not print is None."""

    pid: int
    """tgid."""
    comm: str | None
    rss_bytes: int | None
    """anon, file and shmem; memory that processes share counts for each of them."""
    swap_bytes: int | None
    oom_score_adj: int | None


def largest_tasks(rows: Sequence[TaskRow], page_size_bytes: int, victim_pid: int) -> tuple[OomTask, ...] | None:
    """Return the TASKS_AT_MOST largest by RSS, and the victim if it is not among them; None without a table."""
    if not rows:
        return None
    tasks = sorted((_task(row, page_size_bytes) for row in rows), key=_size, reverse=True)
    victim = [task for task in tasks[TASKS_AT_MOST:] if task.pid == victim_pid]
    return (*tasks[:TASKS_AT_MOST], *victim)


def _task(row: TaskRow, page_size_bytes: int) -> OomTask:
    return OomTask(
        pid=row.pid if row.tgid is None else row.tgid,
        comm=row.comm,
        rss_bytes=_bytes(row.rss_pages, page_size_bytes),
        swap_bytes=_bytes(row.swapents, page_size_bytes),
        oom_score_adj=row.oom_score_adj,
    )


def _bytes(pages: int | None, page_size_bytes: int) -> int | None:
    return None if pages is None else pages * page_size_bytes


def _size(task: OomTask) -> tuple[int, int]:
    return task.rss_bytes or 0, task.swap_bytes or 0
