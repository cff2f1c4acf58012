"""The line that says that the trace is attached."""

import pytest

from rtdebug.render.ready import ready_line
from rtdebug.tracing.options import TraceOptions
from rtdebug.tracing.scope import Scope


@pytest.mark.parametrize(
    ("min_bytes", "shown"), [(512 << 10, "only at least 512 KiB"), (3 << 20, "only at least 3 MiB"), (23, "23 B")]
)
def test_sizes_are_in_iec_units(min_bytes, shown):
    line = ready_line(Scope(None, None, 0), TraceOptions(("mmap",), min_bytes=min_bytes), None)
    assert line.startswith("Tracing the whole host, mmap")
    assert f"{shown}. Ctrl-C" in line
