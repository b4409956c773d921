"""The coordinator's process: membership, leases, admission of other hosts."""
