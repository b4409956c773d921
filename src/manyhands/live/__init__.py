"""Real processes: agent, coordinator, workers.

Nothing is imported here: the coordinator lives in this folder and must not load torch.
"""
