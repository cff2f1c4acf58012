"""`rtdebug completion SHELL`: print what makes the shell complete commands, options and containers."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from rtdebug.errors import UsageProblem

_SHELLS = ("bash", "zsh", "fish")
_COMPLETE_VARIABLE = "_RTDEBUG_COMPLETE"


@click.command("completion")
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the completion script for SHELL: bash, zsh or fish.

    It completes commands, options, names of events and, as root, of running containers.

    \b
    Examples:
      eval "$(rtdebug completion bash)"      # in ~/.bashrc
      eval "$(rtdebug completion zsh)"       # in ~/.zshrc
      rtdebug completion fish > ~/.config/fish/completions/rtdebug.fish
    """
    completion = get_completion_class(shell)
    if completion is None:
        raise UsageProblem(f"no completion for {shell}", f"there is one for {', '.join(_SHELLS)}")
    click.echo(completion(ctx.find_root().command, {}, "rtdebug", _COMPLETE_VARIABLE).source())
