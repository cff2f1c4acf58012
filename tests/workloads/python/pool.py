"""A pool of workers that hand arrays to their parent through shared memory.

usage: pool.py COUNT MIB HOW    HOW: keep (the parent maps all of them), die (the workers are killed)
"""

import os
import signal
import sys
import time
from multiprocessing import Pool, resource_tracker, shared_memory

import numpy


def fill(size: int) -> tuple[str, int]:
    """Make an array in shared memory, as a data loader's worker does."""
    segment = shared_memory.SharedMemory(create=True, size=size)
    numpy.ndarray((size,), dtype="u1", buffer=segment.buf)[:] = 7
    segment.close()
    return segment.name, os.getpid()


def main() -> None:
    """Say `done` when all is as asked, then stay."""
    count, mib, how = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    resource_tracker.ensure_running()  # one for all: else each worker's own removes its segments when it dies
    pool = Pool(4)
    made = pool.map(fill, [mib << 20] * count, chunksize=1)
    if how == "die":
        for pid in {pid for _, pid in made}:
            os.kill(pid, signal.SIGKILL)
    else:
        kept = [shared_memory.SharedMemory(name=name) for name, _ in made]
        print(len(kept), flush=True)
    print("done", flush=True)
    time.sleep(1000)


main()
