"""The lab: one job under several strategies, on the same machine, fairly.

Its face is loaded on demand, `mh.compare`: a network is made without torch.
"""
