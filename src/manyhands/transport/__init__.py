"""How processes reach each other: `collectives` on c10d, `control` messages on ZeroMQ.

Nothing is imported here: who only sends control messages must not load torch.
"""
