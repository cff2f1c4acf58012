"""Session: a trace that runs. Loads and attaches the programs, knows who is in scope, drains what they tell.

The order at the start loses nothing: the cgroups in scope are told to the programs, then they are attached, then
the processes already there are entered. From then on fork, exec, exit and moves between cgroups keep it right.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import platform
import struct
import time
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from rtdebug.containers.model import Container
from rtdebug.containers.owners import OwnerOf, owner_by_path
from rtdebug.host import bpf
from rtdebug.host.mounts import read_mountinfo
from rtdebug.host.process import read_comm
from rtdebug.tracing.aggregates import AggregateReader
from rtdebug.tracing.clock import STEP_NS, clock_offset_ns
from rtdebug.tracing.compiler import compiled_program
from rtdebug.tracing.decode import Decoder
from rtdebug.tracing.entries import Entry, clock_entry, place_entry, process_entry, stack_entry, tmpfs_entry
from rtdebug.tracing.fields import Host
from rtdebug.tracing.line import EventLine
from rtdebug.tracing.loader import TRACED_PAGE, Loaded, load, traced_pages
from rtdebug.tracing.options import Filter, TraceOptions, pack_config
from rtdebug.tracing.processes import Place
from rtdebug.tracing.ring import Ring, records
from rtdebug.tracing.schema import STRUCT_OF, Array, FieldValue, Schema, as_dict, text_of
from rtdebug.tracing.scope import (
    Found,
    Scope,
    cgroups_above,
    cgroups_in,
    find_process,
    find_processes,
    is_compat,
    pids_in,
)
from rtdebug.tracing.tally import tally

if TYPE_CHECKING:
    from rtdebug.tracing.symbols import Symbolizer

CALLS_RING_BYTES = 8 << 20
EVENTS_RING_BYTES = 1 << 19
BOOKKEEPING_RING_BYTES = 1 << 20
AGGREGATE_BYTES = 8 << 20
"""Kernel memory for the aggregation, over all CPUs: bounds its number of keys."""
STACKS = 16384
STACK_DEPTH = 127
"""Frames of a stack: PERF_MAX_STACK_DEPTH."""
STACK_TOP = 4
"""Words of struct stack_top in bpf/stack.h."""
_CALLS_AT_ONCE = 1024
"""Calls that are shown one by one become lines in such portions, for a line takes a thousand bytes."""
_MANY_LEAVING = 1024
"""So many exited processes wait for the last look at what was added up for them, and no more."""
_TRACED, _TRACED_COMPAT, _TRACED_RUNTIME = 1, 2, 3
"""enum traced_state of bpf/common.h."""


class Recorder(Protocol):
    """What keeps the records of a session: see recording.py."""

    def entries(self, entries: Iterable[Entry]) -> None:
        """Keep what user space found."""

    def events(self, slots: Array) -> None:
        """Keep slots of the ring `events`."""

    def calls(self, slots: Array) -> None:
        """Keep slots of the ring `calls`."""

    def aggregates(self, time_ns: int, array: Array) -> None:
        """Keep what was added up in the kernel."""


class Session:
    """A trace that runs. Use it as a context manager: leaving it detaches and frees everything in the kernel.

    Raises HostUnable when this host or this process cannot trace, BpfError when the kernel refuses a program.
    """

    def __init__(self, scope: Scope, options: TraceOptions, schema: Schema, owner: OwnerOf = owner_by_path) -> None:
        self.scope = scope
        self.has_new_cgroups = False
        """The whole host is traced, and a new cgroup has an owner or a name not known yet (the caller clears it)."""
        self._owner = owner
        self.options = options
        self.schema = schema
        self.decoder = Decoder(self.schema, Host(platform.machine(), mmap.PAGESIZE), clock_offset_ns())
        self.recorder: Recorder | None = None
        self.first_vm_bytes: dict[int, int] = {}
        """Size of each live process's address space when it came into sight, or at its last exec."""
        self.exited_pids: deque[int] = deque(maxlen=4096)
        self.compat_pids: set[int] = set()
        """32-bit programs in scope: their system calls are not decoded."""
        self.summary_calls: list[EventLine] = []
        """Calls that went into the recording only, added up: for the summary."""
        self.kills: list[dict[str, FieldValue]] = []
        """Fields of each struct oom_event that was drained, for who makes the report (the caller empties it)."""
        self._calls_ring_bytes = CALLS_RING_BYTES if options.every_call else mmap.PAGESIZE
        self._loaded: Loaded | None = None
        self._bookkeeping_ring: Ring
        self._events_ring: Ring
        self._calls_ring: Ring
        self._aggregates: AggregateReader
        self._traced: mmap.mmap
        self._stacks_seen: set[tuple[int, int]] = set()
        self._symbolizer: Symbolizer | None = None

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- start and end ---

    def start(self) -> None:
        """Compile (or take from the cache), load, attach, and enter the processes that are there."""
        cpus = bpf.possible_cpus()
        entry_bytes = self.schema.aggregate_record["total"].itemsize * cpus + 64
        self._loaded = load(
            compiled_program(),
            {
                "traced": traced_pages(),
                "calls": self._calls_ring_bytes,
                "bookkeeping": BOOKKEEPING_RING_BYTES,
                "events": EVENTS_RING_BYTES,
                "stacks": STACKS if self.options.stack else 1,
                "stack_tops": STACKS if self.options.stack else 1,
                "aggregates": max(512, min(8192, AGGREGATE_BYTES // entry_bytes)),
            },
        )
        maps = self._loaded.maps
        self._traced = mmap.mmap(maps["traced"], traced_pages() * TRACED_PAGE)
        self._bookkeeping_ring = Ring(maps["bookkeeping"], BOOKKEEPING_RING_BYTES, self.schema.event_slot)
        self._events_ring = Ring(maps["events"], EVENTS_RING_BYTES, self.schema.event_slot)
        self._calls_ring = Ring(maps["calls"], self._calls_ring_bytes, self.schema.call_slot)
        self._aggregates = AggregateReader(maps["aggregates"], self.schema)
        self._configure()
        self._enter_cgroups()
        self._loaded.attach()
        self.enter_processes()
        self._learn_tmpfs_mounts()

    def close(self) -> None:
        """Detach and free. May be called twice."""
        if self._loaded is None:
            return
        loaded, self._loaded = self._loaded, None
        loaded.detach()
        for name in ("_bookkeeping_ring", "_events_ring", "_calls_ring", "_traced"):
            if hasattr(self, name):
                with contextlib.suppress(BufferError):  # a view that an exception still holds
                    getattr(self, name).close()
        loaded.close()

    def detach(self) -> None:
        """Stop tracing; what the programs told so far can still be drained."""
        if self._loaded is not None:
            self._loaded.detach()

    def _configure(self) -> None:
        only_pid = self.options.pid is not None
        scope = Filter(
            all=self.scope.all and not only_pid,
            by_cgroup=self.scope.folder is not None and not only_pid,
            memory_hierarchy_id=self.scope.hierarchy_id,
        )
        config = pack_config(self.options, scope, self.schema.event_ids)
        bpf.update(self._map("config"), struct.pack("I", 0), config)

    def _map(self, name: str) -> int:
        assert self._loaded is not None, "the session has not started or is closed"
        return self._loaded.maps[name]

    # --- who is in scope ---

    def follow(self, container: Container) -> None:
        """Go on with a container that was started again under the same name."""
        self.scope = Scope(container, self.scope.hierarchy, self.scope.hierarchy_id)
        self._enter_cgroups()
        self.enter_processes()
        self._learn_tmpfs_mounts()

    def name_owners(self, owner: OwnerOf) -> None:
        """Take names that were found out later than a container's first event."""
        self._owner = owner
        for memcg_id, cgroup in self.decoder.processes.cgroups.items():
            container = owner(cgroup)
            if container is not None and container != self.decoder.processes.container_of(memcg_id):
                self._learn(place_entry(memcg_id, Place(cgroup, container)))

    def _enter_cgroups(self) -> None:
        only_pid = self.options.pid is not None
        for memcg_id, cgroup in cgroups_above(self.scope).items():
            self._learn(place_entry(memcg_id, Place(cgroup, None)))
        for memcg_id, cgroup in cgroups_in(self.scope).items():
            container = self.scope.container or self._owner(cgroup)
            self._learn(place_entry(memcg_id, Place(cgroup, container)))
            if not self.scope.all and not only_pid:
                bpf.update(self._map("target_cgroups"), struct.pack("Q", memcg_id), struct.pack("I", 1))

    def enter_processes(self) -> None:
        """Trace every process in scope that is not traced yet."""
        if self.options.pid is not None:
            found = find_process(self.options.pid, self.scope, self._owner)
            if found is not None:
                self._enter(found)
            return
        entered: set[int] = set()
        while True:  # until no new one appears: without a cgroup, a fork may slip between look and entry
            new = [found for found in find_processes(self.scope, self._owner) if found.process.pid not in entered]
            for found in new:
                self._enter(found)
                entered.add(found.process.pid)
            if not new or self.scope.all or self.scope.folder is not None:
                return

    def _enter(self, found: Found) -> None:
        pid = found.process.pid
        if found.heap_end is not None:
            bpf.update(self._map("brk_ends"), struct.pack("I", pid), struct.pack("Q", found.heap_end))
        if found.total_vm_bytes is not None:
            self.first_vm_bytes.setdefault(pid, found.total_vm_bytes)
        if found.compat:
            self.compat_pids.add(pid)
        self._set_state(pid)
        if self.decoder.processes.find(pid, 0) is None:
            self._learn(process_entry(found.process))

    def _set_state(self, pid: int) -> None:
        """Tell the programs about a process that was there before them, unless they know it already."""
        by_name = self.scope.all and self.options.pid is None
        state = 0
        # an exec between look and entry would be undone by the entry: look again until nothing changed
        while state != (now := _state_of(pid, by_name)) and self._traced[pid] == state:
            self._traced[pid] = state = now

    def pids(self) -> frozenset[int]:
        """Processes in scope now."""
        return pids_in(self.scope)

    def _learn_tmpfs_mounts(self) -> None:
        """Where the container sees which tmpfs: a program knows only the way from the file system's root."""
        pid = self.scope.container.pid if self.scope.container else None
        if pid is None:
            return
        for mount in read_mountinfo(pid):
            if mount.fstype in ("tmpfs", "devtmpfs") and mount.root == "/":  # not a file bound over /proc/kcore
                major, _, minor = mount.device.partition(":")
                self._learn(tmpfs_entry(int(major) << 20 | int(minor), mount.mount_point))

    def keep_time(self) -> None:
        """Notice that the clock was set, so that what comes from now on has the right time."""
        offset_ns = clock_offset_ns()
        if abs(offset_ns - self.decoder.clock_offset_ns) >= STEP_NS:
            self._learn(clock_entry(offset_ns))

    def _learn(self, entry: Entry) -> None:
        self.decoder.learn(entry)
        if self.recorder is not None:
            self.recorder.entries((entry,))

    # --- what the programs tell ---

    @property
    def wake_fds(self) -> tuple[int, ...]:
        """Poll readable when there are events; calls come without waking: drain on a timer too."""
        return self._map("bookkeeping"), self._map("events")

    def drain(self) -> list[EventLine]:
        """Take all that waits in the rings, in order of time.

        With a recorder the calls go to it alone (they may be millions) and into `summary_calls`.
        """
        exited = self.decoder.processes.exited_count
        all_waiting = self._calls_ring.waiting()
        waiting = min(all_waiting, _CALLS_AT_ONCE if self.recorder is None else 1 << 30)
        events_waiting = self._events_ring.waiting()
        lines = self._drain_bookkeeping()  # up to now at least: a process is known before what it did is decoded
        for view in self._events_ring.views(events_waiting):
            records_ = records(view)
            if self.options.stack:
                self._note_stacks(records_)
            if self.recorder is not None:
                self.recorder.events(view)
            self._note_kills(records_)
            lines += self.decoder.events(records_)
            del records_, view
        if self.recorder is None:
            calls = self._calls_ring.drain(waiting)
            if self.options.stack:
                self._name_stacks(calls["pid"], calls["stack_id"])
            lines += self.decoder.calls(calls)
            lines.sort(key=_time_of)
        else:
            self._calls_ring.drain_into(self._record_calls, waiting)
        if self.options.every_call and waiting == all_waiting:  # so all that these had done before they exited
            self.decoder.processes.forget_exited(exited)
        return lines

    def _drain_bookkeeping(self) -> list[EventLine]:
        """Learn who is who."""
        lines: list[EventLine] = []
        for view in self._bookkeeping_ring.views():
            records_ = records(view)
            self._note_processes(records_)
            if self.recorder is not None:
                self.recorder.events(view)
            lines += self.decoder.events(records_)
            self._note_cgroups(records_)
            del records_, view
        return lines

    def calls_waiting_share(self) -> float:
        """How full the ring of calls is, 0 to 1: how soon it must be drained again."""
        return self._calls_ring.waiting() * self.schema.call_slot.itemsize / self._calls_ring_bytes

    def _record_calls(self, slots: Array) -> None:
        assert self.recorder is not None
        calls = records(slots)
        if self.options.stack:
            self._name_stacks(calls["pid"], calls["stack_id"])
        self.recorder.calls(slots)
        counts, single = tally(calls, self.schema)
        self.summary_calls += self.decoder.aggregates(time.monotonic_ns(), counts)
        self.summary_calls += self.decoder.calls(single)

    def aggregates_are_due(self) -> bool:
        """Say whether aggregated() must not wait: the table of the kernel and that of processes have an end."""
        return self._aggregates.leaving >= _MANY_LEAVING

    def aggregated(self) -> list[EventLine]:
        """Take what was added up in the kernel since the last time."""
        if self.options.every_call:
            return []
        exited = self.decoder.processes.exited_count
        now_ns = time.monotonic_ns()
        array = self._aggregates.read()
        lines = self._drain_bookkeeping()  # of whoever came since the last drain, and has called already
        if self.options.stack:
            self._name_stacks(array["key"]["pid"], array["key"]["stack_id"])
        if self.recorder is not None and len(array):
            self.recorder.aggregates(now_ns, array)
        lines += self.decoder.aggregates(now_ns, array)
        self.decoder.processes.forget_exited(exited)
        return lines

    def lost(self) -> dict[str, int]:
        """Events that found no room, counted in the kernel: event -> count, without those of which none was lost."""
        cpus = bpf.possible_cpus()
        found = {}
        for event, number in self.schema.event_ids.items():
            values = bpf.lookup(self._map("lost"), struct.pack("I", number), 8 * cpus) or b""
            count = sum(struct.unpack(f"{len(values) // 8}Q", values))
            if count:
                found[event] = count
        return found

    def _note_processes(self, array: Array) -> None:
        """Keep the sizes of address spaces, and drop what belongs to processes that have exited."""
        ids = self.schema.event_ids
        events = array["header"]["event"]
        for raw in array[(events >= ids["process_fork"]) & (events <= ids["process_enter"])]:
            record = self.schema.record("process_event", raw.tobytes())
            pid, event = int(record["header"]["pid"]), int(record["header"]["event"])
            if event == ids["process_exit"]:
                self._note_exit(pid)
            elif event != ids["process_comm"]:
                self._aggregates.keep(pid)
                self._tell_symbolizer(event, pid, int(record["parent_pid"]))
                self.first_vm_bytes[pid] = int(record["total_vm_pages"]) * mmap.PAGESIZE
                if record["compat"]:
                    self.compat_pids.add(pid)
                else:
                    self.compat_pids.discard(pid)

    def _note_exit(self, pid: int) -> None:
        self.first_vm_bytes.pop(pid, None)
        self.exited_pids.append(pid)
        self.compat_pids.discard(pid)
        if not self.options.every_call:
            self._aggregates.forget(pid)

    def forget_the_gone(self, proc: Path = Path("/proc")) -> None:
        """Let go of processes that are no more: call it when events were lost, for their exits may be among them."""
        known = self.first_vm_bytes.keys() | self._aggregates.pids()
        for pid in [pid for pid in known if not (proc / str(pid)).exists()]:
            self._note_exit(pid)
            self.decoder.processes.exited(pid, time.monotonic_ns())

    def _tell_symbolizer(self, event: int, pid: int, parent_pid: int) -> None:
        if self._symbolizer is None:
            return
        if event == self.schema.event_ids["process_fork"]:
            self._symbolizer.forked(parent_pid, pid)
        elif event == self.schema.event_ids["process_exec"]:
            self._symbolizer.execed(pid)

    def _note_cgroups(self, array: Array) -> None:
        """The whole host is traced: whose are the new cgroups?"""
        if not self.scope.all:
            return
        for raw in array[array["header"]["event"] == self.schema.event_ids["cgroup_mkdir"]]:
            record = self.schema.record("cgroup_event", raw.tobytes())
            cgroup = text_of(bytes(record["path"]))
            container = self._owner(cgroup)
            if container is not None:
                self._learn(place_entry(int(record["cgroup_id"]), Place(cgroup, container)))
            self.has_new_cgroups |= container is None or container.name is None

    def _note_kills(self, array: Array) -> None:
        for raw in array[array["header"]["event"] == self.schema.event_ids["oom_kill"]]:
            self.kills.append(as_dict(self.schema.record("oom_event", raw.tobytes())))

    def _note_stacks(self, array: Array) -> None:
        """Name the stacks of events, before they are decoded or recorded."""
        for raw in array:
            struct = STRUCT_OF.get(self.schema.event_names.get(int(raw["header"]["event"]), ""))
            if struct is not None and "stack_id" in (self.schema.structs[struct].names or ()):
                record = self.schema.record(struct, raw.tobytes())
                self._name_stack(int(record["header"]["pid"]), int(record["stack_id"]))

    def _name_stacks(self, pids: NDArray[np.uint32], stack_ids: NDArray[np.int32]) -> None:
        taken = stack_ids >= 0
        if not taken.any():
            return
        pairs = np.unique(np.stack([pids[taken].astype(np.int64), stack_ids[taken].astype(np.int64)]), axis=1)
        for pid, stack_id in pairs.T.tolist():
            self._name_stack(pid, stack_id)

    def _name_stack(self, pid: int, stack_id: int) -> None:
        if stack_id >= 0 and (pid, stack_id) not in self._stacks_seen:
            self._stacks_seen.add((pid, stack_id))
            self._learn(stack_entry(pid, stack_id, self._frames(pid, stack_id)))

    def _frames(self, pid: int, stack_id: int) -> list[str]:
        raw = bpf.lookup(self._map("stacks"), struct.pack("I", stack_id), STACK_DEPTH * 8) or b""
        addresses = [address for address in struct.unpack(f"{len(raw) // 8}Q", raw) if address]
        process = self.decoder.processes.find(pid, time.monotonic_ns())
        ns_pid = process.ns_pid if process else None
        if self._symbolizer is None:
            from rtdebug.tracing.symbols import Symbolizer

            self._symbolizer = Symbolizer()
        top = bpf.lookup(self._map("stack_tops"), struct.pack("i", stack_id), STACK_TOP * 8) or b""
        words = struct.unpack(f"{len(top) // 8}Q", top)
        return [str(frame) for frame in self._symbolizer.symbolize_call(pid, ns_pid, addresses, words)]


def _state_of(pid: int, whole_host: bool) -> int:
    """Return the enum traced_state of a process; of the whole host only what is to be left out needs one."""
    if pid == os.getpid():
        return _TRACED_RUNTIME  # our own calls are nobody's business
    if is_compat(pid):
        return _TRACED_COMPAT
    if whole_host:
        return 0
    return _TRACED_RUNTIME if is_runtime(read_comm(pid)) else _TRACED


def is_runtime(comm: str | None) -> bool:
    """Say whether a process is runc's or crun's own, on its way to become the container's program by exec."""
    return comm is not None and comm.startswith(("runc", "crun"))


def _time_of(line: EventLine) -> int:
    return line.time_ns


def still_mapped_bytes(first_vm_bytes: Mapping[int, int], proc: Path = Path("/proc")) -> dict[int, int]:
    """Return by how much the address space of each live process has grown since it came into sight, at least 0.

    The kernel's own figure: it knows of overlaid, split and partly unmapped mappings, which the lengths of
    calls do not add up to.
    """
    from rtdebug.tracing.scope import total_vm_bytes

    now = {pid: total_vm_bytes(pid, proc) for pid in first_vm_bytes}
    return {pid: max(0, size - first_vm_bytes[pid]) for pid, size in now.items() if size is not None}
