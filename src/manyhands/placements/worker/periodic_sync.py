"""Replicas that train independently and synchronise every H steps by an allreduce."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from manyhands.codecs import CodecError, ErrorFeedback
from manyhands.engine.fake_tensors import is_fake
from manyhands.engine.tensors import own
from manyhands.parameters import ShardVectors, as_bytes
from manyhands.placements.bound import Bound
from manyhands.placements.model.buffers import average_buffers
from manyhands.protocols import DiLoCo, Round, Terms
from manyhands.protocols.execution import take_outer_step
from manyhands.sampling.division import part

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from manyhands.codecs import Codec
    from manyhands.codecs.kernels.finite import NotFinite
    from manyhands.files.checkpoint import State
    from manyhands.job import Job
    from manyhands.placements.held import HeldTensor, SteppedTensor
    from manyhands.placements.placement import Placement
    from manyhands.protocols import LocalSteps
    from manyhands.transport.collectives import Group
    from manyhands.transport.waits import Waits


_HEAD = 16
"""Bytes of the length of a payload and of the share of the samples."""


def bind_periodic_sync(
    placement: Placement,
    outer: LocalSteps,
    copies: int,
    job: Job,
    group: Group,
    device: torch.device,
    waits: Waits,
) -> Bound:
    """Bind a placement on the workers of this worker's replica, which have consecutive ranks."""
    size = group.size // copies
    copy, place = divmod(group.rank, size)
    inside = group.part("copy", range(copy * size, (copy + 1) * size))
    peers = group.part("beside", range(place, group.size, size))
    terms = Terms(job.batch_sizes, copies)
    inner = placement.bind(job, inside, device, waits)
    return PeriodicSync(inner, inside, peers, outer, terms, waits)


class PeriodicSync(Bound):
    """This worker's part of a replica, and the workers with the same part in other replicas.

    A replica steps by itself. After the protocol's interval, and at the end of an epoch, the
    parameters are averaged over the peers, weighted by the samples that their
    replicas were trained on since the last time, and the protocol concludes the round, as it does
    on a server.

    Args:
        inner: the replica, as trained by its own workers.
        inside: these workers.
        peers: the workers that hold the same part in all replicas.
        outer: the protocol that defines the interval and the outer step.
        terms: what the protocol knows of the job.
        waits: records the synchronisations.
    """

    def __init__(
        self,
        inner: Bound,
        inside: Group,
        peers: Group,
        outer: LocalSteps,
        terms: Terms,
        waits: Waits,
    ) -> None:
        self.model, self.optimizer = inner.model, inner.optimizer
        self.copies = peers.size
        self.together, self.rescales = inner.together or inside, inner.rescales
        self.replica = peers.rank * inner.replicas + inner.replica
        self.replicas = peers.size * inner.replicas
        self.steps_apart = inner.steps_apart
        self.speaks, self.waiting, self.words = inner.speaks, inner.waiting, inner.words
        self._inner, self._peers, self._outer, self._waits = inner, peers, outer, waits
        self._terms = terms
        self._learns = True
        """Whether the replica has samples of the global batch."""
        self._steps = self._alone = 0
        self._made_of = self._all_made_of = 0
        self._dealt = self._latest = 0
        """Samples of the run before the next global batch, and before the latest one."""
        self._flat = [_FlatParameters(flat, outer) for flat in self._gather()]
        self._met = 0
        """Synchronisations so far."""

    @torch.no_grad()
    def _gather(self) -> Iterator[torch.Tensor]:
        """The trained parameters of this worker, flattened into one tensor per dtype."""
        for tensors in self._by_type().values():
            yield torch.cat([tensor.reshape(-1) for tensor in tensors])

    def _by_type(self) -> dict[torch.dtype, list[torch.Tensor]]:
        groups = self.optimizer.param_groups
        trained = {id(one): one for group in groups for one in group["params"] if one.requires_grad}
        tensors: dict[torch.dtype, list[torch.Tensor]] = {}
        for parameter in trained.values():
            if own(parameter).numel():
                tensors.setdefault(parameter.dtype, []).append(own(parameter))
        return tensors

    def weigh(self, samples: int, total: int) -> float:
        """The weight within this replica."""
        share = part(total, self._peers.rank, self.copies)
        together = share.stop - share.start
        self._learns = together > 0
        self._made_of += together
        self._all_made_of += total
        self._latest, self._dealt = self._dealt, self._dealt + total
        return self._inner.weigh(samples, together) if together else 0.0

    def gradient(self, inputs: Any, targets: Any, weight: float, samples: int) -> torch.Tensor:
        """The gradient of this replica."""
        return self._inner.gradient(inputs, targets, weight, samples)

    def take_refused(self) -> NotFinite:
        """What this worker's gradient had for which it sent zeros within the replica."""
        return self._inner.take_refused()

    def rescale(self, factor: float) -> None:
        """Multiply this replica's gradient."""
        self._inner.rescale(factor)

    def consumed(self) -> list[torch.Tensor]:
        """The parameters of this replica."""
        return self._inner.consumed()

    def clip(self, limit: float) -> None:
        """Clip the norm of this replica's gradient."""
        self._inner.clip(limit)

    def step(self, weight: float) -> None:
        """Step this replica if it has samples; synchronise if the interval is over."""
        if self._learns:
            self._inner.step(weight)
        self.optimizer.zero_grad()
        self._conclude()

    def skip(self) -> None:
        """Take no step with this replica; synchronise if the interval is over."""
        self._inner.skip()
        self._conclude()

    def _conclude(self) -> None:
        self._steps += 1
        self._alone += 1
        if self._alone >= self._outer.interval(self._steps) or self.ends_epoch:
            self._synchronise()
        self.between_rounds = not self._alone

    @torch.no_grad()
    def _synchronise(self) -> None:
        if is_fake():
            return
        samples = self._all_made_of
        done = Round(
            self._terms,
            version=self._met,
            samples=samples,
            shares=1.0,  # of a sum of replicas that are weighted by their shares already
            weight=self._terms.weigh(samples, self._latest),
            dealt=self._latest,
        )
        self._met += 1
        for kept, flat, tensors in zip(
            self._flat, self._gather(), self._by_type().values(), strict=True
        ):
            share = self._made_of / self._all_made_of
            meet = self._mean if kept.coded is None else partial(self._decoded, kept.coded)
            common = kept.conclude(done, meet(flat, share))
            sizes = [tensor.numel() for tensor in tensors]
            for tensor, piece in zip(tensors, common.split_with_sizes(sizes), strict=True):
                tensor.copy_(piece.view_as(tensor))
        self._alone = self._made_of = self._all_made_of = 0

    def _mean(self, flat: torch.Tensor, share: float) -> torch.Tensor:
        """The mean of all replicas, each by its share of the samples."""
        flat.mul_(share)
        self._waits.note("allreduce", flat.nbytes, self.copies)
        self._waits.begin()
        self._peers.sum(flat)
        self._waits.end()
        return flat

    def _decoded(self, coded: _CodedChanges, flat: torch.Tensor, share: float) -> torch.Tensor:
        """The same from encoded changes since the last time, which all replicas send to all."""
        own = coded.frame(flat, share, self._met * self.copies + self._peers.rank)
        frames = own.new_empty(self.copies * own.numel())
        self._waits.note("all_gather", frames.nbytes, self.copies)
        self._waits.begin()
        self._peers.gather(frames, own)
        self._waits.end()
        return coded.mean(frames.view(self.copies, -1))

    def outputs(self, inputs: Any) -> Any:
        """The outputs of this replica: all replicas are equal at an evaluation."""
        return self._inner.outputs(inputs)

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """As in `outputs`."""
        return self._inner.forward(*inputs, **options)

    def average_buffers(self) -> None:
        """Synchronise if there were steps since the last time; then average the buffers."""
        if self._alone:
            self._synchronise()
        self._inner.average_buffers()
        average_buffers(self.model, self._peers)

    def held(self) -> list[HeldTensor]:
        """This worker's tensors; all replicas are equal, and the first one's are stored."""
        return [
            replace(one, stores=one.stores and not self._peers.rank) for one in self._inner.held()
        ]

    def stepped(self) -> list[SteppedTensor]:
        """The tensors of the inner optimizer, whose state is that of the first replica."""
        return [
            replace(one, stores=one.stores and not self._peers.rank)
            for one in self._inner.stepped()
        ]

    def own_state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """The inner optimizer's state, which differs between replicas, and the outer one's."""
        tensors, values = self._inner.own_state()
        tensors = {f"inner/{name}": tensor for name, tensor in tensors.items()}
        for number, flat in enumerate(self._flat):
            tensors |= {f"outer/{number}/{name}": one for name, one in flat.state().items()}
        for one in self._inner.stepped():
            for name, entry in self.optimizer.state.get(one.key, {}).items():
                if isinstance(entry, torch.Tensor):
                    tensors[f"optimizer/{one.name}/{name}"] = own(entry)
        return tensors, {
            "inner": values,
            "steps": self._steps,
            "met": self._met,
            "dealt": self._dealt,
        }

    def unsent_norm(self) -> float:
        """The norm of what was not sent yet, within a replica and between replicas."""
        coded = (one.coded for one in self._flat if one.coded is not None)
        return math.hypot(self._inner.unsent_norm(), *(one.norm() for one in coded))

    def load_own_state(self, tensors: dict[str, torch.Tensor], values: dict[str, Any]) -> None:
        """Continue as this replica was; as all are equal, if that is not known."""
        self._flat = [_FlatParameters(flat, self._outer) for flat in self._gather()]
        inner = {name[6:]: one for name, one in tensors.items() if name.startswith("inner/")}
        self._inner.load_own_state(inner, values.get("inner", {}))
        self._steps, self._met = values.get("steps", 0), values.get("met", 0)
        self._dealt = values.get("dealt", 0)
        for number, flat in enumerate(self._flat):
            start = f"outer/{number}/"
            flat.load({n[len(start) :]: one for n, one in tensors.items() if n.startswith(start)})
        for one in self._inner.stepped():
            for name, entry in self.optimizer.state.get(one.key, {}).items():
                stored = tensors.get(f"optimizer/{one.name}/{name}")
                if isinstance(entry, torch.Tensor) and stored is not None:
                    own(entry).copy_(stored)

    def state(self) -> State:
        """The state of the first replica."""
        return self._inner.state()


class _CodedChanges:
    """Changes of one replica since the last synchronisation, as fewer bytes.

    A frame has a length, a share of the samples, and a payload that is padded to the codec's bound,
    so that all replicas gather frames of one size. All decode the same frames to the same mean.
    """

    def __init__(self, codec: Codec, common: torch.Tensor) -> None:
        self._codec = codec
        self._stream = ErrorFeedback(codec)
        self.common = common
        """The parameters after the last synchronisation."""
        self._bound = codec.wire_bytes(common.numel(), common.element_size())

    def frame(self, flat: torch.Tensor, share: float, seed: int) -> torch.Tensor:
        """The bytes that this replica sends."""
        payload = self._stream.encode((flat - self.common).cpu(), seed)
        frame = torch.zeros(_HEAD + self._bound, dtype=torch.uint8)
        frame[:_HEAD].view(torch.float64).copy_(torch.tensor([payload.numel(), share]))
        frame[_HEAD : _HEAD + payload.numel()] = payload
        return frame.to(flat.device)

    def mean(self, frames: torch.Tensor) -> torch.Tensor:
        """The parameters, moved by the mean of all changes."""
        mean = self.common.clone()
        decoded = torch.empty_like(self.common, device="cpu")
        for frame in frames.cpu():
            # Copies, because numbers in a frame need not be aligned.
            size, share = frame[:_HEAD].clone().view(torch.float64).tolist()
            if not 0 <= size <= self._bound:
                raise CodecError(f"expected at most {self._bound} bytes, got {size:g}")
            self._codec.decode(frame[_HEAD : _HEAD + int(size)].clone(), decoded)
            mean.add_(decoded.to(mean.device), alpha=share)
        return mean

    def norm(self) -> float:
        """The norm of what was not sent yet."""
        return self._stream.norm()

    def state(self) -> dict[str, torch.Tensor]:
        """What has to be stored to continue."""
        residual = self._stream.residual
        return {} if residual is None else {"residual": residual}

    def load(self, stored: Mapping[str, torch.Tensor]) -> None:
        """Take over what `state` returned."""
        self._stream.residual = stored.get("residual")


class _FlatParameters:
    """The parameters of one dtype after the last synchronisation, and what outer steps keep."""

    def __init__(self, first: torch.Tensor, outer: LocalSteps) -> None:
        self._outer = outer
        self._vectors = ShardVectors.of(first)
        if isinstance(outer, DiLoCo):
            # Its momentum takes memory from the start, as it is forecast.
            self._vectors.velocity = torch.zeros_like(self._vectors.bytes)
        self.coded = None if outer.codec is None else _CodedChanges(outer.codec, self._common)

    @property
    def _common(self) -> torch.Tensor:
        return self._vectors.vector

    def state(self) -> dict[str, torch.Tensor]:
        """What has to be stored to continue."""
        found, velocity = {"here": self._common}, self._vectors.velocity
        if velocity is not None:
            found["velocity"] = velocity.view(self._common.dtype)
        found |= {f"own {name}": one for name, one in self._vectors.own_vectors.items()}
        return found if self.coded is None else found | self.coded.state()

    def load(self, stored: Mapping[str, torch.Tensor]) -> None:
        """Take over what `state` returned."""
        if "here" in stored:
            self._common.copy_(stored["here"])
        if "velocity" in stored:
            velocity = torch.empty_like(self._common).copy_(stored["velocity"])
            self._vectors.velocity = as_bytes(velocity)
        for name, one in stored.items():
            if name.startswith("own "):
                self._vectors.own_vector(name[4:]).copy_(one)
        if self.coded is not None:
            self.coded.load(stored)

    def conclude(self, done: Round, mean: torch.Tensor) -> torch.Tensor:
        """The parameters from which all replicas continue, after the protocol's outer step."""
        take_outer_step(self._vectors, self._outer.conclude(done), as_bytes(mean), "hybrid()")
        return self._common
