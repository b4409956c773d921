"""Strategies: every one under its catalog name, and as text.

A strategy is a frozen value that says how the replicas of a model are trained together. It is
written in Python, where an editor completes it, or as text, as on the command line:

    >>> from manyhands import strategies
    >>> strategies.ssp(staleness=4) == strategies.strategy("ssp(staleness=4)")
    True

PyTorch's own engine executes these; all workers step together:

    single          one worker, no exchange
    allreduce       DistributedDataParallel: gradients are averaged
    zero            ZeRO: optimizer state, gradients or parameters are sharded
    fully_sharded   FSDP2: parameters are gathered block by block
    offload         FSDP2 with parameters and optimizer state in host memory
    tensor          tensor parallelism
    context         context parallelism: each worker has a part of every sequence
    pipeline        pipeline parallelism
    hybrid          data, tensor and pipeline parallelism on one mesh
    place           modules on the workers that one chooses

Workers exchange messages with parameter servers or with each other; live and simulated:

    synchronous, central_storage, softsync, ssp, asynchronous, hogwild, averaging, local_sgd,
    diloco, hierarchical, easgd, gossip, push_sum, broadcast, ensemble

`help(strategies.ssp)` or `manyhands strategies ssp` explains one: its equation, its parameters,
its paper.
"""

from manyhands.strategies.by_name import (
    allreduce,
    asynchronous,
    averaging,
    broadcast,
    central_storage,
    context,
    diloco,
    easgd,
    ensemble,
    fully_sharded,
    gossip,
    hierarchical,
    hogwild,
    hybrid,
    local_sgd,
    offload,
    pipeline,
    place,
    push_sum,
    single,
    softsync,
    ssp,
    synchronous,
    tensor,
    zero,
)
from manyhands.strategies.catalog import (
    CATALOG,
    Strategy,
    is_known,
    names,
    register,
    strategy,
)
from manyhands.strategies.job_check import check_job
from manyhands.strategies.kinds import placement_of, protocol_of, virtual_form

__all__ = [
    "CATALOG",
    "Strategy",
    "allreduce",
    "asynchronous",
    "averaging",
    "broadcast",
    "central_storage",
    "check_job",
    "context",
    "diloco",
    "easgd",
    "ensemble",
    "fully_sharded",
    "gossip",
    "hierarchical",
    "hogwild",
    "hybrid",
    "is_known",
    "local_sgd",
    "names",
    "offload",
    "pipeline",
    "place",
    "placement_of",
    "protocol_of",
    "push_sum",
    "register",
    "single",
    "softsync",
    "ssp",
    "strategy",
    "synchronous",
    "tensor",
    "virtual_form",
    "zero",
]
