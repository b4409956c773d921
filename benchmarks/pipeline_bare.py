"""The yardstick: torch.distributed.pipelining as its tutorial shows it, with shapes told.

Or, for `pipeline_table`, its general engine, which executes any table of actions.
"""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.pipelining.schedules import _Action, _PipelineScheduleRuntime

from benchmarks.pipeline_ours import BATCH, MICROBATCHES, data, model
from benchmarks.turnstile import Turnstile
from manyhands.schedules import ALL


def by_table(stage: PipelineStage) -> _PipelineScheduleRuntime:
    """1F1B, as a table."""
    schedule = _PipelineScheduleRuntime([stage], MICROBATCHES, loss_fn=F.cross_entropy)
    ranks = ALL["one_f_one_b"](2, MICROBATCHES, 2).ranks
    schedule._prepare_schedule_with_comms(
        {rank: [_Action.from_str(str(one)) for one in each] for rank, each in enumerate(ranks)}
    )
    return schedule


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    layers = [*model().children()]
    halves = torch.nn.Sequential(*layers[:3]), torch.nn.Sequential(*layers[3:])
    module = halves[rank]
    inputs, targets = data().tensors
    tokens = inputs[: BATCH // MICROBATCHES]
    with torch.no_grad():
        passing = halves[0](tokens).requires_grad_()
        logits = halves[1](passing)
    given, gives = (tokens, passing) if rank == 0 else (passing, logits.requires_grad_())
    stage = PipelineStage(module, rank, 2, torch.device("cpu"), (given,), (gives,))
    if os.environ["OVERHEAD_OF"] == "pipeline_table":
        schedule = by_table(stage)
    else:
        schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=F.cross_entropy)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
    turnstile = Turnstile(os.environ["TURNSTILE"]) if rank == 0 else None
    epoch = 0
    while True:
        order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(epoch))
        for start in range(0, len(inputs), BATCH):
            wanted = order[start : start + BATCH]
            if turnstile and not turnstile.step():
                return
            optimizer.zero_grad()
            if rank == 0:
                schedule.step(inputs[wanted])
            else:
                schedule.step(target=targets[wanted], losses=[], return_outputs=False)
            optimizer.step()
        epoch += 1


if __name__ == "__main__":
    main()
