"""Limits of a container: what they are, what they should be, and giving idle memory back."""
