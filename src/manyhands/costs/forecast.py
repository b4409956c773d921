"""Forecast of a placement: its collectives and its memory, known before it runs."""

from dataclasses import dataclass

from manyhands.costs.collectives import Collective, sent_per_worker


@dataclass(frozen=True)
class TensorSize:
    """Size of a parameter, for a forecast."""

    name: str
    size: int
    """Bytes."""
    trained: bool = True
    rows: int = 1
    """Length of its first dim, along which it is sharded."""
    unit: str = ""
    """The part of the model that it is gathered with, if any."""
    itemsize: int = 4
    """Bytes of an element."""

    def padded(self, workers: int) -> int:
        """Bytes after padding, so that all workers have equally many rows."""
        return -(-self.rows // workers) * workers * (self.size // self.rows)


@dataclass(frozen=True)
class LayerSize:
    """Size of a layer's call, for a forecast: bytes of its inputs and outputs."""

    name: str
    role: str
    """Its role in a placement: "column", "row", "table", "logits", "attention", …"""
    inputs: int
    outputs: int
    width: int = 1
    """Length of the last dim of its outputs."""
    learns: bool = True
    """Whether a gradient flows back through its inputs."""


@dataclass(frozen=True)
class Forecast:
    """The collectives of a placement in order, and the memory of one worker."""

    start: tuple[Collective, ...]
    """Before the first step."""
    step: tuple[Collective, ...]
    """In every step."""
    memory: int
    """Bytes of parameters, gradients and communication buffers on one worker; the optimizer's
    state and the activations come on top and depend on the job."""
    outer: tuple[Collective, ...] = ()
    """Once in `every` steps, if replicas synchronise periodically."""
    every: int = 1
    """Steps between two outer synchronisations."""
    by_worker: tuple[tuple[Collective, ...], ...] = ()
    """The collectives of each worker in every step, if workers differ; `step` is then the first
    worker's."""
    shared: int = 0
    """Bytes that the workers of a host share, all of them together, if they are on one host."""

    def sent_by(self, worker: int) -> float:
        """Bytes that one worker sends in a step, if workers differ, without `outer`."""
        own = self.by_worker[worker]
        workers = len(self.by_worker)
        return sum(one.size if one.kind == "send" else sent_per_worker(one, workers) for one in own)

    def sent_per_step(self, workers: int) -> float:
        """Bytes that one of `workers` sends in a step, on average over workers and steps."""
        step = sum(sent_per_worker(collective, workers) for collective in self.step)
        if self.by_worker:
            step = sum(map(self.sent_by, range(len(self.by_worker)))) / len(self.by_worker)
        outer = sum(sent_per_worker(collective, workers) for collective in self.outer)
        return step + outer / self.every
