"""Execution of a protocol's actions on a shard, shared by all runtimes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from manyhands.protocols.actions import (
    CHANGES_PARAMETERS,
    USES_PAYLOAD,
    Action,
    Add,
    Answer,
    Call,
    Descend,
    Drop,
    Forget,
    Move,
    Scale,
    ShardOperation,
    Shift,
    Step,
    unused_in,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from manyhands.parameters import Holder, ShardVectors


def carry_out(holder: Holder, action: Action, update: torch.Tensor | None) -> None:
    """Apply an action to a shard, and count changes of its parameters.

    Sending answers is up to the runtime. A payload that is refused is applied by no action.

    Args:
        holder: the shard.
        action: the action to apply.
        update: the payload of the action's call.
    """
    if isinstance(action, USES_PAYLOAD) and action.call is not None and action.call.refused:
        if isinstance(action, Add):
            # The weights of an average are decided without its payloads: in place of a replica that
            # is refused the own one is averaged, which moves nothing.
            holder.add(holder.bytes, action.share, action.pot)
        return
    if isinstance(action, CHANGES_PARAMETERS):
        holder.revision += 1
    match action:
        case ShardOperation():
            action.apply(holder, update)
        case Step():
            _step(holder, action, update)
        case Answer(call=call, remember=True):
            holder.remember(call.sender)
        case Forget(sender=sender):
            holder.forget(sender)
        case Answer():
            pass
        case Add(call=call, pot=pot):
            _combine(holder, action, update)
            holder.note_unused(unused_in(call.message), pot)
        case _:
            _combine(holder, action, update)


OUTER: Final = (Move, Descend, Scale, Drop, ShardOperation)
"""The actions of which an outer step may consist: all that need no call and no optimizer."""


def take_outer_step(
    vectors: ShardVectors, actions: Iterable[Action], total: torch.Tensor, where: str
) -> None:
    """Apply what a round concludes with to parameters that no server holds.

    Args:
        vectors: the parameters that all replicas had after the last outer step.
        actions: what `conclude` returned.
        total: the sum of all contributions, which is used up.
        where: what takes the step, for the message.

    Raises:
        TypeError: an action needs a server.
    """
    vectors.put_sum(total)
    for action in actions:
        if not isinstance(action, OUTER):
            raise TypeError(
                f"conclude() returned {type(action).__name__}, and replicas of {where} have no "
                f"server that could carry it out: return {', '.join(one.__name__ for one in OUTER)}"
            )
        if isinstance(action, ShardOperation):
            action.apply(cast("Holder", vectors), None)
        else:
            _combine(vectors, action, None)
    vectors.free()


def _step(holder: Holder, step: Step, update: torch.Tensor | None) -> None:
    if step.call is None:
        unused = holder.take_unused(step.objective)
        came = holder.take_sum(step.over, step.objective)
        holder.clip(came)
    else:
        unused = unused_in(step.call.message)
        came = _came(update, step.call, holder)
        if step.compensation:
            came = holder.compensate(came, step.call.sender, step.compensation)
    holder.step(came, step.weight, step.blend, step.dealt, step.objective, unused)


def _combine(
    holder: ShardVectors,
    action: Add | Shift | Scale | Move | Drop | Descend,
    update: torch.Tensor | None,
) -> None:
    match action:
        case Add(call=call, share=share, pot=pot):
            holder.add(_came(update, call, holder), share, pot)
        case Shift(call=call, pot=pot):
            total = holder.take_sum(1.0, pot) if call is None else _came(update, call, holder)
            holder.shift(total)
        case Scale(by=by):
            holder.scale(by)
        case Move(by=by, over=over, pots=pots):
            holder.move(by, over, pots)
        case Drop(pot=pot):
            holder.drop(pot)
        case Descend(over=over, rate=rate, momentum=momentum, changes=changes):
            holder.descend(over, rate, momentum, changes=changes)


def _came(update: torch.Tensor | None, call: Call, holder: ShardVectors) -> torch.Tensor:
    """The payload of a call, which must be an update of the whole shard."""
    if update is None:
        raise ValueError(f"expected an update with the call of {call.sender}, got none")
    if update.nbytes != holder.bytes.nbytes:
        raise ValueError(
            f"expected an update of {holder.bytes.nbytes} bytes from {call.sender}, got "
            f"{update.nbytes}: a payload of another size needs a ShardOperation"
        )
    return update
