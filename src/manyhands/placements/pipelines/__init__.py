"""Pipelines: stages, the tensors between them, and the loops that run them."""
