"""Which containers leak, in which kind of memory, since when."""
