"""Hierarchical strategies: islands of workers, and an outer server that connects the islands."""
