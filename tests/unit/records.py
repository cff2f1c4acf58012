"""Records as the kernel would send them, made by hand for tests of the decoder and of recordings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from rtdebug.containers.model import Container
from rtdebug.tracing.recording import Start
from rtdebug.tracing.schema import STRUCT_OF, Array, load_schema

SCHEMA = load_schema()
OFFSET_NS = 1_700_000_000_000_000_000
BOX = Container("c0ffee" * 10 + "cafe", "web", "docker", 4100, "running", "/docker/c0ffee")


def call(kind: str, /, **values: Any) -> Array:
    """One record of the ring `calls`."""
    record = np.zeros(1, SCHEMA.call_record)
    for name, value in {"stack_id": -1, "pid": 4177, "tid": 4178, "time_ns": 5_000, **values}.items():
        record[name] = value
    record["event"] = SCHEMA.event_ids[kind]
    return record


def event(kind: str, /, **values: Any) -> Array:
    """One record of the ring `events`; names that the header has go there."""
    record = np.zeros(1, SCHEMA.structs[STRUCT_OF[kind]])
    defaults = {"pid": 4177, "tid": 4178, "ns_pid": 7, "comm": b"worker", "time_ns": 5_000}
    if "stack_id" in record.dtype.names:
        defaults["stack_id"] = -1
    for key, value in (defaults | values).items():
        place = record["header"] if key in record["header"].dtype.names else record
        place[key] = value
    record["header"]["event"] = SCHEMA.event_ids[kind]
    padded = record.tobytes().ljust(SCHEMA.event_record.itemsize, b"\0")
    return np.frombuffer(padded, SCHEMA.event_record)


def slots(array: Array, discarded: tuple[int, ...] = ()) -> Array:
    """The records as slots of a ring, as the kernel submits them."""
    dtype = SCHEMA.call_slot if array.dtype == SCHEMA.call_record else SCHEMA.event_slot
    made = np.zeros(len(array), dtype)
    made["length"] = array.dtype.itemsize
    made["length"][list(discarded)] |= 1 << 30
    made["record"] = array
    return made


def counted(kind: str, /, **values: Any) -> Array:
    """One entry of the kernel's aggregation."""
    record = np.zeros(1, SCHEMA.aggregate_record)
    for key, value in {"pid": 4177, "stack_id": -1, **values}.items():
        record["total" if key in ("count", "length_bytes") else "key"][key] = value
    record["key"]["event"] = SCHEMA.event_ids[kind]
    return record


def start(**values: Any) -> Start:
    """How a made-up trace began."""
    fields: dict[str, Any] = {
        "version": "0.1",
        "command_line": ("rtdebug", "trace", "web"),
        "kernel_release": "6.1.0-test",
        "machine": "x86_64",
        "hostname": "node-7",
        "boot_id": None,
        "started_ns": OFFSET_NS + 1_000,
        "clock_offset_ns": OFFSET_NS,
        "page_size_bytes": 4096,
        "byte_order": "little",
        "cgroup_version": 2,
        "target": BOX,
        "options": {"every_call": True},
        "events_h": SCHEMA.text,
    }
    return Start(**fields | values)


def cut(path: Path, size: int) -> None:
    """Keep only the first bytes of a file."""
    path.write_bytes(path.read_bytes()[:size])
