"""One module per output form; everything that reaches a terminal goes through `escape`."""
