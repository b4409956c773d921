"""Comparisons: one job under several strategies, on the same machine, in interleaved runs.

Nothing is imported here: networks of namespaces are created without torch.
"""
