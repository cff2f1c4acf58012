"""What runtimes know of their containers: one module per family, each asked within a time limit."""
