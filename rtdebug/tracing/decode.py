"""From the kernel's records to EventLines: the one way, for the live trace and for a recording."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from rtdebug.containers.model import Container
from rtdebug.tracing import fields
from rtdebug.tracing.entries import Entry, line_from, place_from, process_from
from rtdebug.tracing.fields import CALL_FIELDS, Aggregate, Call, Fields, Host
from rtdebug.tracing.line import EventLine, Value
from rtdebug.tracing.processes import Process, ProcessTable
from rtdebug.tracing.schema import STRUCT_OF, Array, Schema, text_of

_NO_CONTAINER = Container(id="", name=None, runtime=None, pid=None, status="", cgroup=None)

Time = TypeVar("Time", int, NDArray[np.int64])

CALLS_AT_ONCE = 4096
"""Records turned into Python objects together; bounds what the tracing process holds."""


class Decoder:
    """Turns records into lines; holds what they need to be understood.

    `clock_offset_ns` is CLOCK_REALTIME minus CLOCK_MONOTONIC on the host where the records were made.
    """

    def __init__(self, schema: Schema, host: Host, clock_offset_ns: int) -> None:
        self.schema = schema
        self.processes = ProcessTable()
        self.unknown_records = 0
        """Records of an event that this rtdebug does not know: left out."""
        self.host = host
        self.clock_offset_ns = clock_offset_ns
        self._stacks: dict[tuple[int, int], list[Value]] = {}
        self._tmpfs_mounts: dict[int, str] = {}

    def learn(self, entry: Entry) -> EventLine | None:
        """Take in what user space found (see entries.py). Returns the line if the entry is one."""
        if value := entry.get("process"):
            self.processes.add(process_from(value), value["since_ns"])
        elif value := entry.get("place"):
            self.processes.add_place(value["memcg_id"], place_from(value))
        elif value := entry.get("stack"):
            self._stacks[value["pid"], value["stack_id"]] = list(value["frames"])
        elif value := entry.get("clock"):
            self.clock_offset_ns = value["offset_ns"]
        elif value := entry.get("tmpfs"):
            self._tmpfs_mounts[value["device_id"]] = value["mount_point"]
        elif value := entry.get("line"):
            return line_from(value)
        return None

    def unix_ns(self, monotonic_ns: Time) -> Time:
        """Return the Unix time of a kernel's time stamp, or of an array of them."""
        return monotonic_ns + self.clock_offset_ns

    def stack(self, pid: int, stack_id: int) -> list[Value] | None:
        """Return the frames of a stack, innermost first; None when nobody could name them."""
        return self._stacks.get((pid, stack_id))

    def calls(self, array: Array) -> Iterator[EventLine]:
        """Give a line for each record of the ring `calls` (dtype `Schema.call_record`)."""
        names, find = self.schema.event_names, self.processes.find
        for start in range(0, len(array), CALLS_AT_ONCE):
            part = array[start : start + CALLS_AT_ONCE]
            for call in map(Call._make, zip(*(part[name].tolist() for name in Call._fields), strict=True)):
                event = names.get(call.event, "")
                fields_of = CALL_FIELDS.get(event)
                if fields_of is None:
                    self.unknown_records += 1
                    continue
                values = self._with_stack(fields_of(call, self.host), call.pid, call.stack_id)
                process = find(call.pid, call.time_ns)
                yield self._line(call.time_ns, event, call.tid, process, call.pid, values)

    def events(self, array: Array) -> Iterator[EventLine]:
        """Give a line for each record of the ring `events` (dtype `Schema.event_record`).

        Process and cgroup events make no line: they change `processes`.
        """
        for raw in array:
            event = self.schema.event_names.get(int(raw["header"]["event"]), "")
            struct = STRUCT_OF.get(event)
            if struct is None or struct == "call_event":
                self.unknown_records += 1
                continue
            record = self.schema.record(struct, raw.tobytes())
            if struct in ("process_event", "cgroup_event"):
                self.processes.apply(event, record)
            else:
                yield self._event_line(event, struct, record)

    def aggregates(self, time_ns: int, array: Array) -> Iterator[EventLine]:
        """Give a line for each key of the aggregation (dtype `Schema.aggregate_record`), as of `time_ns`.

        `time_ns` is CLOCK_MONOTONIC. Calls of all threads are added up, so `tid` is None.
        """
        keys, total = array["key"], array["total"]
        columns = [keys[name] for name in Aggregate._fields[:-2]] + [total["count"], total["length_bytes"]]
        for entry in map(Aggregate._make, zip(*(column.tolist() for column in columns), strict=True)):
            event = self.schema.event_names.get(entry.event, "")
            if event not in CALL_FIELDS:
                self.unknown_records += entry.calls
                continue
            values = self._with_stack(fields.aggregate(event, entry, self.host), entry.pid, entry.stack_id)
            process = self.processes.find(entry.pid, time_ns)
            yield self._line(time_ns, event, None, process, entry.pid, values)

    def _event_line(self, event: str, struct: str, record: np.void) -> EventLine:
        header = record["header"]
        pid, tid, time_ns = int(header["pid"]), int(header["tid"]), int(header["time_ns"])
        process = self.processes.find(pid, time_ns) or Process(pid)
        values = self._event_fields(event, struct, record, process)
        if "stack_id" in (record.dtype.names or ()):
            values = self._with_stack(values, pid, int(record["stack_id"]))
        # the record itself knows these two better than the process table
        comm, ns_pid = text_of(bytes(header["comm"])), int(header["ns_pid"]) or process.ns_pid
        return self._line(time_ns, event, tid, process, pid, values, comm=comm, ns_pid=ns_pid)

    def _event_fields(self, event: str, struct: str, record: np.void, process: Process) -> Fields:
        if struct == "sysv_event":
            return fields.sysv(event, record)
        if struct == "oom_event":
            return fields.oom_kill(record, self.host, self.processes.cgroups, process.cmdline)
        device_id = int(record["device_id"])
        if struct == "tmpfs_event":
            fields_of = fields.sigbus if event == "sigbus" else fields.shm_full
            mount_point = "/dev/shm" if record["at_shm"] else self._tmpfs_mounts.get(device_id)
            return fields_of(record, self.host, mount_point)
        if device_id and not record["memfd"] and event != "memfd_create":
            self._tmpfs_mounts[device_id] = "/dev/shm"
        return fields.shm_file(event, record, self.host)

    def _with_stack(self, values: Fields, pid: int, stack_id: int) -> Fields:
        """Add the frames when a stack was taken; null when nobody could name them."""
        if stack_id >= 0:
            values["stack"] = self.stack(pid, stack_id)
        return values

    def _line(
        self,
        time_ns: int,
        event: str,
        tid: int | None,
        process: Process | None,
        pid: int,
        values: Fields,
        *,
        comm: str | None = None,
        ns_pid: int | None = None,
    ) -> EventLine:
        unix_ns = time_ns + self.clock_offset_ns
        if process is None:
            return EventLine(unix_ns, event, None, None, None, None, pid, ns_pid, tid, comm, values)
        box = process.container or _NO_CONTAINER
        return EventLine(
            unix_ns,
            event,
            box.id or None,
            box.name,
            box.runtime,
            process.cgroup,
            pid,
            process.ns_pid if ns_pid is None else ns_pid,
            tid,
            process.comm if comm is None else comm,
            values,
        )
