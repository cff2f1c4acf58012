"""Figures of all containers for Prometheus."""
