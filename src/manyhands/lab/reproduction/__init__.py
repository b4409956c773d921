"""Reproduction: what a comparison records of its design, and how it is made again from it."""
