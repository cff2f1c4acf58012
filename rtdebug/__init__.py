"""rtdebug: find out what happened to a container's memory, with eBPF and without kernel headers."""

__version__ = "0.1.0"
