"""torch.distributed.pipelining with a table of ours, sockets of ours, and shapes that are told.

torch's stages find out what they are given by sending each other pickled descriptions, and look up
their peers in torch's global registry of groups. Here every shape is told beforehand, for every
microbatch its own, and what is sent goes through `Ranks` of ours; torch computes, in the order of
the table.
"""

from __future__ import annotations

import contextlib
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
"""Untyped: what is used of them is not exported."""

Meta = tuple[tuple[int, ...], torch.dtype]
"""What passes from a stage to the next: a tensor's shape and type."""


class Arrival(Protocol):
    """Something under way."""

    def wait(self) -> object:
        """Until it is there."""


class Ranks(Protocol):
    """The ranks of a pipeline, as one of them sees the others."""

    rank: int
    size: int

    def send(self, tensor: torch.Tensor, to: int, tag: int) -> Arrival:
        """Begin to send; the tensor must stay as it is meanwhile."""

    def receive(self, tensor: torch.Tensor, source: int, tag: int) -> Arrival:
        """Begin to receive."""

    def arrive(self, coming: Arrival) -> None:
        """Wait for what was to be received."""


class Stage(PipelineStage):
    """A stage of torch's that is told its shapes and its peers.

    Args:
        module: what it computes.
        index: its number, from 0.
        stages: how many there are.
        device: where it computes.
        ranks: stage s lies on rank s modulo their number.
        given: what each microbatch brings it; None for the first stage.
        gives: what each microbatch leaves it with; None for the last.
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
        """Wait until all that it sent is on its way, so that the tensors may be changed."""
        for each in self._leaving:
            each.wait()
        self._leaving.clear()

    def forward_maybe_with_nosync(self, *args: Any, **kwargs: Any) -> Any:
        """What the module gives, as something that torch may let go of."""
        output = super().forward_maybe_with_nosync(*args, **kwargs)  # type: ignore[no-untyped-call]
        # torch lets go of a stage's output in place when it takes the backward in halves, which a
        # view does not allow.
        view = not self.is_last and isinstance(output, torch.Tensor) and output._is_view()
        return output.clone() if view else output

    # What torch would ask the network about.

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
        raise RuntimeError(f"stage {self.stage_index} was about to unpickle what {src_stage} sends")

    def _send_meta(self, meta: Any, dst_stage: int) -> None:
        raise RuntimeError(f"stage {self.stage_index} was about to pickle for {dst_stage}: {meta}")

    def _expect(self, metas: Sequence[Meta] | None, number: int, source: int) -> tuple[Any, ...]:
        if metas is None:
            return ()
        return (_stage._RecvInfo(f"from {source}", source, None, _meta(metas[number])),)

    # What torch would have its registered groups do: an operation begins when it is asked for.

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        """Begin to receive a microbatch; nothing is left for torch to do."""
        self._receive(self.args_recv_info[fwd_chunk_id], fwd_chunk_id, forward=True)
        return []

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """Begin to receive a gradient."""
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
        """Begin to send what the next stage is given."""
        (output,), _ = self.fwd_cache[fwd_chunk_id]
        self._send(output.detach(), self.stage_index + 1, fwd_chunk_id, forward=True)
        return []

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """Begin to send the gradient that the stage before waits for."""
        (gradient,) = self.bwd_cache.pop(bwd_chunk_id)
        if gradient is None:
            # The stage does not depend on what it was given; the one before waits all the same.
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
        # From here on the computation holds it, for as long as it is needed.
        self._forget(self.args_recv_info[fwd_chunk_id])
        return given

    def _retrieve_recv_grads(self, bwd_chunk_id: int) -> Any:
        self._await(forward=False, number=bwd_chunk_id)
        given = super()._retrieve_recv_grads(bwd_chunk_id)
        self._forget(self.grad_recv_info[bwd_chunk_id])
        return given

    def _await(self, *, forward: bool, number: int) -> None:
        # Nothing comes from a stage on the same rank.
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
    """What executes a table on this rank.

    Args:
        stages: this rank's.
        order: for every rank its actions, each written `2F0`.
        microbatches: how many there are.
        loss: of what the last stage gives and of a microbatch's target.

    Returns:
        A function of the microbatches' inputs and targets that leaves the gradients, summed over
        them, in the parameters. It gives their losses, where the last stage is.
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


def _yes() -> torch.Tensor:
    # Of a tensor made of a number, the number is known even if all is imagined.
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
    """Let a stage ask our ranks for its own when it is made, and not torch's registry."""
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
