"""The worker's side of placements: one class for each way to hold a model."""
