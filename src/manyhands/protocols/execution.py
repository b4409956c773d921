"""Execution of a protocol's actions on a shard, shared by all runtimes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyhands.protocols.actions import (
    Action,
    Add,
    Answer,
    Call,
    Descend,
    Drop,
    Forget,
    Move,
    Scale,
    Shift,
    Step,
)

if TYPE_CHECKING:
    import torch

    from manyhands.parameters import Holder


def carry_out(holder: Holder, action: Action, update: torch.Tensor | None) -> None:
    """Apply an action to a shard. Sending answers is up to the runtime.

    Args:
        holder: the shard.
        action: the action to apply.
        update: the payload of the action's call.
    """
    match action:
        case Add(call=call, share=share, pot=pot):
            holder.add(_came(update, call.sender), share, pot)
        case Shift(call=None, pot=pot):
            holder.shift(holder.take_sum(1.0, pot))
        case Shift(call=Call() as call):
            holder.shift(_came(update, call.sender))
        case Scale(by=by):
            holder.scale(by)
        case Step(call=None, weight=weight, blend=blend, over=over, dealt=dealt):
            mean = holder.take_sum(over)
            holder.clip(mean)
            holder.step(mean, weight, blend, dealt)
        case Step(call=Call() as call, weight=weight, blend=blend, dealt=dealt):
            came = _came(update, call.sender)
            if action.compensation:
                came = holder.compensate(came, call.sender, action.compensation)
            holder.step(came, weight, blend, dealt)
        case Move(by=by, over=over, pots=pots):
            holder.move(by, over, pots)
        case Drop(pot=pot):
            holder.drop(pot)
        case Descend(over=over, rate=rate, momentum=momentum):
            holder.descend(over, rate, momentum)
        case Answer(call=call, remember=True):
            holder.remember(call.sender)
        case Forget(sender=sender):
            holder.forget(sender)


def _came(update: torch.Tensor | None, sender: str) -> torch.Tensor:
    if update is None:
        raise ValueError(f"expected an update with the call of {sender}, got none")
    return update
