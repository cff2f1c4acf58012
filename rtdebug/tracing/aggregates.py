"""Calls added up in the kernel: the map `aggregates`, read as differences."""

from __future__ import annotations

import sys

import numpy as np

from rtdebug.host import bpf
from rtdebug.tracing.schema import Array, Schema


class AggregateReader:
    """Reads the map `aggregates` and tells what was added since the last time.

    The entries are never reset, for the programs add to them without a lock: the difference is made here.
    """

    def __init__(self, map_fd: int, schema: Schema) -> None:
        self._map_fd = map_fd
        self._record = schema.aggregate_record
        self._key_bytes = self._record["key"].itemsize
        self._total = self._record["total"]
        self._cpus = bpf.possible_cpus()
        self._known: dict[bytes, tuple[int, int]] = {}
        self._leaving: set[int] = set()

    @property
    def leaving(self) -> int:
        """How many processes are to be forgotten at the next read."""
        return len(self._leaving)

    def pids(self) -> set[int]:
        """Processes that have entries."""
        return {_pid_of(key) for key in self._known}

    def forget(self, pid: int) -> None:
        """Free the entries of a process that has exited, after they were read once more."""
        self._leaving.add(pid)

    def keep(self, pid: int) -> None:
        """The process id has a new owner, who goes on with the entries: undo forget()."""
        self._leaving.discard(pid)

    def read(self) -> Array:
        """Return the changed keys with what was added under each. Raises BpfError."""
        changed: list[tuple[bytes, int, int]] = []
        for keys, values, count in bpf.lookup_batch(self._map_fd, self._key_bytes, self._total.itemsize * self._cpus):
            totals = np.frombuffer(values, np.uint64).reshape(count, self._cpus, 2).sum(axis=1).tolist()
            for index, (calls, length_bytes) in enumerate(totals):
                key = keys[index * self._key_bytes : (index + 1) * self._key_bytes]
                calls_before, length_before = self._known.get(key, (0, 0))
                if calls != calls_before:
                    added = (length_bytes - length_before) & 0xFFFF_FFFF_FFFF_FFFF  # brk: a change, may be negative
                    changed.append((key, calls - calls_before, added))
                    self._known[key] = (calls, length_bytes)
        self._free_entries()
        result = np.zeros(len(changed), self._record)
        if changed:
            result["key"] = np.frombuffer(b"".join(key for key, _, _ in changed), self._record["key"])
            result["total"]["count"] = [calls for _, calls, _ in changed]
            result["total"]["length_bytes"] = np.array([added for _, _, added in changed], np.uint64)
        return result

    def _free_entries(self) -> None:
        if not self._leaving:
            return
        for key in [key for key in self._known if _pid_of(key) in self._leaving]:
            bpf.delete(self._map_fd, key)
            del self._known[key]
        self._leaving.clear()


def _pid_of(key: bytes) -> int:
    return int.from_bytes(key[:4], sys.byteorder)
