"""Time-only runs: the times of a virtual run without its numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from manyhands.protocols import CHANGES_PARAMETERS, Answer
from manyhands.virtual.server import Server
from manyhands.virtual.worker.sized_codecs import SizedCodedEndpoint, SizedCodedShard
from manyhands.virtual.worker.sizes import SizedHolder, SizedModel, SizedReplica
from manyhands.virtual.world import World

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from manyhands.parameters import Holder
    from manyhands.protocols import Action
    from manyhands.protocols.compression.shard import CodedShard
    from manyhands.protocols.compression.worker import CodedEndpoint
    from manyhands.virtual.worker.replica import VirtualReplica
    from manyhands.virtual.worker.shared_model import SharedModel


class TimeOnlyServer(Server):
    """A server that answers calls as one with numbers, and applies nothing to its shard."""

    def expect_crash(self) -> None:
        """It writes no journal: it has no numbers to lose."""

    def _carry_out(self, action: Action) -> None:
        if isinstance(action, Answer):
            self._reply(self._open.pop((action.call.sender, action.call.number)), action)
            return
        self.holder.revision += isinstance(action, CHANGES_PARAMETERS)
        call = getattr(action, "call", None)
        staleness = getattr(action, "staleness", None)
        if staleness is not None:
            self._log.staleness(staleness, "" if call is None else call.worker)
        if call is not None:
            self._open[call.sender, call.number].payload = None


class TimeOnlyWorld(World):
    """A run without gradients, parameters and metrics, and with the times of one that has them."""

    adopts_payloads: ClassVar[bool] = False
    server_class: ClassVar[type[Server]] = TimeOnlyServer
    replica_class: ClassVar[type[VirtualReplica]] = SizedReplica
    coded_shard_class: ClassVar[type[CodedShard]] = SizedCodedShard
    coded_endpoint_class: ClassVar[type[CodedEndpoint]] = SizedCodedEndpoint

    def _new_model(self, workers: int) -> SharedModel:
        return SizedModel.of(self._job, self._needs.shards, workers)

    def _holder(self, number: int, room: torch.Tensor | None = None) -> Holder:
        del room
        shards = self._shared_model.layout.shards
        return SizedHolder.of(shards[number % len(shards)])

    def _evaluate(self) -> dict[str, float]:
        return {}

    def store(self, folder: Path) -> None:
        """There is no model to store."""
