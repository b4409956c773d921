"""What a placement will do, said before it is done."""

from dataclasses import dataclass

from manyhands.costs.collectives import Collective, sent_per_worker


@dataclass(frozen=True)
class TensorSize:
    """A parameter as a forecast sees it."""

    name: str
    size: int
    """Bytes."""
    trained: bool = True
    rows: int = 1
    """Its first dim: what is divided among workers that share it."""
    unit: str = ""
    """The part of the model that it is gathered with, if it is."""

    def padded(self, workers: int) -> int:
        """Bytes, if every worker has as many rows as the one that has most."""
        return -(-self.rows // workers) * workers * (self.size // self.rows)


@dataclass(frozen=True)
class LayerSize:
    """A call of a layer as a forecast sees it: what goes in and what comes out, in bytes."""

    name: str
    role: str
    """What a placement does with it: "column", "row", "table", "logits", "attention", …"""
    inputs: int
    outputs: int
    width: int = 1
    """The last dim of its outputs."""
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
    meeting: tuple[Collective, ...] = ()
    """After some of the steps, where copies train apart and meet."""
    every: int = 1
    """Steps from one meeting to the next."""
    by_worker: tuple[tuple[Collective, ...], ...] = ()
    """What each does in every step, where that differs from worker to worker; `step` is then the
    first worker's."""

    def sent_by(self, worker: int) -> float:
        """Bytes that one worker sends in a step, where they differ; without meetings."""
        own = self.by_worker[worker]
        workers = len(self.by_worker)
        return sum(one.size if one.kind == "send" else sent_per_worker(one, workers) for one in own)

    def sent_per_step(self, workers: int) -> float:
        """Bytes that one of `workers` sends in a step, on average over them and over meetings."""
        step = sum(sent_per_worker(collective, workers) for collective in self.step)
        if self.by_worker:
            step = sum(map(self.sent_by, range(len(self.by_worker)))) / len(self.by_worker)
        meeting = sum(sent_per_worker(collective, workers) for collective in self.meeting)
        return step + meeting / self.every
