"""OOM kills: the kernel log text and the joined report."""
