"""Figures of one run, each a pure function of its trace."""
