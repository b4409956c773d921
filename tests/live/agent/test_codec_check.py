"""A run whose codec cannot pay says so, once and with both figures."""

import time
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

import manyhands as mh
from manyhands.live.agent.codec_check import codec_note, codecs_of, exchange_cost
from manyhands.live.hosts.host_list import Hosts
from manyhands.live.request import Request
from manyhands.pacing import Pace
from manyhands.script.origin import Origin, Overrides
from manyhands.strategies import strategy
from manyhands.verbs.command import Command
from manyhands.verbs.train import _link

JOB = mh.Job(
    model=lambda: torch.nn.Linear(300, 200),
    optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    loss=F.cross_entropy,
    data=torch.utils.data.TensorDataset(torch.zeros(8, 300), torch.zeros(8, dtype=torch.int64)),
    metrics=(),
    global_batch=4,
    epochs=1,
)


def note(text: str, workers: int = 2, **options: object) -> str:
    request = Request(
        job=JOB,
        origin=Origin("job.py", "", "", (), "job", None),
        overrides=Overrides(),
        strategy=strategy(text),
        workers=workers,
        cluster=mh.Cluster.local(),
        folder=Path(),
        settings=(),
        **options,  # type: ignore[arg-type]
    )
    return codec_note(request, JOB)


@pytest.mark.parametrize("text", ["asynchronous(codec=topk(0.1))", "allreduce(codec=int8())"])
def test_on_one_host_no_codec_pays(text: str) -> None:
    said = note(text)
    codec = "topk(fraction=0.1)" if "topk" in text else "int8()"
    assert said.startswith(f"codec={codec} takes about ")
    assert "saves no time on one host; it pays on networks below" in said


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("asynchronous()", {}),
        ("asynchronous(codec=topk(0.1))", {"workers": 1}),
        ("asynchronous(codec=topk(0.1))", {"slow": (Pace.read("all:2x"),)}),
        ("asynchronous(codec=topk(0.1))", {"hosts": Hosts.read("a:1, b:1")}),
        ("asynchronous(codec=topk(0.1))", {"hosts": Hosts.read("a:1, b:1"), "link": 125.0}),
    ],
    ids=["no codec", "one worker", "slowed on purpose", "unknown network", "slow network"],
)
def test_nothing_is_said_where_nothing_is_wrong(text: str, options: dict[str, object]) -> None:
    assert note(text, **options) == ""  # type: ignore[arg-type]


def test_on_a_fast_link_both_times_are_named() -> None:
    said = note("ssp(codec=half())", hosts=Hosts.read("a:1, b:1"), link=1.25e12)
    assert "per exchange and saves 0.19 µs on links of 10 Tbit/s; it pays on networks below" in said


def test_the_slowest_link_of_a_declared_cluster_counts() -> None:
    sites = "2 sites of 2 workers, 1gbit within, 100mbit and 40ms between"
    assert _link(Command(cluster=sites)) == 12.5e6
    assert _link(Command(link=2e6)) == 2e6
    assert _link(Command()) is None


@pytest.mark.timed
def test_the_check_takes_a_fraction_of_a_second() -> None:
    chosen = strategy("asynchronous(codec=deflate(), answer_codec=int8())")
    begun = time.perf_counter()
    cost = exchange_cost(chosen, 2, codecs_of(chosen, 2), 50_000_000)
    assert time.perf_counter() - begun < 0.5
    assert cost.seconds > 0.05
