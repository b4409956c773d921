"""Building blocks that several protocols share."""
