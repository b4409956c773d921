"""What each codec saves and takes for a job, and the bandwidth below which it pays."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from manyhands.codecs import CATALOG, BFloat16, Half
from manyhands.costs import (
    CodingCost,
    allreduce_pays_below,
    allreduce_step_seconds,
    pays_below,
    push_step_seconds,
)
from manyhands.costs.compression import PAYLOAD_SHARE
from manyhands.lab.break_even.gradients import first_gradients
from manyhands.lab.break_even.idle_time import IdleTime
from manyhands.lab.networks.namespaces import NetworkShape
from manyhands.protocols.compression.timing import measure, measure_answers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from manyhands.codecs import Codec
    from manyhands.job import Job
    from manyhands.lab.break_even.gradients import FirstGradients

NETWORKS = ("10mbit", "100mbit", "1gbit", "10gbit")
_SECONDS = 0.5
"""Measurement of a codec."""
_WITHOUT_DEFAULTS = {
    "threshold": "threshold(density=0.01)",
    "chain": "chain(topk(), int8())",
}


@dataclass(frozen=True)
class NetworkFigures:
    """A codec on one network. Times are those of a step, in seconds."""

    bandwidth: float
    """Bytes per second."""
    latency: float
    saved: float
    """What the link is used less, for one vector in one direction."""
    push: float
    """A step that pushes to a server and waits for its answer, both encoded."""
    push_plain: float
    """The same without a codec."""
    allreduce: float
    """A step of allreduce."""
    allreduce_plain: float

    @property
    def gain(self) -> float:
        """How many times faster a step with a push and an answer is; below 1 it is slower."""
        return self.push_plain / self.push


@dataclass(frozen=True)
class CodecFigures:
    """A codec for a job's gradients."""

    text: str
    """The codec, as it was given."""
    codec: Codec
    cost: CodingCost
    """Of a push."""
    answer: CodingCost
    """Of an answer: a difference to what the worker has, which both sides keep."""
    pays_below: float
    """Bytes per second of the link below which it pays for pushes and answers; 0 for none."""
    allreduce_pays_below: float
    """The same for allreduce."""
    worker_memory: int
    """Bytes that a worker keeps: what was not sent, and the last answer."""
    server_memory: int
    """Bytes that all servers together keep at most: what each worker has received."""
    networks: tuple[NetworkFigures, ...]

    @property
    def ratio(self) -> float:
        """How many times fewer bytes are sent."""
        return self.cost.dense / self.cost.coded


@dataclass(frozen=True)
class BreakEven:
    """Codecs for one job, those first that make a step fastest on the network sorted by."""

    dense: int
    """Bytes of a gradient."""
    samples: int
    """Samples of a gradient."""
    compute: float
    """Seconds of a gradient here."""
    workers: int
    codecs: tuple[CodecFigures, ...]


def break_even(
    job: Job,
    codecs: Sequence[str] = (),
    networks: Sequence[str] = NETWORKS,
    workers: int = 4,
    *,
    sort_by: int = 0,
    note: Callable[[str], object] = lambda _: None,
) -> BreakEven:
    """Measure codecs on the first gradients of a job.

    Args:
        job: the job.
        codecs: codecs as text; by default all, with their default settings.
        networks: networks as text, as in `compare`.
        workers: number of workers: they share a batch, and servers keep a reference for each.
        sort_by: the index of the network whose steps decide the order.
        note: called before a codec is measured.

    Raises:
        ValueError: a codec or a network cannot be read.
    """
    chosen = {text: CATALOG.read(text) for text in codecs or default_codecs()}
    shapes = [NetworkShape.read(text) for text in networks]
    gradients, idle = first_gradients(job, workers), IdleTime()
    figures = []
    for text, codec in chosen.items():
        note(text)
        # Buffers are sent beside encoded gradients.
        cost, answer = (
            _with_buffers(
                by(codec, gradients.updates, time.perf_counter, _SECONDS, idle.pass_by), gradients
            )
            for by in (measure, measure_answers)
        )
        # Beside the gradient, a step takes one of the optimizer, by the server.
        compute = gradients.seconds + gradients.step
        figures.append(_figures(text, codec, cost, answer, compute, workers, shapes))
    figures.sort(key=lambda one: (-one.networks[sort_by].gain, one.text))
    dense = sum(vector.nbytes for vector in gradients.updates[0]) + gradients.buffers
    return BreakEven(dense, gradients.samples, gradients.seconds, workers, tuple(figures))


def _with_buffers(cost: CodingCost, gradients: FirstGradients) -> CodingCost:
    beside = gradients.buffers
    return CodingCost(cost.dense + beside, cost.coded + beside, cost.encode, cost.decode)


def default_codecs() -> list[str]:
    """Every codec once, with its default settings or common ones.

    A registered codec without default settings is left out.
    """
    found = []
    for cls in CATALOG:
        with contextlib.suppress(TypeError, ValueError):
            found.append(_WITHOUT_DEFAULTS.get(cls.name) or str(cls()))
    return found


def _figures(
    text: str,
    codec: Codec,
    cost: CodingCost,
    answer: CodingCost,
    compute: float,
    workers: int,
    shapes: Sequence[NetworkShape],
) -> CodecFigures:
    summed = isinstance(codec, Half | BFloat16)
    residual = round(cost.dense) if codec.feeds_back else 0
    reference = 0 if codec.lossless else round(cost.dense)
    plain = CodingCost.plain(cost.dense)

    def on(shape: NetworkShape) -> NetworkFigures:
        link = (PAYLOAD_SHARE * shape.rate, shape.latency)
        return NetworkFigures(
            shape.rate,
            shape.latency,
            saved=cost.saved(link[0]),
            push=push_step_seconds(compute, cost, answer, *link),
            push_plain=push_step_seconds(compute, plain, plain, *link),
            allreduce=allreduce_step_seconds(compute, cost, workers, *link, summed=summed),
            allreduce_plain=allreduce_step_seconds(compute, plain, workers, *link, summed=True),
        )

    return CodecFigures(
        text=text,
        codec=codec,
        cost=cost,
        answer=answer,
        pays_below=pays_below(_both(cost, answer)) / PAYLOAD_SHARE,
        allreduce_pays_below=allreduce_pays_below(cost, workers, summed=summed) / PAYLOAD_SHARE,
        worker_memory=residual + round(cost.dense),
        server_memory=workers * reference,
        networks=tuple(map(on, shapes)),
    )


def _both(push: CodingCost, answer: CodingCost) -> CodingCost:
    """A push and its answer together."""
    return CodingCost(
        push.dense + answer.dense,
        push.coded + answer.coded,
        push.encode + answer.encode,
        push.decode + answer.decode,
    )
