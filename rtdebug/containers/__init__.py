"""Who is who: runtimes, cgroup paths, and targets by any name."""
