"""Which worker has which samples, and which workers take part: pure state machines."""
