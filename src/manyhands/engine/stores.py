"""c10d's key-value stores, taken from where they are defined.

torch.distributed does not declare them as exported, so typed code cannot name them there.
"""

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed.rendezvous import rendezvous

__all__ = ["PrefixStore", "Store", "TCPStore", "rendezvous"]
