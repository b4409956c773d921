"""What a job may ask for beside its steps: a compiled model, averaged weights, a loss scale."""
