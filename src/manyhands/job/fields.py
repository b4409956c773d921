"""The fields of a `Job`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import torch
from torch import nn

if TYPE_CHECKING:
    import os

    from torch.optim.lr_scheduler import LRScheduler
    from torch.utils.data import Sampler

    from manyhands.callbacks import Callback
    from manyhands.data.sized import SizedData
    from manyhands.data.stream import StreamedData
    from manyhands.intervals import Every
    from manyhands.lr_schedules import LRSchedule
    from manyhands.metrics import Metric
    from manyhands.objective import Objective
    from manyhands.stopping import EarlyStopping

Loss: TypeAlias = Callable[[Any, Any], torch.Tensor]
"""`loss(outputs, targets)`: the mean over the samples of a batch."""

Durability: TypeAlias = Literal["none", "process", "host", "power"]
"""The failures that acknowledged updates survive: see `Job.durability`."""

KEEP: Final = 3
"""Number of checkpoints that are kept by default."""

MEASURES = ("spread", "gradient_norm", "staleness")
"""What a run can record at evaluations beside metrics."""


@dataclass(frozen=True, kw_only=True)
class JobFields:
    """What a `Job` is given."""

    model: Callable[[], nn.Module]
    """Returns a new model: its class, or a function without arguments."""
    optimizer: Callable[[nn.Module], torch.optim.Optimizer | Mapping[str, torch.optim.Optimizer]]
    """Returns the optimizer of a model: `lambda model: SGD(model.parameters(), lr=0.1)`. With
    several objectives, a dict with an optimizer for each of them, over parameters of its own."""
    start: str | os.PathLike[str] | None = None
    """Existing weights to start from, in place of the model's own initial values: a safetensors
    file, a sharded index of Hugging Face (`model.safetensors.index.json`), or a folder with either,
    such as the folder of an earlier run. Names and shapes must be those of the model's
    `state_dict()`."""
    loss: Loss | None = None
    """`loss(outputs, targets)`: the mean over the samples of a batch."""
    objective: Objective | Mapping[str, Objective] | None = None
    """In place of a loss: `objective(model, batch)`, which returns the mean loss over the samples
    of a batch of any form, or `mh.Weighted(total, weight)` where the mean is over something else,
    such as tokens. `model` is to be called; its attributes are those of the model.

    Several objectives, as of a GAN, are given as a dict: `{"discriminator": d_loss, "generator":
    g_loss}`. Every global batch then gives one step for each of them, in this order: the gradient
    is computed on the parameters after the step before, for the parameters of the optimizer of
    that name."""
    data: SizedData | StreamedData
    """Samples `(input, target)`, or of any form with an objective: any map-style dataset, or a
    stream (an `IterableDataset`), which is read in its own order and ends the run with its last
    sample."""
    sampler: Sampler[int] | None = None
    """A sampler of `torch.utils.data` in place of the random order, as `WeightedRandomSampler`: it
    is iterated once per epoch, seeded, with the same indices for all workers, which divide them.
    An epoch has as many samples as the sampler."""
    validation: SizedData | None = None
    """Samples on which the loss and the metrics are computed after every epoch."""
    evaluate_every: Every | None = None
    """When to evaluate: `mh.every(samples=5000)` or `mh.every(seconds=10)` in addition to the end
    of every epoch, `mh.every(epochs=0.25)` in place of it. It follows the batch that completes the
    interval. Default: after every epoch. The last evaluation is at the end of the run."""
    checkpoint: Every | None = None
    """When to store a checkpoint from which a run can continue: `mh.every(seconds=600)`,
    `mh.every(steps=1000)`, `mh.every(samples=100_000)` or `mh.every(epochs=1)`. It follows the
    batch that completes the interval. `mh.every(seconds=10, memory=True)` keeps it in memory, for
    a process that is killed. Default: none is stored."""
    keep: int = KEEP
    """Number of checkpoints that are kept; older ones are removed."""
    measures: Sequence[str] = ()
    """What to record of the training beside the loss, at every evaluation: "gradient_norm",
    "spread" (the distance between replicas), "staleness"; see docs/meanings.md. Each costs time
    only if it is named."""
    metrics: str | Metric | Sequence[str | Metric | Callable[[Any, Any], torch.Tensor]] | None = (
        None
    )
    """One or several of: a name ("accuracy", "f1"), a `Metric`, or a function of (outputs, targets)
    that returns a value per sample. The loss is always computed too, as `loss`. Default:
    "accuracy" if the targets of the validation data are integers, otherwise the loss alone, as
    with an objective. An objective with metrics returns `mh.Weighted` with outputs and targets."""
    global_batch: int | Mapping[float, int]
    """Samples in one step of all workers together, whatever their number; {0: 128, 2: 512} grows
    it to 512 after 2 epochs."""
    lr_schedule: LRSchedule | Callable[[float], float] | None = None
    """Learning-rate schedule: a function from epochs (a fraction is possible) to the factor that
    the optimizer's learning rates are multiplied by, as `torch.optim.lr_scheduler.LambdaLR` takes:
    `mh.lr_schedules.cosine(10, warmup=0.5)`, or a function of your own."""
    lr_scheduler: Callable[[torch.optim.Optimizer], LRScheduler] | None = None
    """In place of `lr_schedule`: returns a scheduler of `torch.optim.lr_scheduler` for an
    optimizer, `lambda optimizer: OneCycleLR(optimizer, 0.1, total_steps=1000)`. It is stepped once
    per global batch of all workers together, so it means the same on any number of workers."""
    scheduler_interval: Literal["step", "epoch"] = "step"
    """When `lr_scheduler` is stepped: after every global batch, or after every epoch."""
    plateau_metric: str | None = None
    """The validation metric that a `ReduceLROnPlateau` is stepped with. Default: the loss."""
    clip: float | None = None
    """Maximum norm of the gradient over all parameters, as in
    `torch.nn.utils.clip_grad_norm_`; None does not clip."""
    micro_batch: int | None = None
    """Samples per forward and backward pass of a worker. If its part of the global batch is
    larger, gradients are accumulated over several passes."""
    autocast: Literal["bfloat16", "float16"] | None = None
    """Compute outputs and losses under `torch.autocast` in this type; parameters, gradients and
    optimizer state keep their own. With "float16" the loss is scaled as by `torch.amp.GradScaler`,
    and a step whose gradient overflows is skipped, on all workers alike."""
    ema: float | None = None
    """Decay of an exponential moving average of the parameters, such as 0.999, updated after every
    global batch. Evaluations record its values too, as `ema_loss`, and it is stored beside the
    model: `run.state_dict(average=True)`."""
    sync_batchnorm: bool = False
    """Normalise by the statistics of all workers' samples, as `torch.nn.SyncBatchNorm`, into which
    all batch-norm layers are converted; N workers then equal one. Needs a strategy whose workers
    compute together, such as allreduce()."""
    compile: bool = False
    """Compile the model with `torch.compile`, once per process, where a strategy calls it as a
    whole. Needs a C++ compiler on the CPU; strategies that divide the model refuse it."""
    activation_checkpointing: bool = False
    """Keep only the inputs of each block of the model, and recompute its activations in the
    backward pass (`torch.utils.checkpoint`): less memory, about a third more computation."""
    epochs: float | None = None
    """Stop after this many passes over the data; a fraction is allowed."""
    samples: int | None = None
    """Stop after this many samples."""
    seconds: float | None = None
    """Stop after this many seconds of training, evaluations included."""
    target: str | None = None
    """Stop when a validation metric reaches a value: "accuracy >= 0.98"."""
    early_stopping: EarlyStopping | None = None
    """Stop when a validation metric has not improved for some evaluations:
    `mh.EarlyStopping("loss", patience=3)`."""
    stop_on_nan: bool = True
    """End the run as failed when a training loss, a validation loss or a final parameter is NaN or
    infinite. With False the run continues: updates that are not finite are not applied, and its
    summary reports them."""
    callbacks: Sequence[Callback] = ()
    """Called in the process that started the run, while it trains: `mh.callbacks.CSVLogger()`, or
    callbacks of your own."""
    seed: int = 0
    """Determines the initial parameters and the order of the samples."""
    prepare: Callable[[], object] | None = None
    """Called once per host before any worker starts: downloads, unpacking."""
    collate_fn: Callable[[list[Any]], Any] | None = None
    """Merges a list of samples into a batch, as the `collate_fn` of a `DataLoader`."""
    num_workers: int = 0
    """Data-loading processes of each worker, as the `num_workers` of a `DataLoader`; 0 loads in
    the worker's own process."""
    durability: Durability = "process"
    """What the parameter servers' acknowledged updates survive: "none" nothing, "process" the death
    of any server or worker process, "power" a loss of power too, at the price of a disk write per
    update."""
