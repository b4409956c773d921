"""A virtual worker: its endpoint, its replica and the model that all replicas share."""
