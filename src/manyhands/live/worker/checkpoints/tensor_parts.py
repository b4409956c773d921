"""The tensors of a worker under a placement: as parts of whole ones by name, and back from them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from manyhands.engine.tensors import gathered, own
from manyhands.files.checkpoints import TensorPart
from manyhands.live.worker.checkpoints import optimizer_state

if TYPE_CHECKING:
    from collections.abc import Iterator

    from manyhands.files.checkpoints import Checkpoint
    from manyhands.parameters.optional.weight_average import WeightAverage
    from manyhands.placements.bound import Bound


def pieces(
    bound: Bound, average: WeightAverage | None, strategy: str, *, everything: bool
) -> Iterator[TensorPart]:
    """What a worker stores of the model, the optimizer's state and the moving average.

    Args:
        bound: the worker's part of the model.
        average: the moving average of the parameters, if there is one.
        strategy: the strategy, for messages.
        everything: whether to include what other workers have as well, and would store.
    """
    held = bound.held()
    names = {id(one.tensor): one for one in held}
    for one in held:
        part, begin = own(one.tensor), one.begin
        if begin is None:
            # Not a box of the whole tensor: put together by all workers that have a part.
            part, begin = gathered(one.tensor), (0,) * one.tensor.dim()
        if (one.stores or everything) and (part.numel() or not one.tensor.numel()):
            yield TensorPart(f"model/{one.name}", part, one.whole_shape, begin)
    stepped = bound.stepped()
    if everything:
        stepped = [replace(one, stores=True) for one in stepped]
    yield from optimizer_state.entries(bound.optimizer, stepped)
    if average is None:
        return
    by_memory = {own(one.tensor).data_ptr(): one for one in held if own(one.tensor).numel()}
    for parameter, mean in average.tensors():
        known = names.get(id(parameter)) or by_memory.get(parameter.data_ptr())
        if known is None or not (known.stores or everything):
            continue
        begin = known.begin
        if begin is None:
            raise ValueError(
                f"the average of {known.name} cannot be stored: {strategy} divides it on two "
                "axes; leave out ema, or checkpoint"
            )
        yield TensorPart(f"average/{known.name}", mean, known.whole_shape, begin)


def load_tensors(bound: Bound, average: WeightAverage | None, stored: Checkpoint) -> list[str]:
    """Take over stored tensors; return what could not be taken over.

    Raises:
        ValueError: they are of another model.
    """
    known, notes = set(stored.names("model")), list[str]()
    for one in bound.held():
        if one.name not in known:
            raise ValueError(f"the checkpoint has no tensor {one.name!r}: it is of another model")
        whole = stored.tensor(f"model/{one.name}")
        if tuple(whole.shape) != one.whole_shape:
            raise ValueError(
                f"{one.name!r} has the shape {list(one.whole_shape)}, and "
                f"{list(whole.shape)} in the checkpoint: it is of another model"
            )
        one.load(whole)
    bound.changed_parameters()
    stepped = bound.stepped()
    unfit = optimizer_state.load(bound.optimizer, stepped, stored)
    if unfit:
        notes.append(f"{len(unfit)} entries of the optimizer's state begin anew: {unfit[0]}, …")
    if average is not None:
        _load_average(bound, average, stored)
    return notes


def _load_average(bound: Bound, average: WeightAverage, stored: Checkpoint) -> None:
    known = set(stored.names("average"))
    if not known:
        return
    held = bound.held()
    by_memory = {own(one.tensor).data_ptr(): one for one in held if own(one.tensor).numel()}
    names = {id(one.tensor): one for one in held}
    found = []
    for parameter in average.parameters:
        one = names.get(id(parameter)) or by_memory.get(parameter.data_ptr())
        if one is None or one.name not in known:
            # A part without elements, or a parameter that was not averaged before.
            found.append(parameter)
            continue
        found.append(one.cut(stored.tensor(f"average/{one.name}")))
    average.restore(found)
