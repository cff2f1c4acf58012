"""Experiments with madvise(2), and advice for the mappings of live processes."""
