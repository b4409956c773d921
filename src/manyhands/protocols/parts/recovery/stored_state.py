"""What servers and workers of a protocol give to a checkpoint and take from one, live and virtual.

A checkpoint is a cut between rounds: all samples that were leased are committed, no update is under
way, and no call is open.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from manyhands.files.checkpoints.parts import MemberState
from manyhands.protocols.parts.recovery.encoded_state import plain_state, read_state

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

    from manyhands.files.checkpoints.reading import Checkpoint
    from manyhands.parameters import Holder, LocalOptimizer
    from manyhands.protocols.compression.worker import CodedEndpoint
    from manyhands.protocols.protocol import ServerState

S = TypeVar("S", bound="ServerState")
_OF_CALLERS: Final = ("remembered ", "reference ")
"""What a server keeps for single callers, who are others after a run was continued."""


def server_part(holder: Holder, state: ServerState) -> MemberState:
    """A server's part: its shard, its optimizer and the state of its protocol; not copied."""
    tensors, numbers = holder.state()
    parts, named = holder.named_state()
    own = {name: tensor for name, tensor in tensors.items() if not name.startswith(_OF_CALLERS)}
    plain = {name: one for name, one in numbers.items() if name != "references"}
    return MemberState(parts, named, own, {"state": plain_state(state), "optimizer": plain})


def continue_server(
    stored: Checkpoint, name: str, holder: Holder, first: ServerState, *, same: bool
) -> ServerState:
    """Continue a server from a checkpoint; returns the state of its protocol.

    The parameters are there already: they are the initial ones of the run.

    Args:
        stored: the checkpoint.
        name: the server, as `server-0`.
        holder: its shard, which gets the optimizer's state.
        first: the state of a run that begins.
        same: whether the checkpoint has the same strategy and number of workers.
    """
    holder.load_named(stored)
    tensors, values = stored.own(name)
    if not same or not values:
        return first
    kept = {
        name.removeprefix("own/"): tensor
        for name, tensor in tensors.items()
        if not name.removeprefix("own/").startswith(_OF_CALLERS)
    }
    numbers = {name: one for name, one in values["optimizer"].items() if name != "references"}
    holder.restore(kept, numbers)
    state = read_state(values["state"], type(first))
    return with_all(state, first)


def with_all(state: S, first: S) -> S:
    """The state with all workers present, as in `first`, which is that of a run that begins.

    Workers without samples rested at the cut. A state that has more about the workers that are
    present than their names has a method `with_present`.
    """
    present = getattr(first, "present", None)
    if present is None:
        return state
    own: Callable[[frozenset[str]], S] | None = getattr(state, "with_present", None)
    return replace(state, present=present) if own is None else own(present)  # type: ignore[call-arg]


def worker_tensors(
    parameters: Sequence[torch.Tensor],
    optimizer: LocalOptimizer | None,
    coded: CodedEndpoint | None,
) -> dict[str, torch.Tensor]:
    """What only one worker has: its parameters and optimizer, and what a codec has not sent yet.

    Args:
        parameters: its own parameters by shard; empty if they are the shared ones.
        optimizer: its local optimizer, if it has one.
        coded: what it sends under codecs; None without any.
    """
    tensors = {f"parameters/{number}": one for number, one in enumerate(parameters)}
    if optimizer is not None:
        tensors |= {f"local/{name}": one for name, one in optimizer.own_state().items()}
    if coded is not None:
        tensors |= {f"residual/{name}": one for name, one in coded.unsent().items()}
    return tensors


def continue_worker(
    tensors: Mapping[str, torch.Tensor],
    parameters: Sequence[torch.Tensor],
    optimizer: LocalOptimizer | None,
    coded: CodedEndpoint | None,
) -> None:
    """Continue a worker with what `worker_tensors` returned; arguments as there."""
    for number, shard in enumerate(parameters):
        shard.copy_(tensors[f"parameters/{number}"])
    if optimizer is not None:
        optimizer.load_own_state(_under("local/", tensors))
    if coded is not None:
        coded.carry(_under("residual/", tensors))


def own_state(
    stored: Checkpoint, member: str, *, same: bool
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """What one process stored for itself, by the names that it gave; empty if not the same run."""
    tensors, values = stored.own(member) if same else ({}, {})
    return {name.removeprefix("own/"): one for name, one in tensors.items()}, values


def _under(start: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name[len(start) :]: one for name, one in tensors.items() if name.startswith(start)}
