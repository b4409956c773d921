"""Assignment of samples to batches and workers."""
