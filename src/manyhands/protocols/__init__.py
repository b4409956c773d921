"""Tier A: protocols, each written once and run on real processes and on a virtual cluster."""

from manyhands.protocols.asynchronous import Asynchronous
from manyhands.protocols.protocol import Action, Answer, Call, Step, StrategyProtocol, Terms

ALL: tuple[type[StrategyProtocol], ...] = (Asynchronous,)
"""Every protocol: add a new one here and the shared contract suite tests it."""

__all__ = [
    "ALL",
    "Action",
    "Answer",
    "Asynchronous",
    "Call",
    "Step",
    "StrategyProtocol",
    "Terms",
]
