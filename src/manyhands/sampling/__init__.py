"""Which samples make which batch, and whose they are."""
