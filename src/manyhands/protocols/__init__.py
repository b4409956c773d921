"""Message-passing strategies, each written once for live processes and for a virtual cluster.

Also what a strategy of one's own is built from (docs/write-a-protocol.md): base classes
(`StrategyProtocol`, `ServerBased`, `Rounds`, `LocalSteps`), messages (`Push`, `Pull`, `Custom` …),
and the actions of a server (`Add`, `Step`, `Answer`, `ShardOperation` …).

    >>> Averaging(every=2).on_leave(Averaging().begin(Terms(8, workers=2)), "worker-0")[1]
    []
"""

from manyhands.endpoint import (
    Change,
    Custom,
    Endpoint,
    LeasedBatch,
    MembershipChanged,
    Parameters,
    Pull,
    Push,
    Replica,
    Rest,
    Terms,
)
from manyhands.protocols.actions import (
    CHANGES_PARAMETERS,
    USES_PAYLOAD,
    Action,
    Add,
    Answer,
    Call,
    Descend,
    Drop,
    Forget,
    Move,
    Scale,
    ShardOperation,
    Shift,
    Step,
)
from manyhands.protocols.aggregation import Aggregator
from manyhands.protocols.allreduce import AllreduceMessages, LockstepProtocol
from manyhands.protocols.asynchronous import Asynchronous
from manyhands.protocols.averaging import Averaging, LocalSteps
from manyhands.protocols.broadcast import Broadcast
from manyhands.protocols.central_storage import CentralStorage
from manyhands.protocols.diloco import DiLoCo
from manyhands.protocols.easgd import ElasticAveraging
from manyhands.protocols.ensemble import Ensemble
from manyhands.protocols.execution import carry_out
from manyhands.protocols.gossip.gossip import Gossip
from manyhands.protocols.gossip.push_sum import PushSum
from manyhands.protocols.hierarchical.hierarchical import Hierarchical
from manyhands.protocols.hogwild import Hogwild
from manyhands.protocols.local_sgd import LocalSgd
from manyhands.protocols.parts.held_calls import HeldCalls
from manyhands.protocols.parts.pull_and_rest import ServerBased, rest
from manyhands.protocols.parts.rounds import Round, Rounds
from manyhands.protocols.protocol import ServerState, StrategyProtocol, WorkerGroup
from manyhands.protocols.softsync import SoftSync
from manyhands.protocols.ssp import StaleSynchronous
from manyhands.protocols.synchronous import Synchronous

ALL: tuple[type[StrategyProtocol], ...] = (
    Synchronous,
    CentralStorage,
    SoftSync,
    StaleSynchronous,
    Asynchronous,
    Hogwild,
    Averaging,
    LocalSgd,
    DiLoCo,
    Hierarchical,
    ElasticAveraging,
    Gossip,
    PushSum,
    Broadcast,
    Ensemble,
)
"""Every protocol that runs live, too. The shared contract suite tests each class listed here."""

__all__ = [
    "ALL",
    "CHANGES_PARAMETERS",
    "USES_PAYLOAD",
    "Action",
    "Add",
    "Aggregator",
    "AllreduceMessages",
    "Answer",
    "Asynchronous",
    "Averaging",
    "Broadcast",
    "Call",
    "CentralStorage",
    "Change",
    "Custom",
    "Descend",
    "DiLoCo",
    "Drop",
    "ElasticAveraging",
    "Endpoint",
    "Ensemble",
    "Forget",
    "Gossip",
    "HeldCalls",
    "Hierarchical",
    "Hogwild",
    "LeasedBatch",
    "LocalSgd",
    "LocalSteps",
    "LockstepProtocol",
    "MembershipChanged",
    "Move",
    "Parameters",
    "Pull",
    "Push",
    "PushSum",
    "Replica",
    "Rest",
    "Round",
    "Rounds",
    "Scale",
    "ServerBased",
    "ServerState",
    "ShardOperation",
    "Shift",
    "SoftSync",
    "StaleSynchronous",
    "Step",
    "StrategyProtocol",
    "Synchronous",
    "Terms",
    "WorkerGroup",
    "carry_out",
    "rest",
]
