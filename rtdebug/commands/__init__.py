"""One module per command: options -> library -> renderer, no logic of their own."""
