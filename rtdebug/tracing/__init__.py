"""eBPF: shim headers, compiler, loader, rings, schema, session, recording."""
