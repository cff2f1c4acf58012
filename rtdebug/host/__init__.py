"""The kernel's text files and features: read_x() and parse_x(text), roots as parameters."""
