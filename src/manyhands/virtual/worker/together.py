"""Evaluation of many workers' gradients by one call of `torch.func.vmap`.

A virtual worker computes for some virtual seconds, and its gradient is needed only when they are
over. So when one gradient is due, those of other workers that compute at that moment are evaluated
with it: parameters and batches are stacked, and the call's overhead is paid once. The result of a
worker does not depend on which others are in the call, so a run stays repeatable.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import torch
from torch.func import functional_call, grad_and_value, vmap
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from manyhands.data.samples import Samples
from manyhands.parameters.arithmetic import not_finite_in
from manyhands.parameters.gradients import check_scalar
from manyhands.parameters.weights.counted_means import WATCHED
from manyhands.parameters.weights.loss_weight import own_loss

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from manyhands.codecs.kernels.finite import NotFinite
    from manyhands.job import Job
    from manyhands.leasing.leases import Lease
    from manyhands.parameters import Copy, Layout
    from manyhands.seeding import EpochOrder, Seeded

    Load = Callable[[int, torch.Tensor], tuple[Any, Any]]
    Plain = Callable[[], tuple[float, list[int], float]]

LEAST_WORKERS: Final = 32
"""With fewer workers a call of `vmap` takes longer than what it saves."""
_MOST: Final = 256
"""The most gradients of one call."""
_MOST_BYTES: Final = 32 << 20
"""The most bytes of parameters in one call; the gradients take as many."""
_LEAST: Final = 8
"""With fewer gradients per call, because parameters are large, there is nothing to save."""
_CLOSE: Final = {torch.float32: 1e-5, torch.float64: 1e-12}
"""By dtype, the largest difference to the plain gradient, as a fraction of its largest element."""


class NotTogetherError(Exception):
    """The gradients of a model or a loss cannot be evaluated together."""


@dataclass(slots=True)
class Evaluated:
    """The gradient of one worker."""

    loss: float
    pieces: tuple[torch.Tensor, ...]
    """The bytes of the gradients of parameters, in the order of the layout; views of those of all
    workers in the call."""
    mass: float
    """As `LeasedBatch.mass`."""
    is_finite: bool
    """Whether the sum of all numbers is finite."""

    def updates(self, layout: Layout) -> tuple[list[torch.Tensor], NotFinite]:
        """The update of each shard, in new memory, and what it has that is no finite number."""
        row = torch.cat(self.pieces)
        rows = [row] if len(layout.shards) == 1 else layout.split(row)
        if self.is_finite:
            return rows, ""
        kinds = map(not_finite_in, layout.shards, rows)
        return rows, next((kind for kind in kinds if kind), "")


class Computing(Protocol):
    """A worker, as far as its gradients are concerned."""

    rank: int
    computed: int
    """Number of computed batches."""
    parameters: list[torch.Tensor]
    seen: list[torch.Tensor]
    """Copy of shared parameters from the start of the current computation."""


@dataclass(eq=False, slots=True)
class PendingGradient:
    """A gradient that a worker is computing."""

    worker: Computing
    lease: Lease
    parameters: list[torch.Tensor]
    versions: list[int]
    """The parameters' counts of changes when they were read."""
    found: Evaluated | None = None
    alone: bool = False
    """Whether it has to be evaluated by itself."""

    @property
    def is_current(self) -> bool:
        """Whether the parameters are those of then."""
        now = self.worker.seen or self.worker.parameters
        return self.versions == [one._version for one in now] and all(
            one is other for one, other in zip(self.parameters, now, strict=True)
        )

    def read(self) -> list[torch.Tensor]:
        """The parameters of now."""
        self.parameters = list(self.worker.seen or self.worker.parameters)
        self.versions = [one._version for one in self.parameters]
        return self.parameters


class Together:
    """The pending gradients of all workers.

    Args:
        job: the job.
        copy: the model.
        order: the samples of an epoch, in order.
        seeded: the data.
        load: loads a batch.
    """

    def __init__(self, job: Job, copy: Copy, order: EpochOrder, seeded: Seeded, load: Load) -> None:
        self._copy = copy
        self._places = sorted(copy.places, key=lambda place: place[3])
        self._order = order
        self._load = load
        self._at_once = seeded.take is not None and (
            not seeded.draws or isinstance(seeded.data, Samples)
        )
        """Whether batches of several workers can be loaded as one: no sample has random numbers."""
        self._loss = own_loss(job)
        self._most = min(_MOST, _MOST_BYTES // max(1, copy.layout.nbytes))
        self._pending: dict[int, PendingGradient] = {}
        """By rank."""
        self._by_due: list[tuple[float, int, PendingGradient]] = []
        self._numbers = count()
        self._rows: torch.Tensor | None = None
        """Memory for the parameters of one call."""
        self.completed: list[int] = []
        """The shards in the order in which a backward pass completes them; empty before a trial."""
        self._failed = self._most < _LEAST or not _is_plain(job, copy)

    def expect(self, worker: Computing, lease: Lease, due: float) -> None:
        """Note that a worker began to compute, and when it will need its gradient."""
        if self._failed:
            return
        one = self._pending[worker.rank] = PendingGradient(worker, lease, [], [])
        heappush(self._by_due, (due, next(self._numbers), one))

    def take(self, worker: Computing, lease: Lease, plain: Plain) -> Evaluated | None:
        """The gradient of a worker; None if it has to be evaluated by itself.

        Args:
            worker: the worker.
            lease: its samples.
            plain: evaluates it by itself, for a comparison.
        """
        one = self._pending.pop(worker.rank, None)
        if self._failed or one is None or one.worker is not worker or one.lease is not lease:
            return None
        if one.alone or (one.found is not None and one.is_current):
            return one.found
        group = self._group(one)
        try:
            fits = self._try_out(one, group, plain) if not self.completed else True
            if one.found is None or not one.is_current:
                self._evaluate(group)
        except Exception:  # noqa: BLE001 - a mistake of the job's is raised by the plain computation
            fits = False
        if fits:
            return one.found
        self._failed = True
        self._pending.clear()
        self._by_due.clear()
        return None

    def _group(self, first: PendingGradient) -> list[PendingGradient]:
        """A gradient, and those of other workers that are due next, with as many samples."""
        group = [first]
        aside: list[tuple[float, int, PendingGradient]] = []
        while self._by_due and len(group) < self._most and len(aside) < self._most:
            item = heappop(self._by_due)
            one = item[2]
            if self._pending.get(one.worker.rank) is not one or one.found or one.alone:
                continue
            if one.lease.samples == first.lease.samples:
                group.append(one)
            else:
                aside.append(item)
        for item in aside:
            heappush(self._by_due, item)
        return group

    def _try_out(self, one: PendingGradient, group: list[PendingGradient], plain: Plain) -> bool:
        """Whether the gradients of a call are those of the plain computation, once per run."""
        self._evaluate(group)
        found = one.found
        self._evaluate([one])
        again, worker = one.found, one.worker
        kept = worker.computed, worker.seen
        loss, completed, mass = plain()
        worker.computed, worker.seen = kept
        if found is None or again is None or any(self._copy.unused):
            # Together, a parameter that is not used has a gradient of 0.
            return False
        (mine, _), (its, _) = (one.updates(self._copy.layout) for one in (found, again))
        # Alone or among others, a worker has the same numbers to the bit.
        same = all(map(torch.equal, mine, its)) and found.loss == again.loss
        close = self._is_close(mine) and abs(found.loss - loss) <= 1e-5 * abs(loss)
        if not (same and close and found.mass == mass):
            return False
        self.completed = completed
        return True

    def _is_close(self, updates: Sequence[torch.Tensor]) -> bool:
        for shard, mine, its in zip(
            self._copy.layout.shards, updates, self._copy.updates, strict=True
        ):
            for part in shard.flat_by_dtype:
                one, other = part.view(mine), part.view(its)
                if (one - other).abs().max() > _CLOSE[part.dtype] * other.abs().max():
                    return False
        return True

    def _evaluate(self, group: Sequence[PendingGradient]) -> None:
        """Evaluate the gradients of a group."""
        inputs, targets = self._batches(group)
        means = _Means()
        model, loss = self._copy.model, self._loss

        def compute(mine: dict[str, torch.Tensor], some: Any, wanted: Any) -> torch.Tensor:
            means.targets = wanted
            with means:
                value = loss(functional_call(model, mine, (some,)), wanted)
            check_scalar(value)
            return value.reshape(())  # type: ignore[no-any-return]  # of the job's loss

        parameters = self._parameters(group)
        before = None if self.completed else _random_states()
        gradients, losses = vmap(grad_and_value(compute))(parameters, inputs, targets)
        if before is not None and before != _random_states():
            raise NotTogetherError
        if means.calls > 1:
            raise NotTogetherError
        # Targets that do not count give a batch a weight of its own.
        ignores = (targets.flatten(1) < 0).any(1).tolist() if means.calls else [False] * len(group)
        own = means.calls == 1 and means.numbers != group[0].lease.samples
        mass = float(means.numbers) if own else 0.0
        ordered = [gradients[name].flatten(1) for name, *_ in self._places]
        finite = torch.stack([one.sum(1).isfinite() for one in ordered]).all(0).tolist()
        pieces = zip(*(one.view(torch.uint8).unbind() for one in ordered), strict=True)
        each = zip(group, losses.tolist(), pieces, finite, ignores, strict=True)
        for one, loss, some, is_finite, alone in each:
            one.alone = alone
            one.found = None if alone else Evaluated(loss, some, mass, is_finite)

    def _parameters(self, group: Sequence[PendingGradient]) -> dict[str, torch.Tensor]:
        """The parameters of a group by name, with a first dimension of workers."""
        held = [one.read() for one in group]
        if all(mine is first for one in held for mine, first in zip(one, held[0], strict=True)):
            # All workers have read the same version. `vmap` without a dimension of workers would
            # multiply all batches as one matrix, whose bits depend on the number of batches.
            flat = held[0][0] if len(held[0]) == 1 else torch.cat(held[0])
            return self._views(flat.expand(len(held), -1))
        flats = [one[0] if len(one) == 1 else torch.cat(one) for one in held]
        if self._rows is None:
            self._rows = torch.empty(self._most, self._copy.layout.nbytes, dtype=torch.uint8)
        return self._views(torch.stack(flats, out=self._rows[: len(flats)]))

    def _views(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        """The parameters in flat rows, by name, each with a first dimension of workers."""
        views: dict[str, torch.Tensor] = {}
        for name, shape, dtype, start, stop in self._places:
            views[name] = flat[:, start:stop].view(dtype).view(len(flat), *shape)
        return views

    def _batches(self, group: Sequence[PendingGradient]) -> tuple[Any, Any]:
        """The inputs and targets of a group, with a first dimension of workers."""
        leases = [one.lease for one in group]
        wanted = [self._order(one.epoch)[one.start : one.stop] for one in leases]
        if self._at_once:
            loaded = self._load(leases[0].epoch, torch.cat(wanted))
            shape = (len(group), leases[0].samples)
            return tree_map(lambda all_of: all_of.unflatten(0, shape), loaded)  # type: ignore[no-any-return]
        each = [self._load(lease.epoch, some) for lease, some in zip(leases, wanted, strict=True)]
        return tree_map(lambda *some: torch.stack(some), *each)  # type: ignore[no-any-return]


class _Means(TorchFunctionMode):
    """While active, counts means over targets, and refuses those that depend on other values.

    Their weight is the number of targets, if none is below 0, which the caller has to check.
    """

    def __init__(self) -> None:
        super().__init__()
        self.targets: Any = None
        self.calls = 0
        self.numbers = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Inspect the calls that compute a mean."""
        del types
        kwargs = kwargs or {}
        if func in WATCHED and torch.is_grad_enabled():
            self._look(*args, **kwargs)
        return func(*args, **kwargs)

    def _look(
        self,
        _: torch.Tensor,
        target: torch.Tensor,
        weight: torch.Tensor | None = None,
        size_average: object = None,
        ignore_index: int = -100,
        reduce: object = None,
        reduction: str = "mean",
        **_rest: object,
    ) -> None:
        if reduction != "mean" or size_average is not None or reduce is not None:
            return
        if target.is_floating_point():
            return
        if weight is not None or ignore_index >= 0 or target is not self.targets:
            raise NotTogetherError
        self.calls += 1
        self.numbers = target.numel()


def _is_plain(job: Job, copy: Copy) -> bool:
    """Whether a job has nothing that one call for many workers could not do."""
    options = (job.objective, job.micro_batch, job.autocast, job.activation_checkpointing)
    if any(options) or job.compile or job.streams or copy.changes_gradients:
        return False
    model, fragments = copy.model, [one for part in copy.layout.shards for one in part.parameters]
    hooked = any(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks
        for module in model.modules()
    )
    known = all(one.dtype in _CLOSE for one in fragments)
    aligned = copy.layout.nbytes % max((one.dtype.itemsize for one in fragments), default=1) == 0
    return known and aligned and not hooked and next(model.buffers(), None) is None


def _random_states() -> tuple[object, ...]:
    """The states of all generators, which a model that draws random numbers changes."""
    of_numpy: Any = np.random.get_state()
    of_torch = torch.get_rng_state().numpy().tobytes()
    return of_torch, random.getstate(), of_numpy[1].tobytes(), of_numpy[2:]
