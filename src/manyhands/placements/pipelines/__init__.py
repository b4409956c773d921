"""Pipelines: stages, what passes between them, and the loops that run them."""
