"""A recording as pandas DataFrames, one for each kind of event, without loss.

Columns are the keys of the JSON output. `time` is in UTC with nanoseconds. Numbers are nullable integers
(Int64, UInt64), never floats; names (comm, errno, advice, ...) are categorical; flags are one name,
`MAP_PRIVATE|MAP_STACK`; what is a list or an object in JSON is its JSON text. A byte that is no UTF-8 becomes
`\\xNN`. Calls that the kernel added up are in frames of their own, `madvise_aggregated`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rtdebug.host import constants
from rtdebug.host.text import valid_utf8
from rtdebug.tracing.chunks import Kind
from rtdebug.tracing.decode import Decoder
from rtdebug.tracing.fields import MAX_ERRNO
from rtdebug.tracing.line import EventLine, Value
from rtdebug.tracing.processes import Process
from rtdebug.tracing.recording import Recording, Selection
from rtdebug.tracing.schema import Array

LINES_AT_ONCE = 20_000
"""Lines of one kind that are gathered before they become a frame."""

_UNSIGNED = frozenset({"address", "old_address", "mapping_start", "mapping_end"})
_SIGNED = frozenset(
    {
        *("pid", "ns_pid", "tid", "ret", "count", "failures", "failcnt", "key", "uid", "order"),
        *("target_pid", "trigger_pid", "trigger_tid", "oom_score_adj", "size_inodes", "free_inodes"),
    }
)
_NAMES = frozenset(
    {
        *("event", "container_id", "container_name", "runtime", "cgroup", "comm", "errno", "advice"),
        *("prot", "flags", "mode", "command", "signal_code", "reason", "syscall", "constraint"),
    }
)
_FLAGS = frozenset({"prot", "flags"})
_ENDLESS = frozenset({"oom_kill"})
"""Few, and with keys that differ: made into one frame at the end."""

_WHO = ("container_id", "container_name", "runtime", "cgroup", "pid", "ns_pid", "tid", "comm")


def frame_batches(recording: Recording, selection: Selection | None = None) -> Iterator[tuple[str, pd.DataFrame]]:
    """Give (name of the event, some rows of its frame), for a recording of any size.

    All batches of one name have the same columns and types, up to the categories.
    """
    wanted = selection or Selection()
    gathered: dict[str, list[EventLine]] = {}
    decoder = recording.decoder()
    for chunk, lines in recording.decoded(decoder, wanted):
        if chunk is not None and chunk.kind is Kind.CALLS:
            array = recording.calls_of(chunk, wanted)
            yield from _call_frames(decoder, array)
            continue
        for line in lines:
            name = f"{line.event}_aggregated" if line.fields.get("aggregated") else line.event
            waiting = gathered.setdefault(name, [])
            waiting.append(line)
            if len(waiting) >= LINES_AT_ONCE and name not in _ENDLESS:
                yield name, lines_frame(gathered.pop(name))
    for name, waiting in gathered.items():
        yield name, lines_frame(waiting)


def frames(recording: Recording, selection: Selection | None = None) -> dict[str, pd.DataFrame]:
    """Return the whole recording, by name of the event. It must fit into memory."""
    parts: dict[str, list[pd.DataFrame]] = {}
    for name, part in frame_batches(recording, selection):
        parts.setdefault(name, []).append(part)
    return {name: _concat(batches) for name, batches in parts.items()}


def lines_frame(lines: Iterable[EventLine]) -> pd.DataFrame:
    """Return a frame of lines of one kind of event."""
    rows = list(lines)
    columns: dict[str, Any] = {"time": _time(np.array([line.time_ns for line in rows], np.int64))}
    for name in ("event", *_WHO):
        columns[name] = _column(rows[0].event, name, [getattr(line, name) for line in rows])
    for key in dict.fromkeys(key for line in rows for key in line.fields if key != "stack"):
        columns[key] = _column(rows[0].event, key, [line.fields.get(key) for line in rows])
    if rows[0].event not in _ENDLESS:
        columns["stack"] = _column(rows[0].event, "stack", [line.fields.get("stack") for line in rows])
    return pd.DataFrame(columns)


def _concat(batches: list[pd.DataFrame]) -> pd.DataFrame:
    """Join batches; pd.concat alone would turn columns with different categories into text."""
    if len(batches) == 1:
        return batches[0]
    for column in batches[0].columns:
        if isinstance(batches[0][column].dtype, pd.CategoricalDtype):
            joined = pd.api.types.union_categoricals([batch[column] for batch in batches]).categories
            for batch in batches:
                batch[column] = batch[column].cat.set_categories(joined)
    return pd.concat(batches, ignore_index=True)


def _column(event: str, key: str, values: list[Value]) -> Any:  # noqa: ANN401 - a Series or an array
    dtype = _dtype(event, key, values)
    if dtype == "category":
        return _categorical(np.arange(len(values)), [_text(key, value) for value in values])
    if dtype == "str":
        return pd.array([_text(key, value) for value in values], dtype="str")
    return pd.array(values, dtype=dtype)


def _dtype(event: str, key: str, values: list[Value]) -> Any:  # noqa: ANN401 - as pd.array takes them
    if key in _NAMES:
        return "category"
    if key == "length_bytes" and event == "brk":
        return "Int64"
    if key in _UNSIGNED or key.endswith("_bytes"):
        return "UInt64"
    if key in _SIGNED or key.endswith(("_id", "_ns", "_pages")):
        return "Int64"
    return "boolean" if any(isinstance(value, bool) for value in values) else "str"


def _text(key: str, value: Value) -> str | None:
    if value is None or isinstance(value, str):
        return None if value is None else valid_utf8(value)
    if key in _FLAGS and isinstance(value, list):
        return "|".join(map(str, value))
    return json.dumps(value, separators=(",", ":"))


def _time(unix_ns: NDArray[np.int64]) -> Any:  # noqa: ANN401
    return pd.DatetimeIndex(unix_ns.view("M8[ns]"), tz="UTC")


def _categorical(index: NDArray[Any], labels: list[str | None]) -> pd.Categorical:
    """Return labels[index] as a categorical; None is null."""
    known = (label for label in labels if label is not None)
    codes = {label: code for code, label in enumerate(dict.fromkeys(known))}
    code_of = np.array([-1 if label is None else codes[label] for label in labels], np.int32)
    return pd.Categorical.from_codes(code_of[index], pd.Index(list(codes), dtype="str"))


# Calls come by the million: their columns are computed at once, not line by line. They hold what fields.py
# gives for a line.


def _call_frames(decoder: Decoder, array: Array) -> Iterator[tuple[str, pd.DataFrame]]:
    for number in np.unique(array["event"]).tolist():
        event = decoder.schema.event_names.get(number, "")
        columns_of = _CALL_COLUMNS.get(event)
        part = array[array["event"] == number]
        if columns_of is None:
            decoder.unknown_records += len(part)
            continue
        unix_ns = decoder.unix_ns(part["time_ns"].astype(np.int64))
        columns: dict[str, Any] = {"time": _time(unix_ns)}
        columns["event"] = _categorical(np.zeros(len(part), np.int8), [event])
        columns |= _who_columns(decoder, part)
        columns |= columns_of(part, decoder)
        columns |= _result_columns(part["ret"])
        columns["stack"] = _stack_column(decoder, part)
        yield event, pd.DataFrame(columns)


def _who_columns(decoder: Decoder, part: Array) -> dict[str, Any]:
    found: list[Process | None] = [None]
    index = np.zeros(len(part), np.int64)
    for pid in np.unique(part["pid"]).tolist():
        rows = np.flatnonzero(part["pid"] == pid)
        if versions := decoder.processes.versions(pid):
            since = np.array([version.since_ns for version in versions], np.uint64)
            at = np.searchsorted(since, part["time_ns"][rows], "right") - 1
            index[rows] = len(found) + np.maximum(at, 0)
            found += [version.process for version in versions]
    box = [process.container if process else None for process in found]
    names = {
        "container_id": [container.id if container else None for container in box],
        "container_name": [container.name if container else None for container in box],
        "runtime": [container.runtime if container else None for container in box],
        "cgroup": [process.cgroup if process else None for process in found],
        "comm": [process.comm if process else None for process in found],
    }
    labels = {key: [_text(key, value) for value in values] for key, values in names.items()}
    columns: dict[str, Any] = {key: _categorical(index, values) for key, values in labels.items()}
    ns_pids = [process.ns_pid if process else None for process in found]
    columns |= {"pid": _int64(part["pid"]), "ns_pid": pd.array(ns_pids, dtype="Int64")[index]}
    columns["tid"] = _int64(part["tid"])
    return {key: columns[key] for key in _WHO}


def _result_columns(ret: NDArray[np.int64]) -> dict[str, Any]:
    errors = np.where(_failed(ret), -ret, 0)
    names = _named(errors, lambda error: constants.errno_name(error) if error else None)
    return {"ret": _int64(ret), "errno": names}


def _stack_column(decoder: Decoder, part: Array) -> Any:  # noqa: ANN401
    stacks = np.full(len(part), None, object)
    for row in np.flatnonzero(part["stack_id"] >= 0).tolist():
        frames = decoder.stack(int(part["pid"][row]), int(part["stack_id"][row]))
        stacks[row] = _text("stack", frames)
    return pd.array(stacks, dtype="str")


def _failed(ret: NDArray[np.int64]) -> NDArray[np.bool_]:
    return (ret < 0) & (ret >= -MAX_ERRNO)


def _named(values: NDArray[Any], name_of: Callable[[int], str | None]) -> pd.Categorical:
    distinct, index = np.unique(values, return_inverse=True)
    return _categorical(index, [name_of(value) for value in distinct.tolist()])


def _uint64(values: NDArray[Any], null: NDArray[np.bool_] | None = None) -> Any:  # noqa: ANN401
    return pd.arrays.IntegerArray(values.astype(np.uint64), _mask(values, null))


def _int64(values: NDArray[Any], null: NDArray[np.bool_] | None = None) -> Any:  # noqa: ANN401
    return pd.arrays.IntegerArray(values.astype(np.int64), _mask(values, null))


def _mask(values: NDArray[Any], null: NDArray[np.bool_] | None) -> NDArray[np.bool_]:
    return np.zeros(len(values), np.bool_) if null is None else null


def _mmap(part: Array, decoder: Decoder) -> dict[str, Any]:
    machine = decoder.host.machine
    return {
        "address": _uint64(part["address"], _failed(part["ret"])),
        "length_bytes": _uint64(part["length_bytes"]),
        "prot": _named(part["prot"], lambda prot: "|".join(constants.prot_names(prot, machine))),
        "flags": _named(part["flags"], lambda flags: "|".join(constants.map_names(flags, machine))),
    }


def _munmap(part: Array, _decoder: Decoder) -> dict[str, Any]:
    return {"address": _uint64(part["address"]), "length_bytes": _uint64(part["length_bytes"])}


def _mremap(part: Array, decoder: Decoder) -> dict[str, Any]:
    old_length_bytes = part["old_length_pages"].astype(np.uint64) * np.uint64(decoder.host.page_size_bytes)
    return {
        "address": _uint64(part["ret"], _failed(part["ret"])),
        "length_bytes": _uint64(part["length_bytes"]),
        "old_address": _uint64(part["address"]),
        "old_length_bytes": _uint64(old_length_bytes),
        "flags": _named(part["flags"], lambda flags: "|".join(constants.mremap_names(flags))),
    }


def _brk(part: Array, _decoder: Decoder) -> dict[str, Any]:
    address = _uint64(part["address"], part["address"] == 0)
    return {"address": address, "length_bytes": _int64(part["length_bytes"])}


def _madvise(part: Array, _decoder: Decoder) -> dict[str, Any]:
    return {
        "address": _uint64(part["address"]),
        "length_bytes": _uint64(part["length_bytes"]),
        "advice": _named(part["advice"], constants.advice_name),
    }


def _process_madvise(part: Array, decoder: Decoder) -> dict[str, Any]:
    address = _uint64(part["address"], part["address"] == 0)
    target_pid = _int64(part["flags"], part["flags"] == 0)
    return {"target_pid": target_pid, **_madvise(part, decoder), "address": address}


_CALL_COLUMNS: Mapping[str, Callable[[Array, Decoder], dict[str, Any]]] = {
    "mmap": _mmap,
    "munmap": _munmap,
    "mremap": _mremap,
    "brk": _brk,
    "madvise": _madvise,
    "process_madvise": _process_madvise,
}
