"""What a worker trains under a placement, one class each."""
