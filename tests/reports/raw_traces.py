"""A reader of a run's trace files that shares no code with the package: plain JSON and sums.

It knows the format from its description alone, and only what a run without mishaps has: one life
per process, one clock, and all steps recorded.
"""

import json
from itertools import pairwise
from pathlib import Path


class Raw:
    """The lines of a run's files, by process."""

    def __init__(self, folder: Path) -> None:
        self.files = {
            path.stem: [json.loads(line) for line in path.read_text("utf-8").splitlines() if line]
            for path in sorted((folder / "trace").glob("*.jsonl"))
        }
        self.workers = {n: r for n, r in self.files.items() if n.startswith("worker-")}

    def last(self, name: str, tag: str) -> list | None:
        found = [record for record in self.files[name] if record[0] == tag]
        return found[-1] if found else None

    def spans(self, name: str) -> list[tuple[str, float, float]]:
        """(kind, start, seconds) of a worker."""
        return [tuple(record[1:4]) for record in self.files[name] if record[0] == "span"]

    def interval(self, name: str) -> tuple[float, float]:
        """When a worker had its first batch and when it was through."""
        begin = min(start for kind, start, _ in self.spans(name) if kind in ("data", "compute"))
        trained = [r[1] for r in self.files[name] if r[0] == "event" and r[2] == "trained"]
        totals = self.last(name, "totals")
        assert totals is not None
        return begin, trained[-1] if trained else totals[1]

    @property
    def begin(self) -> float:
        return min(self.interval(name)[0] for name in self.workers)

    @property
    def seconds(self) -> float:
        return max(self.interval(name)[1] for name in self.workers) - self.begin

    @property
    def samples(self) -> tuple[int, int, int]:
        """Seen, repeated, lost."""
        kept = [found[2:5] for name in self.files if (found := self.last(name, "samples"))]
        return tuple(map(sum, zip(*kept, strict=True)))  # type: ignore[return-value]

    @property
    def rate(self) -> float:
        return self.samples[0] / self.seconds

    @property
    def later_epoch(self) -> float:
        """Seconds of an epoch after the first, without the time in which any worker evaluated."""
        ends = next(
            found
            for records in self.files.values()
            if (found := [r[1] for r in records if r[0] == "event" and r[2] == "epoch"])
        )
        # Time is cut where an evaluation begins or ends, and each piece is looked at.
        evaluated = [
            (start, start + seconds)
            for name in self.workers
            for kind, start, seconds in self.spans(name)
            if kind == "evaluate"
        ]
        cuts = sorted({*ends, *(at for pair in evaluated for at in pair)})
        training = 0.0
        for a, b in pairwise(cuts):
            within = ends[0] <= a and b <= ends[-1]
            if within and not any(start <= a and b <= stop for start, stop in evaluated):
                training += b - a
        return training / (len(ends) - 1)

    def metric(self, name: str) -> list[tuple[float, int, float]]:
        """(seconds, samples, value) of a validation metric."""
        points = [
            record
            for records in self.files.values()
            for record in records
            if record[0] == "point" and record[2] == f"validation/{name}"
        ]
        return [(at - self.begin, samples, value) for _, at, _, value, samples, _ in sorted(points)]

    @property
    def sent(self) -> int:
        totals = [found for name in self.files if (found := self.last(name, "totals"))]
        return sum(sum(record[5].values()) for record in totals)

    @property
    def staleness(self) -> dict[int, int]:
        together: dict[int, int] = {}
        for name in self.files:
            if found := self.last(name, "staleness"):
                for versions, updates in found[2].items():
                    together[int(versions)] = together.get(int(versions), 0) + updates
        return together

    @property
    def shares(self) -> dict[str, float]:
        """Where the workers' time went; an exchange's shortest at each step is communication."""
        exposed: dict[int, dict[str, float]] = {}
        for name, records in self.workers.items():
            for record in records:
                if record[0] == "span" and record[1] == "exchange":
                    at_step = exposed.setdefault(record[4], {})
                    at_step[name] = at_step.get(name, 0.0) + record[3]
        parts = ("compute", "wait", "communication", "coding", "data", "evaluation")
        spent = dict.fromkeys(parts, 0.0)
        wall = 0.0
        for name in self.workers:
            begin, end = self.interval(name)
            totals = self.last(name, "totals")
            assert totals is not None
            seconds = dict(totals[4])
            for kind, start, spent_then in self.spans(name):
                # The first pull of the parameters is start-up.
                if start < begin:
                    seconds[kind] -= min(spent_then, begin - start)
            own = {
                "compute": seconds.get("compute", 0.0),
                "wait": seconds.get("wait", 0.0),
                "communication": sum(seconds.get(kind, 0.0) for kind in ("send", "receive")),
                "coding": seconds.get("encode", 0.0),
                "data": seconds.get("data", 0.0),
                "evaluation": seconds.get("evaluate", 0.0),
            }
            for at_step in exposed.values():
                least = min(at_step.values()) if len(at_step) == len(self.workers) else 0.0
                own["communication"] += least
                own["wait"] += at_step.get(name, 0.0) - least
            # What was done at once, as sending while computing, is counted twice: then the sum of
            # it all is what the parts are shares of.
            wall += max(end - begin, sum(own.values()))
            for part, of_part in own.items():
                spent[part] += of_part
        shares = {part: seconds / wall for part, seconds in spent.items()}
        return {part: share for part, share in shares.items() if share or part != "coding"}


def median(values: list[float]) -> float:
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
