"""What a container needs, by a recording of `rtdebug leaks record`."""

from __future__ import annotations

from pathlib import Path

from rtdebug.containers.model import Container
from rtdebug.errors import UsageProblem
from rtdebug.leaks.store import read_table
from rtdebug.limits.demand import Demand, demand_recorded

_COLUMNS = (
    "time_ns",
    "container_id",
    "container_name",
    "cgroup",
    "usage_bytes",
    "anon_bytes",
    "shmem_bytes",
    "slab_bytes",
    "kernel_stack_bytes",
    "page_tables_bytes",
)


def recorded_demand(store: Path, container: Container) -> Demand:
    """The highest figures of a container in a store: by its id, else its name, so through its restarts.

    Raises UsageProblem if there is no such store, or nothing of the container in it.
    """
    table, _notes = read_table((store,), "cgroups", _COLUMNS)
    frame = table.to_pandas()
    rows = frame["container_id"] == container.id
    if container.name:
        rows |= frame["container_name"] == container.name
    demand = demand_recorded(frame[rows], f"the recording {store}")
    if demand is None:
        raise UsageProblem(
            f"{store} has nothing of {container.name or container.id}",
            "`rtdebug leaks record` records all containers; let it run for a day",
        )
    return demand
