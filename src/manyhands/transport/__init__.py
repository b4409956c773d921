"""Communication between processes: `collectives` on c10d, calls and control messages on ZeroMQ.

Nothing is imported here: a process that only sends control messages must not load torch.
"""
