"""Faults on purpose in live runs: signals to processes, links that are cut, a full disk."""
