"""`rtdebug ps`: which containers run here."""

from __future__ import annotations

import os
from pathlib import Path

import click

from rtdebug.commands.options import output_option, runc_root_option


@click.command("ps")
@output_option()
@runc_root_option()
def command(output: str, runc_roots: tuple[Path, ...]) -> None:
    """List the running containers of runc, crun, docker, containerd, podman and CRI-O.

    Shows the memory that each uses, the limit that binds it (its own, or that of a cgroup above it), and how
    full its /dev/shm is. What could not be asked is said on standard error.

    \b
    Examples:
      rtdebug ps
      rtdebug ps --runc-root /run/my-runner
      rtdebug ps -o json | jq '.containers[] | select(.shm_used_bytes > 50000000) | .name // .id'
    """
    from rtdebug.containers.inventory import list_containers
    from rtdebug.containers.usage import read_usage
    from rtdebug.errors import HostUnable
    from rtdebug.render.escape import escape
    from rtdebug.render.ps import ps_json, ps_table

    inventory = list_containers(runc_roots)
    running = [container for container in inventory.containers if container.is_running]
    if not running and os.geteuid() != 0:
        raise HostUnable("no container can be seen", "most runtimes let root alone look: sudo rtdebug ps")
    usages = [read_usage(container, inventory.hierarchy, inventory.host.proc) for container in running]
    if output == "json":
        click.echo(ps_json(usages, inventory.notes), nl=False)
        return
    for note in inventory.notes:
        click.echo(f"note: {escape(note)}", err=True)
    click.echo(ps_table(usages), nl=False)
