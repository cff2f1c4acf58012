"""`rtdebug leaks compare`: two recordings of one service, before and after a release."""

from __future__ import annotations

from pathlib import Path

import click

from rtdebug.commands.leaks_options import progress_line, rule_options
from rtdebug.commands.options import output_option


@click.command("compare")
@click.argument("base", type=click.Path(path_type=Path))
@click.argument("new", type=click.Path(path_type=Path))
@output_option()
@rule_options()
def command(base: Path, new: Path, output: str, min_span_s: float | None, min_growth_bytes: int | None) -> None:
    """Say which kinds of memory, and which allocation sites, grow faster in NEW than in BASE.

    Both are stores of `rtdebug leaks record`, of the same service under the same load, for about as long. Containers
    are paired by name, processes by executable; with one container on each side those are the pair.

    \b
    Examples:
      rtdebug leaks compare before/ after/
      rtdebug leaks compare v1 v2 -o json | jq '.kinds[] | select(.change == "grows faster")'
    """
    from rtdebug.leaks.batch import gather, sites_of
    from rtdebug.leaks.compare import compare, compare_sites
    from rtdebug.leaks.extras import require_extras
    from rtdebug.leaks.rules import DEFAULT
    from rtdebug.render.leaks_compare import compare_json, compare_table

    require_extras()
    rules = DEFAULT.with_floors(min_span_s, min_growth_bytes)
    with progress_line() as progress:
        before, notes = gather([base], progress=progress)
        after, more = gather([new], progress=progress)
        changes = compare(before, after, rules)
        sites = compare_sites(sites_of([base]), sites_of([new]), rules.smallest_growth)
    render = compare_json if output == "json" else compare_table
    click.echo(render(changes, sites, notes + more), nl=False)
