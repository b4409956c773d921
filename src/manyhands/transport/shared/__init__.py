"""Collectives of processes on one host, in memory that they share."""
