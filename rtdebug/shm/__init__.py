"""Shared memory of a container: tmpfs mounts and what limits them, objects, who holds them, orphans."""
