"""torch.distributed.pipelining with our own schedules, transfers and static shapes.

torch's stages infer shapes by exchanging pickled descriptions, and look up their peers in torch's
global registry of groups. Here all shapes are given in advance, for each microbatch, so that
nothing is unpickled and a short last batch needs no padding (`docs/decisions/0026-pipelines.md`),
and tensors are sent through our own `Ranks`; torch runs the computation in the order of the table.
"""

from __future__ import annotations

import contextlib
import logging
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining import schedules as pipelining_schedules
from torch.distributed.pipelining import stage as pipelining_stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import nn

_schedules: Any = pipelining_schedules
_stage: Any = pipelining_stage
"""Untyped, because the names used are not exported."""

# With an exception torch logs its whole table, some forty lines, as errors, and raises it.
_schedules.logger.addFilter(lambda record: record.levelno != logging.ERROR)
_AHEAD = 2
"""Computations before which a receive begins: while one computes, the link is never idle."""
Meta = tuple[tuple[int, ...], torch.dtype]
"""Shape and dtype of a tensor that passes between stages."""


class Arrival(Protocol):
    """A transfer in progress."""

    def wait(self) -> object:
        """Wait until it has completed."""


class Ranks(Protocol):
    """Transfers between the ranks of a pipeline."""

    rank: int
    size: int

    def send(self, tensor: torch.Tensor, to: int, tag: int) -> Arrival:
        """Start to send; the tensor must not be changed until the transfer has completed."""

    def receive(self, tensor: torch.Tensor, source: int, tag: int) -> Arrival:
        """Start to receive."""

    def arrive(self, coming: Arrival) -> None:
        """Wait for a receive."""


class Stage(PipelineStage):
    """A PipelineStage with given shapes and peers.

    Args:
        module: the module of the stage.
        index: index of the stage, from 0.
        stages: number of stages.
        device: the device of the stage.
        ranks: the ranks; stage s is on rank s modulo their number.
        given: input shape per microbatch; None for the first stage.
        gives: output shape per microbatch; None for the last stage.
    """

    def __init__(
        self,
        module: nn.Module,
        index: int,
        stages: int,
        device: torch.device,
        ranks: Ranks,
        given: Sequence[Meta] | None,
        gives: Sequence[Meta] | None,
    ) -> None:
        with _asked_of(ranks):
            super().__init__(module, index, stages, device)
        self._ranks = ranks
        self._given, self._gives = given, gives
        self._coming: dict[tuple[bool, int], Arrival] = {}
        self._leaving: list[Arrival] = []

    def settle(self) -> None:
        """Wait until all sends have completed, so that the tensors may be changed."""
        for each in self._leaving:
            each.wait()
        self._leaving.clear()

    def forward_maybe_with_nosync(self, *args: Any, **kwargs: Any) -> Any:
        """The module's output, in a form that torch may free."""
        output = super().forward_maybe_with_nosync(*args, **kwargs)  # type: ignore[no-untyped-call]
        # torch frees a stage's output in place when the backward is split in halves, which a view
        # does not allow.
        view = not self.is_last and isinstance(output, torch.Tensor) and output._is_view()
        return output.clone() if view else output

    # Overrides of methods that would use the network.

    def _prepare_forward_infra(self, num_microbatches: int, *_: object, **__: object) -> None:
        self.chunks = num_microbatches
        self._stage_meta.inputs = (_meta(self._given[0]),) if self._given else ()
        self._stage_meta.outputs = (_meta(self._gives[0]),) if self._gives else ()
        self.args_recv_info = {
            number: self._expect(self._given, number, self.stage_index - 1)
            for number in range(num_microbatches)
        }
        self._setup_forward_send_info()

    def _prepare_backward_infra(self, num_microbatches: int, *_: object, **__: object) -> None:
        self.grad_recv_info = {
            number: self._expect(self._gives, number, self.stage_index + 1)
            for number in range(num_microbatches)
        }

    def _warmup_forward_vote(self, *_: object, **__: object) -> torch.Tensor:
        return _yes()

    def _warmup_backward_result(self, *_: object, **__: object) -> torch.Tensor:
        return _yes()

    def _recv_meta(self, src_stage: int) -> Any:
        raise RuntimeError(f"stage {self.stage_index} would unpickle data from stage {src_stage}")

    def _send_meta(self, meta: Any, dst_stage: int) -> None:
        raise RuntimeError(f"stage {self.stage_index} would pickle for stage {dst_stage}: {meta}")

    def _expect(self, metas: Sequence[Meta] | None, number: int, source: int) -> tuple[Any, ...]:
        if metas is None:
            return ()
        return (_stage._RecvInfo(f"from {source}", source, None, _meta(metas[number])),)

    # Overrides of transfers through registered groups: ours start when they are requested.

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        """Start to receive a microbatch; nothing is left for torch to do."""
        self._receive(self.args_recv_info[fwd_chunk_id], fwd_chunk_id, forward=True)
        return []

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """Start to receive a gradient."""
        self._receive(self.grad_recv_info[bwd_chunk_id], bwd_chunk_id, forward=False)
        return []

    def _receive(self, expected: tuple[Any, ...], number: int, *, forward: bool) -> None:
        for info in expected:
            info.buffer = torch.empty(
                info.tensor_meta.shape, dtype=info.tensor_meta.dtype, device=self.device
            )
            self._coming[forward, number] = self._ranks.receive(
                info.buffer, self._rank_of(info.source), self._tag(info.source, number, forward)
            )

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        """Start to send the input of the next stage."""
        (output,), _ = self.fwd_cache[fwd_chunk_id]
        self._send(output.detach(), self.stage_index + 1, fwd_chunk_id, forward=True)
        return []

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """Start to send the gradient that the previous stage waits for."""
        (gradient,) = self.bwd_cache.pop(bwd_chunk_id)
        if gradient is None:
            # The output does not depend on the input, but the previous stage waits for a gradient.
            assert self._given is not None  # noqa: S101 - the first stage sends no gradient
            shape, dtype = self._given[bwd_chunk_id]
            gradient = torch.zeros(shape, dtype=dtype, device=self.device)
        self._send(gradient, self.stage_index - 1, bwd_chunk_id, forward=False)
        return []

    def _send(self, tensor: torch.Tensor, to: int, number: int, *, forward: bool) -> None:
        tag = self._tag(self.stage_index, number, forward)
        self._leaving.append(self._ranks.send(tensor, self._rank_of(to), tag))

    def _retrieve_recv_activations(self, fwd_chunk_id: int) -> Any:
        self._await(forward=True, number=fwd_chunk_id)
        given = super()._retrieve_recv_activations(fwd_chunk_id)
        # From here on the autograd graph holds it, for as long as it is needed.
        self._forget(self.args_recv_info[fwd_chunk_id])
        return given

    def _retrieve_recv_grads(self, bwd_chunk_id: int) -> Any:
        self._await(forward=False, number=bwd_chunk_id)
        given = super()._retrieve_recv_grads(bwd_chunk_id)
        self._forget(self.grad_recv_info[bwd_chunk_id])
        return given

    def _await(self, *, forward: bool, number: int) -> None:
        # Nothing is received from a stage on the same rank.
        if (coming := self._coming.pop((forward, number), None)) is not None:
            self._ranks.arrive(coming)

    @staticmethod
    def _forget(expected: tuple[Any, ...]) -> None:
        for info in expected:
            info.buffer = None

    def _rank_of(self, stage: int) -> int:
        return stage % self._ranks.size

    def _tag(self, sender: int, number: int, forward: bool) -> int:
        return 2 * (number * self.num_stages + sender) + forward


def runtime(
    stages: Sequence[Stage],
    order: Sequence[Sequence[str]],
    microbatches: int,
    loss: Callable[[Any, Any], torch.Tensor],
) -> Callable[[Sequence[Any], Sequence[Any]], list[torch.Tensor]]:
    """The function that executes a table on this rank.

    Args:
        stages: this rank's stages.
        order: for every rank its actions, each written `2F0`.
        microbatches: number of microbatches.
        loss: the loss of the last stage's output and a microbatch's target.

    Returns:
        A function of the microbatches' inputs and targets that accumulates the gradients in the
        parameters. It returns the losses on the rank of the last stage.
    """
    engine: Any = _schedules._PipelineScheduleRuntime(
        [*stages], microbatches, loss_fn=loss, scale_grads=False
    )
    engine._prepare_schedule_with_comms(
        {
            rank: [_schedules._Action.from_str(action) for action in actions]
            for rank, actions in enumerate(order)
        }
    )

    if all(stage.device.type == "cpu" for stage in stages):
        # NCCL executes what was begun in order: a receive ahead of a send could block it.
        comms = engine.pipeline_order_with_comms
        comms[engine.rank] = received_ahead(comms[engine.rank])

    def run(inputs: Sequence[Any], targets: Sequence[Any]) -> list[torch.Tensor]:
        losses: list[torch.Tensor] = []
        for stage in stages:
            stage.has_backward = True
            stage.clear_runtime_states()
        engine._step_microbatches(
            [(each,) for each in inputs], None, [*targets], losses, return_outputs=False
        )
        for stage in stages:
            stage.settle()
        return losses

    return run


def received_ahead(actions: Sequence[Any], by: int = _AHEAD) -> list[Any]:
    """The actions of a rank, with each receive begun some computations before its tensor is used.

    torch begins a receive right before the computation that waits for it, and Gloo transfers
    nothing before the receiver has begun: so no transfer would pass beside computation. Receives
    stay in their order.

    >>> actions = [_schedules._Action.from_str(one) for one in "1RECV_F0 1F0 1RECV_F1 1F1".split()]
    >>> [str(one) for one in received_ahead(actions)]
    ['1RECV_F0', '1RECV_F1', '1F0', '1F1']
    """
    receives = (_schedules.RECV_F, _schedules.RECV_B)
    found: list[Any] = []
    for action in actions:
        at, passed = len(found), 0
        while action.computation_type in receives and at:
            before = found[at - 1]
            if before.computation_type in receives or passed + before.is_compute_op > by:
                break
            passed += before.is_compute_op
            at -= 1
        found.insert(at, action)
    return found


def _yes() -> torch.Tensor:
    # A tensor made from a number keeps it even among fake tensors.
    return torch.tensor(1)


def _meta(meta: Meta) -> Any:
    shape, dtype = meta
    return _stage._TensorMeta(
        shape=torch.Size(shape),
        stride=torch.empty(shape, device="meta").stride(),
        dtype=dtype,
        requires_grad=True,
    )


@contextlib.contextmanager
def _asked_of(ranks: Ranks) -> Iterator[None]:
    """Context in which a new stage takes its rank from ours, and not from torch's registry."""
    known = SimpleNamespace(
        get_rank=lambda _: ranks.rank,
        get_world_size=lambda _: ranks.size,
        get_debug_level=_stage.dist.get_debug_level,
        DebugLevel=_stage.dist.DebugLevel,
    )
    _stage.dist = known
    try:
        yield
    finally:
        _stage.dist = dist
