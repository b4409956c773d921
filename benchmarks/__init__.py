"""Benchmarks: each runs as `python -m benchmarks.NAME [--quick]`.

A benchmark prints a table for people and, as its last line, one JSON object with its figures and
the machine they came from.
"""
