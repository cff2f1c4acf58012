"""`rtdebug trace`: what a container does to its memory, live."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import click

from rtdebug.commands.options import (
    duration_option,
    event_option,
    interval_option,
    output_option,
    pid_option,
    runc_root_option,
    size,
    target_argument,
)


@click.command("trace")
@target_argument(required=False)
@click.option("--all", "whole_host", is_flag=True, help="Every process of this host, in containers or not.")
@event_option()
@pid_option()
@click.option("--comm", metavar="NAME", help="Only threads of this name (the kernel keeps 15 bytes of it).")
@click.option(
    "--min-bytes",
    type=size,
    default="0",
    metavar="SIZE",
    help="Only mapping and madvise calls of this length or more (64k, 1.5M).",
)
@duration_option("Stop after this time (30s, 5m).")
@click.option("--every-call", is_flag=True, help="A line for each mapping and madvise call: none are added up.")
@interval_option("Time between two lines of calls that are added up.", default="1s")
@click.option("--stack", is_flag=True, help="Take user stacks, with symbols from inside the container.")
@click.option("--follow", is_flag=True, help="When the container ends, wait until one of that name runs again.")
@click.option(
    "--record",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Keep everything in FILE, for `rtdebug report`. Each call of --every-call then goes there only.",
)
@click.option("--force", is_flag=True, help="With --record: replace FILE if it exists.")
@output_option()
@runc_root_option()
def command(
    target: str | None,
    whole_host: bool,
    events: tuple[str, ...],
    pid: int | None,
    comm: str | None,
    min_bytes: int,
    duration_s: float | None,
    every_call: bool,
    interval_s: float,
    stack: bool,
    follow: bool,
    record: Path | None,
    force: bool,
    output: str,
    runc_roots: tuple[Path, ...],
) -> None:
    """Show what a container does to its memory: shared memory, mappings, madvise, SIGBUS and OOM kills.

    TARGET is a container by any name you know it by: id or the beginning of one, name, pod/NAMESPACE/NAME, runc:ID,
    docker:NAME, containerd:NAME, podman:NAME, cri-o:NAME, cgroup:PATH or pid:N. The trace follows its processes,
    also those that enter it later, and ends with a summary when the container ends, or at Ctrl-C.

    Calls that come by the million (mmap, munmap, mremap, brk, madvise, process_madvise) are added up in the
    kernel and shown once a second. Events that were lost are counted, and said. Once it is attached, a line that
    begins with "Tracing" appears on standard error.

    \b
    Examples:
      rtdebug trace web
      rtdebug trace pod/prod/trainer --event oom_kill --event shm_full --event sigbus
      rtdebug trace docker:db --every-call --min-bytes 1M --stack --event mmap
      rtdebug trace web --record web.rtd --duration 10m
      rtdebug trace --all --event oom_kill -o json | jq .
    """
    from rtdebug.containers.model import Container
    from rtdebug.containers.owners import owner_by_path, owners
    from rtdebug.errors import UsageProblem
    from rtdebug.host.child import in_child
    from rtdebug.host.reasons import every_reason
    from rtdebug.live import LiveOptions, LiveTrace, find_again, known_containers, wait_for
    from rtdebug.render.choose import line_renderer
    from rtdebug.render.escape import escape
    from rtdebug.render.ready import ready_line
    from rtdebug.render.terminal import output_fd
    from rtdebug.tracing.options import EVENTS, TraceOptions
    from rtdebug.tracing.recording import RecordingWriter, start_here
    from rtdebug.tracing.schema import load_schema
    from rtdebug.tracing.scope import check_pid, make_scope
    from rtdebug.tracing.session import Session

    if (target is None) == (not whole_host):
        raise UsageProblem("give one TARGET, or --all: one of the two", "`rtdebug ps` lists the containers")
    if whole_host and follow:
        raise UsageProblem("--follow waits for one container", "leave it out with --all")

    def notice(text: str) -> None:
        click.echo(f"rtdebug: {escape(text)}", err=True)

    def look() -> tuple[Container, tuple[str, ...]]:
        from rtdebug.containers.resolve import find_container

        assert target is not None
        return find_container(target, runc_roots)

    def find() -> Container:
        container, notes = in_child(look)
        for note in notes:
            notice(note)
        return container

    with every_reason():
        named = partial(wait_for, find, notice) if follow else find
        scope = make_scope(None if target is None else named())
        if pid is not None:
            check_pid(pid, scope)
        options = TraceOptions(tuple(dict.fromkeys(events)) or EVENTS, pid, comm, min_bytes, every_call, stack)
        owner = owners(in_child(known_containers)) if whole_host else owner_by_path
        session = Session(scope, options, load_schema(), owner)

        def open_writer() -> RecordingWriter:
            assert record is not None
            start = start_here(
                sys.argv,
                session.schema,
                target=scope.container,
                cgroup_version=scope.hierarchy.version if scope.hierarchy else None,
                options={name: getattr(options, name) for name in TraceOptions.__slots__},
                clock_offset_ns=session.decoder.clock_offset_ns,
            )
            return RecordingWriter(record, start, notice, force=force)

        renderer = line_renderer(output, whole_host)
        live = LiveOptions(duration_s, interval_s, output_fd(), find_again(find) if follow else None)
        with session:
            trace = LiveTrace(session, live, renderer, notice, open_writer if record is not None else None)
            summary = trace.run(lambda: click.echo(escape(ready_line(scope, options, record)), err=True))
    renderer.summary(summary)
    if record is not None and trace.recorded:
        click.echo(f"Recorded to {escape(str(record))}; see `rtdebug report {escape(str(record))}`.", err=True)
