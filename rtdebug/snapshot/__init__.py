"""The whole memory picture of a container at one moment, kept in one file."""
