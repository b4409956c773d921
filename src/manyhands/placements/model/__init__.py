"""A model prepared for placement: plans, layouts, ties, and its first values."""
