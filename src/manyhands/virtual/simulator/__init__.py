"""Discrete-event simulator: virtual time, cores, and the network between hosts."""
