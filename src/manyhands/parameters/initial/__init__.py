"""Initial values of parameters, created in parts if the whole model would not fit in memory."""
