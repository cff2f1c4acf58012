"""Rows as an Arrow record batch, built from plain buffers.

pyarrow.array() would do, but its first call imports pandas: 40 MB and a quarter of a second, for a recorder that runs
for months. Layouts: https://arrow.apache.org/docs/format/Columnar.html
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from rtdebug.leaks.tables import Row


def record_batch(rows: Sequence[Row], schema: Any) -> Any:  # noqa: ANN401 - pyarrow has no types
    """A pyarrow.RecordBatch of rows whose values are in the order of `schema`: int64 or text, None is null."""
    import pyarrow as pa

    columns = zip(*rows, strict=True)
    make = {True: _texts, False: _numbers}
    arrays = [make[field.type == pa.string()](column) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _numbers(values: Sequence[Any]) -> Any:  # noqa: ANN401
    import numpy as np
    import pyarrow as pa

    numbers = np.array([0 if value is None else value for value in values], np.int64)
    return pa.Array.from_buffers(pa.int64(), len(values), [_validity(values), pa.py_buffer(numbers)])


def _texts(values: Sequence[Any]) -> Any:  # noqa: ANN401
    import numpy as np
    import pyarrow as pa

    texts = [b"" if value is None else value.encode() for value in values]
    offsets = np.array([0, *accumulate(map(len, texts))], np.int32)
    buffers = [_validity(values), pa.py_buffer(offsets), pa.py_buffer(b"".join(texts))]
    return pa.Array.from_buffers(pa.string(), len(values), buffers)


def _validity(values: Sequence[Any]) -> Any:  # noqa: ANN401
    """One bit for each value, the first one lowest."""
    import numpy as np
    import pyarrow as pa

    if None not in values:
        return None
    known = np.array([value is not None for value in values])
    return pa.py_buffer(np.packbits(known, bitorder="little"))
