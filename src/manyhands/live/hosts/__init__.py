"""The hosts of a run: which there are, what they must have in common, how others are invited."""
