"""Leases of samples, membership and fences: pure state machines."""
