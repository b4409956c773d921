"""The simulator: virtual time, cores, and the network between hosts."""
