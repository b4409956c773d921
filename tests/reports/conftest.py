"""Runs written by hand: each process a recorder with a clock of its own."""

import io
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from manyhands.trace import Header, Recorder, Trace, merge


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Process:
    recorder: Recorder
    clock: Clock
    parts: list[bytes]


@dataclass
class Stage:
    """Ask for processes by name, let them record, then take the trace of all."""

    kind: str = "live"
    processes: dict[str, list[Process]] = field(default_factory=dict)

    def process(
        self, role: str, rank: int = 0, *, host: str = "hostA", full: int = 2000
    ) -> Process:
        clock, parts = Clock(), []
        header = Header(
            role=role,
            rank=rank,
            host=host,
            pid=rank + 1,
            boot="boot",
            clock=0.0,
            wall=1e9,
            kind=self.kind,
        )
        process = Process(Recorder(header, parts.append, clock, full), clock, parts)
        self.processes.setdefault(header.name, []).append(process)
        return process

    def files(self) -> dict[str, bytes]:
        for lives in self.processes.values():
            for process in lives:
                process.recorder.flush()
        return {
            name: b"".join(part for process in lives for part in process.parts)
            for name, lives in self.processes.items()
        }

    def trace(self) -> Trace:
        return merge((name, io.BytesIO(data)) for name, data in self.files().items())


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.fixture(scope="session")
def make_stage() -> Callable[..., Stage]:
    return Stage


@pytest.fixture
def trained(stage: Stage) -> Stage:
    """Two workers in lockstep for two epochs of 1,000 samples; the agent has yet to say so."""
    agent = stage.process("agent")
    for name, value, source in [
        ("strategy", "allreduce()", "command line"),
        ("workers", "2", "command line"),
        ("global_batch", "100", "script"),
        ("seed", "0", "default"),
    ]:
        agent.recorder.setting(name, value, source)
    for rank in range(2):
        worker = stage.process("worker", rank)
        clock, recorder = worker.clock, worker.recorder
        recorder.span("start", 0.0, 2.0)
        clock.now = 2.0
        for step in range(20):
            # Worker 1 computes twice as long; the exchange itself takes 0.1 s.
            compute = 0.4 * (rank + 1)
            recorder.span("data", clock.now, 0.1, step)
            recorder.span("compute", clock.now + 0.1, compute, step)
            recorder.span("exchange", clock.now + 0.1 + compute, 0.9 - compute, step)
            clock.now = 2.0 + (step + 1) * 1.0
            recorder.count(samples=50, steps=1, sent={f"worker-{1 - rank}": 1_000_000})
            loss = 2.0 / (step + 1)
            recorder.point("loss", loss, samples=50 * (step + 1), weight=50)
            if step % 10 == 9 and rank == 0:
                samples = str(100 * (step + 1))
                recorder.event("epoch", {"number": str(step // 10), "samples": samples})
                accuracy = 0.9 if step == 9 else 0.89
                recorder.point("validation/accuracy", accuracy, samples=int(samples))
                recorder.point("validation/loss", 1.0 / step, samples=int(samples))
        recorder.samples(1000)
        if rank == 0:
            recorder.event("parameters", {"sha256": "ab" * 32})
    agent.clock.now = 23.0
    return stage


@pytest.fixture
def finished(trained: Stage) -> Stage:
    trained.processes["agent"][0].recorder.event("end", {"status": "finished", "words": ""})
    return trained
