"""Protocols under codecs, on the virtual cluster."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import ClassVar

import pytest
import torch
from classification import UNEVEN, a_job
from virtual_jobs import a_job as a_regression

import manyhands as mh
from manyhands.codecs import Codec
from manyhands.costs import CodingCost, push_step_seconds
from manyhands.costs.coding_speed import measured_speed
from manyhands.protocols import ALL
from manyhands.reports import breakdown, traffic
from manyhands.reports.figures.residuals import residuals
from manyhands.strategies import strategy

STRATEGIES = [
    "synchronous(servers=2)",
    "softsync(wait_for=1)",
    "ssp(staleness=2)",
    "asynchronous(servers=2)",
    "averaging(every=3)",
    "local_sgd(every=3, warmup=4)",
    "diloco(every=4, servers=2)",
    "diloco(every=4, fragments=2, overlap=3)",
    "diloco(every=4, fragments=2, wait_for=2)",
    "easgd(every=2)",
    "easgd(every=2, order=asynchronous)",
    "easgd(order=round_robin, servers=2)",
    "gossip()",
    "gossip(order=asynchronous)",
    "push_sum()",
    "broadcast(codec=none)",
]


@pytest.fixture(autouse=True)
def _registered(forgets_names) -> None:
    @mh.register
    @dataclass(frozen=True, repr=False)
    class Exact(Codec):
        """Numbers as they are."""

        name: ClassVar[str] = "exact_copy"
        biased: ClassVar[bool] = False
        lossless: ClassVar[bool] = True

        def encode(self, vector: torch.Tensor, seed: int = 0) -> torch.Tensor:  # noqa: ARG002
            return vector.clone().view(torch.uint8)

        def decode(self, payload: torch.Tensor, into: torch.Tensor) -> None:
            into.copy_(payload.clone().view(into.dtype))

        def wire_bytes(self, size: int, itemsize: int = 4) -> int:
            return size * itemsize


def test_every_protocol_that_sends_to_others_takes_a_codec() -> None:
    named = {text.partition("(")[0] for text in STRATEGIES}
    assert {one.name for one in ALL if any(field.name == "codec" for field in fields(one))} == named


@pytest.mark.parametrize("text", STRATEGIES)
@pytest.mark.parametrize("workers", [1, 3])
def test_a_lossless_codec_changes_no_bit(virtually, text, workers) -> None:
    if workers == 1 and "wait_for" in text:
        pytest.skip("it needs two workers, or is the same as ssp with one")
    job, plain = a_job("momentum"), strategy(text)
    coded = replace(plain, codec=strategy("asynchronous(codec=exact_copy)").codec)
    results = [
        virtually(job, protocol, workers=workers, seconds=UNEVEN).run.state_dict()
        for protocol in (plain, coded)
    ]
    for name, value in results[0].items():
        assert value.equal(results[1][name]), name


@pytest.mark.parametrize("text", STRATEGIES)
def test_rounding_to_half_precision_stays_near(virtually, text) -> None:
    job, plain = a_job("plain"), strategy(text)
    coded = replace(plain, codec=mh.codecs.Half())
    one, other = (
        virtually(job, protocol, workers=3, seconds="constant(0.1)").run.state_dict()
        for protocol in (plain, coded)
    )
    assert 0 < max(float((one[name] - other[name]).abs().max()) for name in one) < 2e-3


@pytest.mark.parametrize(
    "text",
    [
        "synchronous(servers=2, codec=half())",
        "ssp(codec=bfloat16())",
        "asynchronous(codec=half(), answer_codec=none)",
        "softsync(wait_for=2, codec=none, answer_codec=half())",
        "averaging(every=5, codec=half())",
        "diloco(every=10, codec=bfloat16(), servers=2)",
        "hierarchical(outer=diloco(every=5), inner=synchronous(codec=half()))",
    ],
)
def test_a_step_has_the_bytes_of_the_formula(virtually, text) -> None:
    protocol = strategy(text)
    job = a_regression(epochs=None, samples=200)
    trace = virtually(job, protocol, workers=4).run.trace
    steps = sum(worker.totals.steps for worker in trace.workers)
    formula = protocol.step_payload(4, 40)
    found = traffic(trace).flow("training")
    assert found.payload_sent == formula.carried * steps


@pytest.mark.parametrize("text", STRATEGIES)
def test_lost_calls_and_crashes_leave_no_wrong_reference(virtually, text) -> None:
    faults = ["crash(worker=1, at=0.62, restart=0.7)"]
    if not strategy(text).peer_servers:
        faults.append('lose(a="worker-0", b="server-0", at=0.15)')
        faults.append("crash(server=0, at=0.33, restart=0.4)")
    protocol = replace(strategy(text), codec=mh.codecs.BFloat16())
    done = virtually(
        a_job("plain"), protocol, workers=3, faults=f"[{', '.join(faults)}]", seconds=UNEVEN
    )
    assert done.run.samples == 3 * 151
    plain = virtually(a_job("plain"), strategy(text), workers=3, seconds=UNEVEN)
    one, other = done.run.state_dict(), plain.run.state_dict()
    assert max(float((one[name] - other[name]).abs().max()) for name in one) < 0.2


def test_what_was_not_sent_is_recorded_at_the_end_and_at_a_death(virtually) -> None:
    faults = "crash(worker=1, at=0.35)"
    coded = strategy("asynchronous(codec=topk(0.1))")
    run = virtually(a_job("plain"), coded, workers=3, seconds=UNEVEN, faults=faults).run
    found = residuals(run.trace)
    assert found is not None
    assert found.at_end is not None
    assert found.at_end > 0
    assert set(found.lost) == {1}
    assert "lost with worker 1: norm" in " ".join(run.summary().split())
    plain = virtually(a_job("plain"), strategy("asynchronous()"), workers=3).run
    assert residuals(plain.trace) is None


def test_encoding_takes_the_time_of_the_formula(tmp_path) -> None:
    job = a_regression(model=lambda: torch.nn.Linear(4, 1000), epochs=1, global_batch=10)
    job = replace(job, loss=lambda outputs, _: outputs.square().mean(), validation=None)
    size, speed, bandwidth, latency = 4 * 5000, 1e6, 1e5, 0.01
    given = {"times": "constant(0.1)", "bandwidth": bandwidth, "latency": latency, "workers": 1}

    def seconds(text: str, name: str, coding: float | str | None) -> float:
        run = mh.simulate(
            job, text, output=tmp_path / name, coding=coding, placing="apart", **given
        )
        return run.seconds / 20

    free = seconds("asynchronous(codec=half())", "free", "free")
    timed = seconds("asynchronous(codec=half())", "timed", speed)
    plain = seconds("asynchronous()", "plain", None)
    # A push and its answer are each encoded and decoded once; the first answer is whole.
    assert timed - free == pytest.approx(4 * size / speed, rel=0.05)
    coded, none = CodingCost(size, size / 2, size / speed, size / speed), CodingCost.plain(size)
    about = (bandwidth, latency)
    assert timed == pytest.approx(push_step_seconds(0.1, coded, coded, *about), rel=0.05)
    assert plain == pytest.approx(push_step_seconds(0.1, none, none, *about), rel=0.05)


def test_encoding_is_a_part_of_the_time_and_the_summary_says_if_it_is_free(tmp_path) -> None:
    given = {"job": a_regression(), "strategy": "ssp(staleness=2, codec=half())", "workers": 3}
    timed = mh.simulate(**given, coding="20kB/s", output=tmp_path / "timed")
    assert breakdown(timed.trace).overall.coding > 0.005
    assert "encoding and decoding took" in timed.summary()
    free = mh.simulate(**given, coding="free", output=tmp_path / "free")
    assert breakdown(free.trace).overall.coding == 0
    assert "encoding is free here; --coding gives it a speed" in free.summary()
    plain = mh.simulate(a_regression(), "ssp(staleness=2)", workers=3, output=tmp_path / "plain")
    assert "encoding" not in plain.summary().partition("folder")[0]


@pytest.mark.parametrize("answers", ["exact()", "none", "int8()"])
@pytest.mark.parametrize("text", ["averaging(every=3)", "easgd(every=2)", "asynchronous()"])
def test_each_direction_has_its_own_codec(virtually, text, answers) -> None:
    plain = strategy(text)
    coded = strategy(f"{text[:-1]}, codec=half(), answer_codec={answers})".replace("(, ", "("))
    one, other = (
        virtually(a_job("plain"), protocol, workers=3).run.state_dict()
        for protocol in (plain, coded)
    )
    assert 0 < max(float((one[name] - other[name]).abs().max()) for name in one) < 0.05


def test_diloco_with_chunks_sends_thousands_of_times_fewer_bytes() -> None:
    size, workers = 40_000_000, 4
    dense = mh.strategy("diloco(every=30)").step_payload(workers, size)
    chunks = "chunked_topk(chunk=4096, fraction=0.0156, bits=2)"
    coded = mh.strategy(f"diloco(every=30, codec={chunks})").step_payload(workers, size)
    assert dense.sent >= 146 * coded.sent
    assert dense.received >= 146 * coded.received
    ring = 2 * (workers - 1) / workers * size  # what a worker sends in an allreduce of float32
    assert ring >= 4400 * coded.sent


def test_codecs_take_their_measured_time_unless_a_speed_is_given(tmp_path) -> None:
    """A push is encoded and decoded once, and so is its answer, each at the speed of its codec."""
    job = a_regression(model=lambda: torch.nn.Linear(4, 100_000), epochs=1, global_batch=10)
    job = replace(job, loss=lambda outputs, _: outputs.square().mean(), validation=None)
    size = 4 * 5 * 100_000

    def seconds(text: str, **given) -> float:
        times = {"times": "constant(0.001)", "bandwidth": 1e12, "latency": 0.0, "workers": 1}
        output = tmp_path / f"{text}{len(given)}"
        run = mh.simulate(job, text, output=output, time_only=True, **times, **given)
        return run.seconds / 20

    for codec, answers in (("topk()", "int8()"), ("int8()", "exact()")):
        text = f"asynchronous(codec={codec}, answer_codec={answers})"
        pushes, back = (measured_speed(mh.codecs.CATALOG.read(one)) for one in (codec, answers))
        hand = sum(size / one for one in (pushes.encode, pushes.decode, back.encode, back.decode))
        assert seconds(text) - seconds(text, coding="free") == pytest.approx(hand, rel=0.06)


def test_codecs_of_an_outer_strategy_take_time_when_replicas_synchronise(tmp_path) -> None:
    job = a_regression(model=lambda: torch.nn.Linear(4, 100_000), epochs=1, global_batch=10)
    job = replace(job, loss=lambda outputs, _: outputs.square().mean(), validation=None)
    text = "hybrid(data=2, shard=2, outer=diloco(every=1, codec=int4()))"

    def seconds(**given) -> float:
        where = {"times": "constant(0.001)", "workers": 4, "cluster": "4 workers, 1gbit"}
        output = tmp_path / str(len(given))
        return mh.simulate(job, text, output=output, time_only=True, **where, **given).seconds / 20

    # A replica's half of the parameters: encoded once, and decoded from both replicas.
    half, speed = 4 * 5 * 100_000 / 2, measured_speed(mh.codecs.int4())
    hand = half / speed.encode + 2 * half / speed.decode
    assert seconds() - seconds(coding="free") == pytest.approx(hand, rel=0.02)


def test_the_summary_says_what_was_assumed_and_how_to_give_it(tmp_path) -> None:
    job, text = a_regression(), "ssp(staleness=2, codec=half())"
    told = mh.simulate(job, text, workers=3, output=tmp_path / "assumed").summary()
    row = " ".join(told.partition("  assumed ")[2].partition("  settings ")[0].split())
    assert row.startswith("times lognormal(mean=0.1, cv=0.3) (--times), coding half() 2.06 GB/s")
    for option in ("--coding", "--service"):
        assert option in row
    given = {"times": "constant(0.1)", "coding": "1GB/s", "service": "1ms", "bandwidth": "1gbit"}
    told = mh.simulate(
        job, text, workers=3, output=tmp_path / "given", latency="0.2ms", **given
    ).summary()
    assert "assumed" not in told.partition("folder")[0]
