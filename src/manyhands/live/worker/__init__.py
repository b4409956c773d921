"""The process of a worker: training loop, data loading, evaluation."""
