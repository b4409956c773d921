"""Comparisons of runs: results, statistics, standings and the verdict."""
