"""Forecasts of placements: their messages and memory, computed without running them."""
