"""Message-passing strategies, each written once for live processes and for a virtual cluster."""

from manyhands.endpoint import Terms
from manyhands.protocols.actions import (
    Action,
    Add,
    Answer,
    Call,
    Descend,
    Drop,
    Forget,
    Move,
    Scale,
    Shift,
    Step,
)
from manyhands.protocols.asynchronous import Asynchronous
from manyhands.protocols.averaging import Averaging, LocalSteps
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
from manyhands.protocols.protocol import ServerState, Site, StrategyProtocol
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
    Ensemble,
)
"""Every protocol. The shared contract suite tests each class listed here."""

__all__ = [
    "ALL",
    "Action",
    "Add",
    "Answer",
    "Asynchronous",
    "Averaging",
    "Call",
    "CentralStorage",
    "Descend",
    "DiLoCo",
    "Drop",
    "ElasticAveraging",
    "Ensemble",
    "Forget",
    "Gossip",
    "HeldCalls",
    "Hierarchical",
    "Hogwild",
    "LocalSgd",
    "LocalSteps",
    "Move",
    "PushSum",
    "Scale",
    "ServerState",
    "Shift",
    "Site",
    "SoftSync",
    "StaleSynchronous",
    "Step",
    "StrategyProtocol",
    "Synchronous",
    "Terms",
    "carry_out",
]
