"""What a job takes on one machine: seconds of a batch by its size, and of an exchange."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from manyhands.cluster import Cluster, Host, Link
from manyhands.costs import PieceTime
from manyhands.lab.calibration.load import BUSY
from manyhands.pacing import Pace
from manyhands.reports import Machine

if TYPE_CHECKING:
    from collections.abc import Sequence

VERSION: Final = 1
ALL_CODECS: Final = "*"
"""Stands for every codec without a speed of its own."""
_STEADY: Final = 0.005
"""A standard deviation / mean below this is taken for none."""
_NOISY: Final = 0.1
"""A standard deviation / mean of measured times that is worth a sentence."""
_SLOWER: Final = 1.1
"""A host that takes so many times as long as this one is called slower."""


class ComputeTime(msgspec.Struct, frozen=True, kw_only=True):
    """How long a worker takes for a batch of one size: loading, passes and optimizer.

    Example:
        >>> import manyhands as mh
        >>> mh.ComputeTime(samples=32, seconds=0.05, cv=0.1, data=0.001, steps=80).samples
        32
    """

    samples: int
    seconds: float
    """The median."""
    cv: float
    """Standard deviation / mean, without the slowest and fastest hundredth."""
    data: float
    """Seconds of loading it."""
    steps: int
    """How many batches were measured."""
    deviation: float = 0.0
    """Standard deviation / mean of the median, by comparing consecutive batches."""

    @property
    def whole(self) -> float:
        """Seconds with loading."""
        return self.seconds + self.data


class CalibratedHost(msgspec.Struct, frozen=True, kw_only=True):
    """A host of a calibration.

    Example:
        >>> import manyhands as mh
        >>> mh.CalibratedHost(name="a", workers=2, samples=16, seconds=0.05).workers
        2
    """

    name: str
    workers: int
    samples: int
    """The part of a global batch that each of its workers had."""
    seconds: float
    """How long a worker took for it, with its loading, while all computed."""
    cores: int = 1
    memory: int = 0
    """Bytes of main memory."""


class CalibratedLink(msgspec.Struct, frozen=True, kw_only=True):
    """One direction of a link of a calibration, by transfers between the first workers of hosts.

    Example:
        >>> import manyhands as mh
        >>> mh.CalibratedLink(sender="a", receiver="b", bandwidth=1.19e7, latency=8e-5).receiver
        'b'
    """

    sender: str
    receiver: str
    bandwidth: float
    """Bytes of payload per second, after the burst that an idle link lets through."""
    latency: float
    """Half the seconds of a round trip."""


class CalibratedSum(msgspec.Struct, frozen=True, kw_only=True):
    """An allreduce over all workers of a calibration.

    Example:
        >>> import manyhands as mh
        >>> mh.CalibratedSum(nbytes=4096, seconds=0.003).seconds
        0.003
    """

    nbytes: int
    seconds: float


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """What a job takes on one machine, as `mh.calibrate` measures it.

    Example:
        >>> import manyhands as mh
        >>> one = mh.ComputeTime(samples=8, seconds=0.02, cv=0.1, data=0.0, steps=100)
        >>> two = mh.ComputeTime(samples=32, seconds=0.05, cv=0.1, data=0.0, steps=100)
        >>> found = mh.Calibration(date="", job="job", parameters=85_000, compute=(one, two))
        >>> found.seconds(16), found.times(16)
        (0.03, 'lognormal(0.03, cv=0.1)')
    """

    date: str
    job: str
    """The job's name in its script."""
    parameters: int
    """Bytes of the model's parameters."""
    compute: tuple[ComputeTime, ...]
    """By size, the smallest first; measured on one worker that has the machine for itself."""
    sharing: float = 1.0
    """How many times as long a batch takes if all cores compute one each."""
    exchange: float = 0.0
    """Seconds of an update to a server and back on this host, of all parameters."""
    served: float | None = None
    """Seconds of it in which the server is busy, so that another worker waits; None if that was not
    measured."""
    collective: float = 0.0
    """Seconds that a step of two workers takes longer by an allreduce on this host."""
    sharded: float = 0.0
    """Seconds that a step of two workers takes longer under `fully_sharded()` on this host."""
    pieces: tuple[PieceTime, ...] = ()
    """The model's pieces in order, of which a pipeline makes stages, each with its seconds for a
    batch of the middle size; none if it cannot be split."""
    coding: dict[str, float] = msgspec.field(default_factory=dict)
    """By codec, bytes of vectors per second at which it encodes and decodes here; under "*" those
    of all other codecs, if they were given."""
    hosts: tuple[CalibratedHost, ...] = ()
    """The hosts, if several were measured; the other figures are of the first one."""
    links: tuple[CalibratedLink, ...] = ()
    """Between every two of them, in both directions."""
    sums: tuple[CalibratedSum, ...] = ()
    """Allreduces over all of their workers, by size."""
    batch: int = 0
    """Samples of the global batch of the run on several hosts."""
    step: float = 0.0
    """Seconds of a step of that run, under `allreduce()`."""
    fixed: float = 0.0
    """Seconds of each batch that do not become fewer if the work is divided; 0: not known."""
    missing: tuple[str, ...] = ()
    """What could not be measured, and why; it is taken for nothing."""
    slowdown: float = 1.0
    """How many times as long its runs took, at most, because other programs computed."""
    noise: float = 0.0
    """Standard deviation / mean of the steps by which exchanges and collectives were measured."""
    machine: Machine = msgspec.field(default_factory=Machine)
    script: str = ""
    assumed: str = ""
    """The speed that was assumed, if nothing was measured."""
    version: int = VERSION

    @property
    def source(self) -> str:
        """Where its times come from, in words."""
        if self.assumed:
            return f"computing at an assumed {self.assumed} per worker, which was not measured,"
        return f"times measured on {self.machine.cpu} ({self.date[:10]})"

    @property
    def workers(self) -> int:
        """Workers on all hosts that were measured; 0 if there was only this one."""
        return sum(host.workers for host in self.hosts)

    @property
    def cluster(self) -> Cluster | None:
        """The hosts that were measured, with their links; None if there was only this one.

        A link has the lower bandwidth of its two directions, and the lower latency: what processes
        wait for a core makes a latency too long, never too short.
        """
        if not self.hosts:
            return None
        hosts = tuple(
            Host(one.name, cores=one.cores, memory=one.memory, workers=one.workers)
            for one in self.hosts
        )
        pairs: dict[tuple[str, str], list[CalibratedLink]] = {}
        for link in self.links:
            pairs.setdefault(_pair(link), []).append(link)
        links = tuple(
            (*names, Link(min(x.bandwidth for x in both), min(x.latency for x in both)))
            for names, both in pairs.items()
        )
        return Cluster(hosts, links=links)

    @property
    def paces(self) -> tuple[Pace, ...]:
        """The workers of hosts that compute clearly more slowly than this one."""
        found, rank = list[Pace](), 0
        for host in self.hosts:
            factor = host.seconds / self.seconds(host.samples, host.workers)
            ranks = range(rank, rank + host.workers)
            found += [Pace(worker, round(factor, 3)) for worker in ranks if factor > _SLOWER]
            rank += host.workers
        return tuple(found)

    def seconds(self, samples: float, workers: int = 1) -> float:
        """Seconds of a batch with its loading: between two measured sizes in proportion.

        Beyond them the line through the last two is continued.

        Args:
            samples: samples of the batch.
            workers: workers that compute on one host at the same time, at most one per core.
        """
        shared = self.sharing if workers > 1 else 1.0
        return shared * max(1e-9, _line(self.compute, samples))

    def cv(self, samples: float) -> float:
        """Standard deviation / mean of the seconds of a batch: that of the nearest size."""
        near = min(self.compute, key=lambda one: abs(math.log(one.samples / max(samples, 1e-9))))
        return near.cv

    def times(self, samples: float, workers: int = 1) -> str:
        """The compute times of a batch, as `simulate` takes them.

        Args:
            samples: samples of the batch.
            workers: as in `seconds`.
        """
        return self.spread(self.seconds(samples, workers), samples)

    def spread(self, seconds: float, samples: float, least: float = 0.0) -> str:
        """Times around so many seconds, with the spread of a batch of so many samples.

        Args:
            seconds: the mean.
            samples: samples of the batch whose spread it has.
            least: the least standard deviation / mean.
        """
        cv = max(least, self.cv(samples))
        if cv < _STEADY:
            return f"constant({seconds:.6g})"
        return f"lognormal({seconds:.6g}, cv={cv:.3g})"

    @property
    def deviation(self) -> float:
        """Standard deviation / mean of the measured seconds: that of their mean."""
        of_means = [
            max(one.deviation, one.cv / math.sqrt(one.steps)) for one in self.compute if one.steps
        ]
        return math.hypot(max(of_means, default=0.0), self.noise)

    @property
    def doubts(self) -> tuple[str, ...]:
        """What is missing or uncertain in it, in words; none if it was measured undisturbed."""
        said = [f"not measured, and taken for nothing: {what}" for what in self.missing]
        if self.slowdown > BUSY:
            said.append(
                f"other programs computed while it was measured: times may be up to "
                f"{self.slowdown:.1f} times too long; calibrate again when they have ended"
            )
        if self.deviation > _NOISY:
            said.append(
                f"measured times are uncertain by {100 * self.deviation:.0f} % (standard "
                "deviation); measure for longer, with a larger --seconds"
            )
        return tuple(said)

    @property
    def service(self) -> float:
        """Seconds of an exchange in which the server is busy: all of them, if it is not known."""
        return self.exchange if self.served is None else min(self.served, self.exchange)

    def overhead(self, workers: int, per_host: int, *, sharded: bool = False) -> float:
        """Seconds that collectives add to a step, beside what the network takes.

        Workers that share a core wait for each other.

        Args:
            workers: number of workers.
            per_host: workers on one host.
            sharded: whether parameters are sharded.
        """
        if workers == 1:
            return 0.0
        each = max(self.sharded, self.collective) if sharded else self.collective
        return each * self.crowding(per_host)

    def crowding(self, per_host: int) -> float:
        """Workers for each core of a host, at least 1."""
        return max(1.0, per_host / (self.machine.cores or per_host))

    def coding_speed(self, codec: object | None) -> float | None:
        """Bytes per second at which a codec encodes and decodes; None if it was not measured.

        Args:
            codec: the codec of a strategy, or its text; None for none.
        """
        return None if codec is None else self.coding.get(str(codec), self.coding.get(ALL_CODECS))

    def write(self, path: Path | str) -> Path:
        """Store it as JSON; return the path.

        Args:
            path: the file.
        """
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")
        return target


def _pair(link: CalibratedLink) -> tuple[str, str]:
    """The two hosts of a link, whatever its direction."""
    first, second = sorted((link.sender, link.receiver))
    return first, second


def _line(points: Sequence[ComputeTime], samples: float) -> float:
    """Seconds on the straight lines through neighbouring points."""
    if len(points) == 1:
        (only,) = points
        return only.whole * samples / only.samples
    after = next((at for at, one in enumerate(points) if one.samples >= samples), len(points) - 1)
    low, high = points[max(0, after - 1)], points[max(1, after)]
    slope = (high.whole - low.whole) / (high.samples - low.samples)
    # Noise must not make a smaller batch take longer than a larger one.
    slope = max(slope, 0.0)
    found = low.whole + slope * (samples - low.samples)
    # Below the smallest size the line may end at nothing, or before it.
    first = points[0]
    return max(found, 0.25 * first.whole * min(1.0, samples / first.samples))


def read_calibration(path: Path | str) -> Calibration:
    """Read a calibration.

    Args:
        path: the file that `Calibration.write` or `manyhands calibrate` stored.

    Raises:
        ValueError: the file is none.
    """
    try:
        found = msgspec.json.decode(Path(path).read_bytes(), type=Calibration)
    except (OSError, msgspec.DecodeError) as error:
        raise ValueError(f"{path} is no calibration: {error}") from error
    if found.version != VERSION or not found.compute:
        raise ValueError(f"{path} is no calibration that this version reads: calibrate again")
    return found
