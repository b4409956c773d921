"""Checkpoints of a worker: what it stores, when, and how it continues from a stored one."""
