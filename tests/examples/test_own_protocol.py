"""The example of a protocol of one's own, as its page says: by name, under every verb."""

import ast
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from manyhands.protocols import Answer, Parameters, Rest
from manyhands.testing import BrokenLawError, ReferenceServer, check
from support import ROOT, Started, wait_for

EXAMPLE = ROOT / "examples" / "own_protocol.py"
MANYHANDS = (sys.executable, "-m", "manyhands")


def code_lines(text: str) -> int:
    """Lines that are neither empty, nor comments, nor documentation."""
    documented: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        for part in body if isinstance(body, list) else ():
            if isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant):
                documented |= set(range(part.lineno, (part.end_lineno or part.lineno) + 1))
    lines = enumerate(text.splitlines(), 1)
    return sum(
        bool(line.strip()) and not line.strip().startswith("#") and number not in documented
        for number, line in lines
    )


def test_it_is_short() -> None:
    assert code_lines(EXAMPLE.read_text()) <= 70


def finished(started: Started, seconds: float = 240) -> str:
    assert started.finish(seconds) == 0, started.text()
    return started.text()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_it_trains_and_survives_the_death_of_its_server(start, tmp_path: Path) -> None:
    begun = start(
        *MANYHANDS, "train", EXAMPLE, "--strategy", "quorum(quorum=3, every=2)",
        "--workers", "4", "--samples", "12000", "--output", "run",
    )  # fmt: skip
    wait_for(lambda: has_applied(tmp_path / "run/trace/server-0.jsonl"), 120, "a first change")
    server = begun.named("manyhands.live.server.process", "0")
    assert server is not None, begun.text()
    server.kill()
    text = finished(begun)
    assert "quorum(quorum=3, every=2)" in text
    assert "recovered" in (tmp_path / "run/trace/server-0.jsonl").read_text("utf-8")


def has_applied(trace: Path) -> bool:
    """Whether a server's trace has the application of an update."""
    return trace.exists() and "compute" in trace.read_text("utf-8")


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_it_is_simulated_with_64_workers(start) -> None:
    begun = start(
        *MANYHANDS, "simulate", EXAMPLE, "--strategy", "quorum(48, every=2)", "--workers", "64",
        "--samples", "1024", "--slow", "7:5x",
    )  # fmt: skip
    text = finished(begun)
    assert "--workers 64" in text, text


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "virtual",
    [pytest.param(False, id="live"), pytest.param(True, id="virtual")],
)
def test_it_is_compared_with_others(start, tmp_path: Path, *, virtual: bool) -> None:
    begun = start(
        *MANYHANDS, "compare", EXAMPLE, "--strategies", "quorum(2), ssp, asynchronous",
        "--workers", "2", "--samples", "512", "--repeats", "1", "--output", "compared",
        *(["--virtual"] if virtual else []),
    )  # fmt: skip
    finished(begun, 500)
    results = json.loads((tmp_path / "compared" / "results.json").read_text())
    runs = results["runs"]
    assert [run["status"] for run in runs] == ["finished"] * 3
    assert {run["strategy"].partition("(")[0] for run in runs} == {"quorum", "ssp", "asynchronous"}


@pytest.fixture
def example(forgets_names: None) -> Iterator[ModuleType]:
    spec = spec_from_file_location("own_protocol", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


class Reference(ReferenceServer):
    """The server of the example in NumPy: a mean of changes by samples, Nesterov momentum."""

    def __init__(self, case, x) -> None:
        super().__init__(case, x)
        self._given: list[tuple[int, np.ndarray]] = []
        self._waiting: set[str] = set()
        self._present = {f"worker-{rank}" for rank in range(case.workers)}
        self._velocity = np.zeros_like(x)

    def push(self, call, payload, samples, _):
        self._given.append((samples, bfloat16(payload)))
        self._waiting.add(call.worker)
        self._present.add(call.worker)
        self._conclude()

    def pull(self, call):
        self._present.add(call.worker)

    def rest(self, call):
        return self.leave(call.worker)

    def leave(self, worker):
        self._present.discard(worker)
        self._waiting.discard(worker)
        self._conclude()

    def _conclude(self) -> None:
        protocol = self.case.protocol
        everybody = self._waiting >= self._present
        if not self._given or not (everybody or len(self._given) >= protocol.quorum):
            return
        total = sum(samples for samples, _ in self._given)
        if total:
            mean = sum(samples * change for samples, change in self._given) / total
            self._velocity = protocol.momentum * self._velocity + mean
            self.x = self.x + protocol.rate * (mean + protocol.momentum * self._velocity)
        self._given, self._waiting = [], set()


def bfloat16(payload: np.ndarray) -> np.ndarray:
    bits = payload.view(np.uint16).astype(np.uint32) << 16
    return bits.view(np.float32).astype(np.float64)


def planted(example: ModuleType) -> dict[str, type]:
    """The protocol with a fault each, by the law that it breaks."""

    @dataclass(frozen=True, repr=False)
    class LossForgotten(example.Quorum):
        def on_leave(self, state, _):
            return state, []

    @dataclass(frozen=True, repr=False)
    class RestForgotten(example.Quorum):
        def on_message(self, state, call):
            if isinstance(call.message, Rest):
                return state, [Answer(call, Parameters(state.version), parameters=False)]
            return super().on_message(state, call)

    @dataclass(frozen=True, repr=False)
    class SamplesForgotten(example.Quorum):
        def gather(self, _, call, __):
            return [example.AddChange(call, 1.0)]

        def conclude(self, state):
            count = len(state.waiting) + len(state.gone)
            return [example.OuterStep(None, count, self.rate, self.momentum)]

    return {
        "deadlock of a lost worker": LossForgotten,
        "deadlock of a resting worker": RestForgotten,
        "wrong weighting": SamplesForgotten,
    }


def drawn(protocol: type):
    return lambda rng, workers, _: protocol(rng.randint(1, workers), rng.choice((1, 2, 3)))


@pytest.mark.timeout(300)
def test_the_harness_passes_it_with_a_reference_in_numpy(example: ModuleType) -> None:
    assert check(drawn(example.Quorum), 50, reference=Reference).seeds == 50


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_harness_passes_it_a_thousand_times(example: ModuleType) -> None:
    assert check(drawn(example.Quorum), 1000, reference=Reference).seeds == 1000


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "fault", ["deadlock of a lost worker", "deadlock of a resting worker", "wrong weighting"]
)
def test_the_harness_finds_a_planted_fault(example: ModuleType, fault: str) -> None:
    oracle = fault == "wrong weighting"
    begun = time.monotonic()
    with pytest.raises(BrokenLawError) as raised:
        check(drawn(planted(example)[fault]), 200, reference=Reference if oracle else None)
    seconds = time.monotonic() - begun
    print(f"{fault}: seed {raised.value.seed}, {seconds:.1f} s")
    assert raised.value.law == ("Reference" if oracle else "Progress")
