"""The order of computations in torch's own pipeline schedules, recorded without running them.

A conformance test compares our tables in `schedules` with these.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final

import torch
from torch.distributed.pipelining import schedules as alpha

_SINGLE: Final[dict[str, Any]] = {
    "gpipe": alpha.ScheduleGPipe,
    "one_f_one_b": alpha.Schedule1F1B,
}
_MULTI: Final[dict[str, Any]] = {
    "interleaved": alpha.ScheduleInterleaved1F1B,
    "zero_bubble": alpha.ScheduleInterleavedZeroBubble,
}


def torch_order(name: str, stages: int, microbatches: int, ranks: int) -> list[list[str]]:
    """For every rank the actions of torch's schedule, in torch's notation: `2F0`."""
    if name in _SINGLE:
        return [_recorded(_SINGLE[name], stage, stages, microbatches) for stage in range(stages)]
    stage = SimpleNamespace(group_size=ranks, group_rank=0, num_stages=stages, submod=None)
    schedule = _MULTI[name]([stage] * (stages // ranks), microbatches)
    return [
        [str(action) for action in schedule.pipeline_order[rank] if action is not None]
        for rank in range(ranks)
    ]


def _recorded(kind: Any, stage: int, stages: int, microbatches: int) -> list[str]:
    """The calls of a schedule to a stage. Its printed order is wrong for 1F1B in torch 2.13."""
    recorder = _Recorder(stage, stages)
    schedule = kind(recorder, microbatches, loss_fn=lambda *_: torch.zeros(()))
    schedule._initialize_stage = lambda *_: None
    schedule._step_microbatches(target_mbs=[None] * microbatches)
    return recorder.order


class _Recorder:
    """A stage that computes and sends nothing, and records its calls."""

    def __init__(self, stage: int, stages: int) -> None:
        self.stage_index, self.num_stages = stage, stages
        self.is_last = stage == stages - 1
        self.order: list[str] = []

    def forward_one_chunk(self, number: int, *_: object, **__: object) -> None:
        self.order.append(f"{self.stage_index}F{number}")

    def backward_one_chunk(self, number: int, **_: object) -> None:
        self.order.append(f"{self.stage_index}B{number}")

    def perform_reduce_grad(self, scale: int) -> None:
        pass

    def _no_transfers(self, _: int) -> list[object]:
        return []

    get_fwd_recv_ops = get_fwd_send_ops = get_bwd_recv_ops = get_bwd_send_ops = _no_transfers
