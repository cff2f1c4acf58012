"""The layout of everything the kernel tells us, read from the text of bpf/events.h (DESIGN D3).

The text that bcc compiles is parsed here, and numpy lays its structs out as a C compiler does, so no layout is
written twice. It is a small part of C (see bpf/events.h), so a small parser does: cffi's takes 6 MB and more time than
attaching all programs. A recording carries the text it was made with, and is read with that one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rtdebug.errors import RtdebugError
from rtdebug.tracing.sources import read_source

Array = NDArray[np.void]
"""A structured array: one element per record."""

ByteOrder = Literal["little", "big"]

FieldValue = int | str | list["FieldValue"] | dict[str, "FieldValue"]
"""One decoded field: numbers, text, arrays, structs."""

STRUCT_OF = {
    "mmap": "call_event",
    "munmap": "call_event",
    "mremap": "call_event",
    "brk": "call_event",
    "madvise": "call_event",
    "process_madvise": "call_event",
    "shm_open": "shm_file_event",
    "shm_unlink": "shm_file_event",
    "ftruncate": "shm_file_event",
    "memfd_create": "shm_file_event",
    "shmget": "sysv_event",
    "shmat": "sysv_event",
    "shmdt": "sysv_event",
    "shmctl": "sysv_event",
    "shm_full": "tmpfs_event",
    "sigbus": "tmpfs_event",
    "oom_kill": "oom_event",
    "process_fork": "process_event",
    "process_exec": "process_event",
    "process_exit": "process_event",
    "process_comm": "process_event",
    "process_enter": "process_event",
    "cgroup_mkdir": "cgroup_event",
    "cgroup_rmdir": "cgroup_event",
}
"""Event -> the struct of its record."""

MAX_TEXT_BYTES = 1 << 20
"""A text larger than this is not ours: do not parse it."""

_NUMPY_TYPE = {f"__{c}{bits}": f"{kind}{bits // 8}" for c, kind in ("uu", "si") for bits in (8, 16, 32, 64)}
_COMMENT = re.compile(r"/\*.*?(?:\*/|\Z)", re.DOTALL)  # one that never ends must not be looked for again and again
_DEFINE = re.compile(r"^#define[ \t]+(\w+)[ \t]+(\w+)[ \t]*$", re.MULTILINE)
_PREPROCESSOR = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
_DEFINITION = re.compile(r"\s*(enum|struct)\s+(\w+)\s*\{([^{}]*)\}\s*;\s*")
_ENUMERATOR = re.compile(r"\s*(\w+)\s*(?:=\s*(\w+)\s*)?")
_MEMBER = re.compile(r"\s*(?:(struct)\s+)?(\w+)\s+(\w+)(?:\[(\w+)\])?\s*")


@dataclass(frozen=True, slots=True, eq=False)
class Schema:
    """What events.h says: constants, enums, structs as numpy dtypes with the compiler's offsets."""

    text: str
    byte_order: ByteOrder
    """Of the machine that made the records."""
    constants: Mapping[str, int]
    """`COMM_LEN` -> 16."""
    enums: Mapping[str, Mapping[str, int]]
    """`event_type` -> `EVENT_MMAP` -> 1."""
    structs: Mapping[str, np.dtype[np.void]]
    """`call_event` -> dtype. char[] is `S<n>`, nested structs are nested dtypes."""
    event_names: Mapping[int, str]
    """1 -> `mmap`: the names of the command line and of the JSON output."""

    @classmethod
    def parse(cls, text: str, byte_order: ByteOrder = sys.byteorder) -> Schema:
        """Parse the text of an events.h, of this version or of an old recording.

        Raises RtdebugError when the text is not one, or lacks what rtdebug needs.
        """
        return _parse_schema(text, byte_order)

    @property
    def event_ids(self) -> dict[str, int]:
        """`mmap` -> 1."""
        return {name: number for number, name in self.event_names.items()}

    @property
    def call_record(self) -> np.dtype[np.void]:
        """Payload of a slot in the ring `calls`."""
        return self.structs["call_event"]

    @property
    def event_record(self) -> np.dtype[np.void]:
        """Payload of a slot in the ring `events`: the common header, and a body that depends on the event."""
        header = self.structs["event_header"]
        # an explicit body: numpy need not copy the padding of a dtype
        body = f"V{self.constants['EVENT_PAYLOAD'] - header.itemsize}"
        return np.dtype([("header", header), ("body", body)])

    @property
    def call_slot(self) -> np.dtype[np.void]:
        """One slot of the ring `calls`: `length`, `page_offset` (the kernel's record header), `record`."""
        return self._slot(self.call_record)

    @property
    def event_slot(self) -> np.dtype[np.void]:
        """One slot of the ring `events`: `length`, `page_offset`, `record`."""
        return self._slot(self.event_record)

    @property
    def aggregate_record(self) -> np.dtype[np.void]:
        """One key of the aggregation with what was added up under it."""
        return np.dtype([("key", self.structs["aggregate_key"]), ("total", self.structs["aggregate"])])

    def record(self, struct: str, raw: bytes | memoryview) -> np.void:
        """Return the record of type `struct` at the start of `raw`; fields by name."""
        return np.frombuffer(raw, self.structs[struct], count=1)[0]  # type: ignore[no-any-return]

    def _slot(self, record: np.dtype[np.void]) -> np.dtype[np.void]:
        number = np.dtype("u4").newbyteorder(self.byte_order)
        # struct bpf_ringbuf_hdr of kernel/bpf/ringbuf.c: __u32 len, __u32 pg_off
        return np.dtype([("length", number), ("page_offset", number), ("record", record)])

    def _check(self) -> None:
        payload = {"call_event": self.constants["CALL_PAYLOAD"]}
        for event in self.event_names.values():
            struct = STRUCT_OF.get(event)
            if struct is None:
                continue
            room = payload.get(struct, self.constants["EVENT_PAYLOAD"])
            if self.structs[struct].itemsize > room or room > 1 << 16:
                raise RtdebugError(f"struct {struct} does not fit its slot of {room} bytes", _HINT)
        if self.structs["call_event"].itemsize != payload["call_event"]:
            raise RtdebugError("struct call_event does not fill its slot", _HINT)


_HINT = "the recording is damaged, or not one of rtdebug"


@lru_cache(maxsize=4)
def _parse_schema(text: str, byte_order: ByteOrder) -> Schema:
    if len(text) > MAX_TEXT_BYTES:
        raise RtdebugError("the event definitions are too large", _HINT)
    try:
        constants, enums, structs = _parse(text)
        structs = {name: dtype.newbyteorder(byte_order) for name, dtype in structs.items()}
        schema = Schema(text, byte_order, constants, enums, structs, _event_names(enums["event_type"]))
        schema._check()
    except RtdebugError:
        raise
    except Exception as error:  # ours or numpy's, whatever a hostile text leads to
        raise RtdebugError(f"the event definitions cannot be read: {error!s:.200}", _HINT) from error
    return schema


def load_schema() -> Schema:
    """Return the schema of the events.h that this rtdebug loads into the kernel."""
    return Schema.parse(read_source("events.h"))


def text_of(raw: bytes) -> str:
    """Decode a char[] of the kernel: up to its first NUL; bytes that are no UTF-8 become lone surrogates."""
    return raw.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")


def as_dict(record: np.void) -> dict[str, FieldValue]:
    """Turn one record into plain values. The common header is flattened; padding is left out."""
    values: dict[str, FieldValue] = {}
    for name in record.dtype.names or ():
        if name == "padding":
            continue
        value = _plain(record[name])
        if name == "header" and isinstance(value, dict):
            values |= value
        else:
            values[name] = value
    return values


def _plain(value: Any) -> FieldValue:  # noqa: ANN401 - whatever numpy gives
    if isinstance(value, np.void):
        return as_dict(value)
    if isinstance(value, np.ndarray):
        return [_plain(element) for element in value]
    if isinstance(value, bytes):
        return text_of(value)
    return int(value)


def _event_names(event_type: Mapping[str, int]) -> dict[int, str]:
    names = {number: name.removeprefix("EVENT_").lower() for name, number in event_type.items()}
    return {number: name for number, name in names.items() if name not in ("none", "types")}


_Constants = dict[str, int]
_Structs = dict[str, "np.dtype[np.void]"]


def _parse(text: str) -> tuple[_Constants, dict[str, dict[str, int]], _Structs]:
    text = _COMMENT.sub("", text)
    constants = {name: int(value, 0) for name, value in _DEFINE.findall(text)}
    enums: dict[str, dict[str, int]] = {}
    structs: _Structs = {}
    text = _PREPROCESSOR.sub("", text)
    position = 0
    while definition := _DEFINITION.match(text, position):
        kind, name, body = definition.groups()
        if kind == "enum":
            enums[name] = _enumerators(body)
        else:
            structs[name] = _struct_dtype(body, constants, structs)
        position = definition.end()
    if rest := text[position:].strip():
        raise ValueError(f"not understood: {rest!r:.60}")
    return constants, enums, structs


def _enumerators(body: str) -> dict[str, int]:
    values: dict[str, int] = {}
    following = 0
    for text in body.rstrip().removesuffix(",").split(","):
        name, number = _groups(_ENUMERATOR, text)
        values[name] = int(number, 0) if number else following
        following = values[name] + 1
    return values


def _struct_dtype(body: str, constants: _Constants, structs: _Structs) -> np.dtype[np.void]:
    members: list[tuple[str, Any]] = []
    for text in body.rstrip().removesuffix(";").split(";"):
        struct, base, name, length = _groups(_MEMBER, text)
        count = 0 if length is None else constants[length] if length in constants else int(length, 0)
        if base == "char" and length:
            members.append((name, f"S{count}"))
        else:
            element = structs[base] if struct else _NUMPY_TYPE[base]
            members.append((name, (element, (count,)) if length else element))
    return np.dtype(members, align=True)


def _groups(pattern: re.Pattern[str], text: str) -> tuple[Any, ...]:
    match = pattern.fullmatch(text)
    if match is None:
        raise ValueError(f"not understood: {text.strip()!r:.60}")
    return match.groups()
