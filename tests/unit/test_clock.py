import time

from rtdebug.tracing.clock import clock_offset_ns


def test_it_turns_a_monotonic_time_into_the_time_of_day():
    offset_ns = clock_offset_ns()
    assert abs(time.time_ns() - time.monotonic_ns() - offset_ns) < 1_000_000
