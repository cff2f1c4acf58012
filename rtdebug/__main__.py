"""`python -m rtdebug` is the `rtdebug` command."""

from rtdebug.cli import main

main()
