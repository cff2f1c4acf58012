"""Runs in the distribution's Python: stock_bcc.py READY SOURCE FLAGS FUNCTION=TRACEPOINT...

What a tool on stock bcc does: compile in its own process, attach, trace on with the compiler still in memory.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from bcc import BPF

ready, source, flags, *probes = sys.argv[1:]
bpf = BPF(text=Path(source).read_bytes(), cflags=flags.split())
for probe in probes:
    function, tracepoint = probe.split("=")
    bpf.attach_raw_tracepoint(tp=tracepoint.encode(), fn_name=function.encode())
signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
print(ready, flush=True)
while True:
    signal.pause()
