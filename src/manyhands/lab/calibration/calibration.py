"""What a job takes on one machine: seconds of a batch by its size, and of an exchange."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from manyhands.reports import Machine

if TYPE_CHECKING:
    from collections.abc import Sequence

VERSION: Final = 1
_STEADY: Final = 0.005
"""A standard deviation / mean below this is taken for none."""


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

    @property
    def whole(self) -> float:
        """Seconds with loading."""
        return self.seconds + self.data


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
    collective: float = 0.0
    """Seconds that a step of two workers takes longer by an allreduce on this host."""
    sharded: float = 0.0
    """Seconds that a step of two workers takes longer under `fully_sharded()` on this host."""
    coding: dict[str, float] = msgspec.field(default_factory=dict)
    """By codec, bytes of vectors per second at which it encodes and decodes here."""
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
        return None if codec is None else self.coding.get(str(codec))

    def write(self, path: Path | str) -> Path:
        """Store it as JSON; return the path.

        Args:
            path: the file.
        """
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")
        return target


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
    return max(found, 0.25 * points[0].whole * samples / points[0].samples)


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
