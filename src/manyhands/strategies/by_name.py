"""Every strategy under the name that its text begins with: `ssp(staleness=4)` is both.

The assignments are written out so that editors and type checkers see them; a test compares them
with the catalog.
"""

from manyhands import placements, protocols

allreduce = placements.AllReduce
context = placements.Context
fully_sharded = placements.FullySharded
hybrid = placements.Hybrid
offload = placements.Offload
pipeline = placements.Pipeline
place = placements.Place
single = placements.Single
tensor = placements.Tensor
zero = placements.Zero

synchronous = protocols.Synchronous
central_storage = protocols.CentralStorage
softsync = protocols.SoftSync
ssp = protocols.StaleSynchronous
asynchronous = protocols.Asynchronous
hogwild = protocols.Hogwild
averaging = protocols.Averaging
local_sgd = protocols.LocalSgd
diloco = protocols.DiLoCo
hierarchical = protocols.Hierarchical
easgd = protocols.ElasticAveraging
gossip = protocols.Gossip
push_sum = protocols.PushSum
broadcast = protocols.Broadcast
ensemble = protocols.Ensemble
