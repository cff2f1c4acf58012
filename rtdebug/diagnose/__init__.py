"""Why a container ran, or will run, out of memory, and what to change."""
