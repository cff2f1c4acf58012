"""How good the verdicts of `rtdebug leaks` are, and how fast."""
