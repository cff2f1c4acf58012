"""tally: millions of calls added up are what adding them one by one gives."""

from __future__ import annotations

import errno
from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rtdebug.tracing.schema import Schema, load_schema
from rtdebug.tracing.tally import tally

SCHEMA = load_schema()
FOREIGN = Schema.parse(SCHEMA.text, "big" if SCHEMA.byte_order == "little" else "little")
IDS = SCHEMA.event_ids
ONE_BY_ONE = {IDS["mremap"], IDS["brk"]}

calls = st.lists(
    st.fixed_dictionaries(
        {
            "pid": st.sampled_from([1, 7, 4194303]),
            "event": st.sampled_from([IDS[name] for name in ("mmap", "munmap", "madvise", "brk", "mremap")]),
            "advice": st.sampled_from([0, 4]),
            "prot": st.sampled_from([0, 3]),
            "flags": st.sampled_from([0, 0x22, 0x4000_0022]),
            "ret": st.sampled_from([0, 0x7F00_0000_0000, -errno.ENOMEM, -errno.EINVAL, -4096]),
            "length_bytes": st.sampled_from([0, 4096, 1 << 40]),
            "stack_id": st.sampled_from([-14, -1, 5, 6]),
        }
    ),
    max_size=40,
)


def key_of(call: dict[str, int]) -> tuple[int, ...]:
    error = -call["ret"] if -4095 <= call["ret"] < 0 else 0
    mapping = call["flags"] & 0xFFFF if call["event"] == IDS["mmap"] else 0
    return call["pid"], call["stack_id"], call["event"], error, call["advice"], call["prot"], mapping


@given(calls, st.sampled_from([SCHEMA, FOREIGN]), st.integers(1, 30))
def test_the_same_as_one_by_one(made: list[dict[str, int]], schema: Schema, repeated: int) -> None:
    made = [call for call in made for _ in range(repeated)]
    array = np.zeros(len(made), schema.call_record)
    for index, call in enumerate(made):
        for name, value in call.items():
            array[name][index] = value
    counts, single = tally(array, schema)
    count, length_bytes = Counter(), Counter()
    for call in made:
        if call["event"] not in ONE_BY_ONE:
            count[key_of(call)] += 1
            length_bytes[key_of(call)] += call["length_bytes"]
    found = {tuple(key.item()): tuple(total.item()) for key, total in zip(counts["key"], counts["total"], strict=True)}
    assert len(found) == len(counts), "each key once"
    assert found == {key: (count[key], length_bytes[key]) for key in count}
    assert single["event"].tolist() == [call["event"] for call in made if call["event"] in ONE_BY_ONE]
    assert counts.dtype == schema.aggregate_record
