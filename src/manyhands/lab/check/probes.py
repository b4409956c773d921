"""Probes: what in a job makes N workers train another model than one worker, each in one sentence.

They run in one process, on a few samples of the job's data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from manyhands.data.sample_digest import digest
from manyhands.parameters.gradients import compute_loss
from manyhands.parameters.optional.loss_parameters import loss_parameters, words
from manyhands.parameters.weights.loss_division import apart, batches_of, check_division
from manyhands.seeding import Seeded, epoch_seed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from manyhands.job import Job
    from manyhands.lab.check.fingerprint import Fingerprint

_SAMPLES = 8
_CALLS = 12
"""How often the loss of a batch and of its parts is computed in training mode."""
_NEAR = 1e-4
"""How far two losses may be from each other, relatively, to be called equal."""


def probe(job: Job, *, one_weight: bool = False) -> list[str]:
    """The reasons that can be found without any other process.

    Args:
        job: the job.
        one_weight: whether what a worker sends has one weight, as under protocols.
    """
    found = [*_repeatable(job)]
    torch.manual_seed(job.seed)
    model = job.model()
    batches, sizes = _batches(job)
    batch = job.divide(batches[0])
    model.train()
    found += [words(name, some) for name, some in loss_parameters(job, model).items()]
    for one in job.one_by_one:
        stepping = list(_own_steps(one, model, batch))
        if stepping:
            # Such a loss cannot be computed alone.
            return [*found, *stepping]
    for one in job.one_by_one:
        found += [] if job.sync_batchnorm else _normalises(one, model, batch)
        draws = list(_draws(one, model, batch))
        division = check_division(one, model, batches, sizes, one_weight=one_weight)
        means = [division] if division else []
        found += draws + means
        # What is drawn differs from call to call, and what is no mean differs from the first one.
        found += [] if draws or means else _mixes(one, model, batches, sizes)
    return list(dict.fromkeys(found))


def compare_processes(one: Fingerprint, other: Fingerprint) -> list[str]:
    """The reasons that the job is another one in another process."""
    found = []
    if one.parameters != other.parameters:
        found.append(
            "the initial parameters differ from process to process, though the seed is the same: "
            "random numbers are drawn from a generator that is not seeded, such as "
            "numpy.random.default_rng() or a torch.Generator(); give it the job's seed"
        )
    if one.inputs == other.inputs and one.targets == other.targets:
        return found
    pairs = [sorted(zip(each.inputs, each.targets, strict=True)) for each in (one, other)]
    if pairs[0] == pairs[1]:
        found.append(
            "the samples are in another order in every process (os.listdir, glob and sets have no "
            "fixed order): sort file names, or the list of samples"
        )
    elif one.inputs == other.inputs:
        found.append(
            "the inputs are the same in every process and the targets are not: labels are "
            "shuffled or drawn with a generator that is not seeded; give it a fixed seed"
        )
    else:
        found.append(
            "the samples differ from process to process: data is drawn, split or shuffled while "
            "the script is loaded, with a generator that is not seeded; give it a fixed seed"
        )
    return found


def _batches(job: Job) -> tuple[list[Any], list[int]]:
    """The batch of the first samples, and parts of it."""
    seeded = Seeded(job.data, job.collate_fn)
    with seeded.drawing():
        samples = seeded.first(epoch_seed(job.seed, 0), _SAMPLES)
    return batches_of(samples, job.collate_fn)


def _repeatable(job: Job) -> Iterator[str]:
    """Whether a sample is the same when it is loaded again with the same seed."""
    seed = epoch_seed(job.seed, 0)
    loaded = []
    for seeded in (Seeded(job.data, None), Seeded(job.data, None)):
        with seeded.drawing():
            loaded.append([digest(sample) for sample in seeded.first(seed, _SAMPLES)])
    for index, (once, again) in enumerate(zip(*loaded, strict=False)):
        if once != again:
            yield (
                f"sample {index} is another one when it is loaded again with the same seed: its "
                "augmentation uses a generator of its own, such as numpy.random.default_rng(); use "
                "torch, random or numpy.random, which are seeded for every sample"
            )
            return


def _normalises(job: Job, model: nn.Module, batch: Any) -> Iterator[str]:
    """Whether a layer of torch's normalises by the batch in training, where the job has it so.

    A layer that is frozen, in evaluation mode also while the model is trained, does not.
    """
    uses: list[str] = []

    def note(name: str, module: _BatchNorm) -> None:
        if module.training or module.running_mean is None:
            uses.append(f"{name} ({type(module).__name__})")

    hooks = [
        module.register_forward_pre_hook(lambda module, _, name=name: note(name, module))
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) and not isinstance(module, nn.SyncBatchNorm)
    ]
    if not hooks:
        return
    _loss(job, model, batch)
    for hook in hooks:
        hook.remove()
    if uses:
        yield (
            f"{uses[0]} normalises with the statistics of the samples that one worker sees, which "
            "are fewer on more workers: use Job(sync_batchnorm=True), GroupNorm or LayerNorm, or "
            "accept the difference (docs/meanings.md)"
        )


def _mixes(
    job: Job, model: nn.Module, batches: Sequence[Any], sizes: Sequence[int]
) -> Iterator[str]:
    """Whether a loss in training depends on which samples are in the batch, now or later.

    A model may use the batch's statistics after a warm-up only, so it is called several times.
    """
    if len(batches) == 1:
        return
    layers = [one for one in model.modules() if isinstance(one, _BatchNorm)]
    was = [one.training for one in layers]
    for one in layers:
        # These are for `_normalises`, or are synchronised.
        one.eval()
    for call in range(_CALLS):
        if apart(job, model, batches, sizes) > _NEAR:
            when = f" after some {3 * call} calls" if call else ""
            yield (
                f"in training the model computes something else{when} for a sample if other "
                "samples are in its batch, as with statistics of the batch: N workers see other "
                "batches than one; use statistics that do not depend on the batch"
            )
            break
    for one, training in zip(layers, was, strict=True):
        one.train(training)


def _draws(job: Job, model: nn.Module, batch: Any) -> Iterator[str]:
    """Whether the model draws random numbers while it is trained."""
    torch.manual_seed(1)
    one = _loss(job, model, batch)
    torch.manual_seed(2)
    if torch.equal(one, _loss(job, model, batch)):
        return
    names = [
        name for name, one in model.named_modules() if isinstance(one, _DropoutNd) and one.p > 0
    ]
    what = f"{names[0]} (dropout)" if names else "the model or the loss"
    yield (
        f"{what} draws random numbers for the samples that a worker sees, so N workers draw others "
        "than one: results agree on average, not in digits; set the probability to 0 to compare"
    )


def _own_steps(job: Job, model: nn.Module, batch: Any) -> Iterator[str]:
    """Whether the loss does what the strategy does: backward passes and steps."""
    before = [one.detach().clone() for one in model.parameters()]
    model.zero_grad()
    compute_loss(job, model, *batch)
    changed = any(
        not torch.equal(one, was) for one, was in zip(model.parameters(), before, strict=True)
    )
    computed = any(one.grad is not None and one.grad.any() for one in model.parameters())
    model.zero_grad()
    with torch.no_grad():
        for one, was in zip(model.parameters(), before, strict=True):
            one.copy_(was)
    if changed or computed:
        what = "changes the parameters" if changed else "computes gradients"
        yield (
            f"the loss {what} itself, so every step is made twice: return the loss, without "
            "backward() and step()"
        )


def _loss(job: Job, model: nn.Module, batch: Any) -> torch.Tensor:
    with torch.no_grad():
        return compute_loss(job, model, *batch).detach().double().reshape(())
