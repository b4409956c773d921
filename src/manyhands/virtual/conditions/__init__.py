"""Conditions of a virtual run: compute times, faults, and the host of each process."""
