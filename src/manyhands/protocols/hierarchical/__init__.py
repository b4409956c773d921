"""Hierarchies: islands of workers, and a server between the islands."""
