"""Division of batches, and weights of losses: what a mean is over, in parts and in all."""
