"""Live runs on real processes: agent, coordinator, servers, workers.

Nothing is imported here: the coordinator's modules are in this folder and must not load torch.
"""
