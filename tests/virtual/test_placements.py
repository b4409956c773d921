"""Every name of the catalog on the virtual clock: numbers of one replica, times of collectives."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from classification import a_job as a_classification
from torch import nn
from torch.utils.data import TensorDataset

import manyhands as mh
from manyhands.cluster import Cluster, Host, Link
from manyhands.costs import PLAIN, Collective, Forecast, LinkSpeed
from manyhands.costs.allreduce import ring
from manyhands.failure import RunFailed
from manyhands.job import Job
from manyhands.models import GPT
from manyhands.placements import ALL as PLACEMENTS
from manyhands.placements import Placement
from manyhands.placements.pipelines.program import durations_of
from manyhands.protocols import LockstepProtocol, StrategyProtocol
from manyhands.reports.figures.breakdown import breakdown
from manyhands.reports.figures.trace_figures import traffic
from manyhands.schedules import replay
from manyhands.strategies import CATALOG, strategy, virtual_form

if TYPE_CHECKING:
    from pathlib import Path

TEXTS = {
    "hybrid": "hybrid(data=2, tensor=2)",
    "pipeline": "pipeline(microbatches=4)",
    "place": 'place(["block1 on 0", "block2 on 1", "block3 on 2", "block4 on 3"])',
    "central_storage": "central_storage()",
}
"""Where the defaults of a strategy do not fit four workers."""
VARIANTS = [
    "allreduce(algorithm=halving)",
    "zero(stage=2)",
    "zero(stage=3)",
    "fully_sharded(reshard_after_forward=false)",
    "tensor(ways=4)",
    "tensor(ways=4, samples=own)",
    "context(ways=4)",
    "hybrid(shard=4)",
    "hybrid(data=2, shard=2)",
    "hybrid(shard=2, tensor=2)",
    # Tracing a transformer for stages takes seconds.
    "hybrid(shard=2, pipeline=2, microbatches=4)",
    pytest.param("hybrid(data=2, pipeline=2, microbatches=4)", marks=pytest.mark.slow),
    pytest.param("hybrid(pipeline=2, tensor=2, microbatches=4)", marks=pytest.mark.slow),
    pytest.param("pipeline(microbatches=4, schedule=gpipe)", marks=pytest.mark.slow),
    pytest.param("pipeline(microbatches=4, schedule=zero_bubble)", marks=pytest.mark.slow),
    pytest.param(
        "pipeline(microbatches=4, stages=8, schedule=interleaved)", marks=pytest.mark.slow
    ),
]
PLACED = [
    TEXTS.get(cls.name, f"{cls.name}()")
    for cls in PLACEMENTS
    if cls.name not in ("single", "allreduce")
]
LINKED = [
    pytest.param(text, marks=pytest.mark.slow) if text.startswith("pipeline") else text
    for text in PLACED
]


def gpt_job(**changes: object) -> Job:
    """A small transformer in float64, which every placement can divide."""
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(0, 20, (44, 9), generator=generator)
    data = TensorDataset(tokens[:, :-1], tokens[:, 1:])
    given = {
        "model": lambda: GPT(vocabulary=20, width=16, layers=4, heads=4, length=8).double(),
        "optimizer": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2),
        "loss": F.cross_entropy,
        "data": data,
        "metrics": (),
        "global_batch": 16,
        "epochs": 1,
        "seed": 4,
    }
    return Job(**(given | changes))


def linear_job() -> Job:
    """Four layers of equal work."""
    return gpt_job(
        model=lambda: nn.Sequential(*(nn.Linear(8, 8, bias=False) for _ in range(4))).double(),
        data=TensorDataset(*(torch.zeros(32, 8, dtype=torch.float64) for _ in range(2))),
        loss=F.mse_loss,
    )


def simulated(job: Job, text: str, output: Path, **settings: object) -> mh.Run:
    workers = 1 if text.startswith("single") else 4
    given = {"times": "constant(0.1)", "workers": workers} | settings
    return mh.simulate(job, text, output=output, **given)


def on_links(text: str) -> dict[str, object]:
    """A host for each worker, but where parameters are in shared memory."""
    one_host = text.startswith(("central_storage", "hogwild", "single"))
    return {} if one_host else {"bandwidth": "100mbit", "latency": "0.1ms"}


@pytest.mark.parametrize("name", CATALOG.names())
def test_simulate_runs_every_name_of_the_catalog(tmp_path, name):
    text = TEXTS.get(name, f"{name}()")
    run = simulated(gpt_job(), text, tmp_path, **on_links(text))
    assert run.status == "finished"
    assert run.samples == 44
    told = {one.name: one.value for each in run.trace.processes for one in each.settings}
    assert told["strategy"].startswith(f"{name}(")
    assert name in run.summary()


def test_the_catalog_has_a_form_of_every_strategy_for_the_simulator():
    """A strategy that is added to the catalog has to be simulated, or refused in words."""
    for name in CATALOG.names():
        form = virtual_form(strategy(TEXTS.get(name, f"{name}()")))
        assert isinstance(form, StrategyProtocol)
        live = CATALOG[name]
        assert isinstance(form, (live, LockstepProtocol))
        assert str(form).startswith(f"{name}(")


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> dict[str, torch.Tensor]:
    """The parameters that one worker ends with."""
    run = simulated(gpt_job(), "single()", tmp_path_factory.mktemp("single") / "run")
    return run.state_dict()


@pytest.mark.parametrize("text", [*PLACED, *VARIANTS])
def test_its_numbers_are_those_of_single_and_its_bytes_those_of_the_forecast(tmp_path, text, alone):
    job = gpt_job()
    run = simulated(job, text, tmp_path / "run", bandwidth="1gbit")
    found = run.state_dict()
    assert found.keys() == alone.keys()
    assert max((found[name] - alone[name]).abs().max().item() for name in alone) <= 1e-9
    sent = traffic(run.trace).flow("training").payload_sent
    # On a virtual clock a gradient under allreduce() is sent with its weight, of 8 bytes.
    weights = 2 * 3 * 8 if text.startswith("allreduce") else 0
    forecast = strategy(text).forecast_job(job, 4)
    assert sent / 3 - weights == pytest.approx(forecast.sent_per_step(4) * 4, rel=1e-3)
    if not text.startswith("allreduce"):
        told = {one.name: one.value for each in run.trace.processes for one in each.settings}
        assert told["memory"] == f"{forecast.memory / 1e6:,.3f} MB per worker by the forecast"


@pytest.mark.parametrize("inner", ["shard=2", "together=2", "tensor=2"])
def test_replicas_that_synchronise_now_and_then_have_their_times(tmp_path, inner):
    """Within a replica as the replica alone, and the forecast's exchange every third step."""
    job = gpt_job(epochs=2)
    links = {"time_only": True, "bandwidth": "5mbit", "latency": 0.0}
    text = f"hybrid(data=2, {inner}, outer=averaging(every=3))"
    run = simulated(job, text, tmp_path / "all", **links)
    alone = f"hybrid({inner.replace('together', 'data')})"
    half = gpt_job(global_batch=8)
    one = simulated(half, alone, tmp_path / "one", workers=2, **links)
    assert len(one.trace.workers) == 2
    forecast = strategy(text).forecast_job(job, 4)
    (exchange,) = forecast.outer
    between = ring(exchange.size, 2).seconds(LinkSpeed(0.0, 5e6 / 8))
    assert run.seconds == pytest.approx(one.seconds + 2 * between, rel=0.02)
    sent = traffic(run.trace).flow("training").payload_sent
    assert sent == pytest.approx(6 * 4 * forecast.sent_per_step(4), rel=1e-3)


@pytest.mark.parametrize("text", [*LINKED, "hybrid(data=2, shard=2)"])
def test_slow_links_and_stragglers_act_on_it_and_numbers_take_no_time(tmp_path, text):
    job = gpt_job(samples=32, epochs=None)
    fast = {"bandwidth": "1000gbit", "latency": "0us"}
    seconds = {}
    for name, settings in {
        "fast": fast,
        "slow": {"bandwidth": "5mbit", "latency": "5ms"},
        "straggler": fast | {"slow": ["2:3x"]},
        "numbers": {"bandwidth": "5mbit", "latency": "5ms", "time_only": False},
    }.items():
        run = simulated(job, text, tmp_path / name, **({"time_only": True} | settings))
        seconds[name] = run.seconds
    assert seconds["numbers"] == seconds["slow"]
    assert seconds["slow"] > seconds["fast"] + 2 * 2 * 0.005
    assert seconds["straggler"] > 1.2 * seconds["fast"]


def test_one_worker_takes_the_time_of_its_batches_and_sends_nothing(tmp_path):
    run = mh.simulate(gpt_job(), "single()", times="constant(0.1)", output=tmp_path)
    assert len(run.trace.workers) == 1
    assert run.seconds == pytest.approx(0.3)
    assert traffic(run.trace).sent == 0


@pytest.mark.parametrize("schedule", ["gpipe", "one_f_one_b", "zero_bubble"])
def test_a_pipeline_takes_as_long_as_the_replay_of_its_table(tmp_path, schedule):
    """Stages of equal work and links without latency: the bubble of the table and nothing else."""
    job = linear_job()
    text = f"pipeline(schedule={schedule}, microbatches=8)"
    run = simulated(job, text, tmp_path, time_only=True, bandwidth="1000gbit", latency="0us")
    table = strategy(text).table(4)
    expected = replay(table, durations_of(table, [(1.0, 2.0)] * 4))
    assert run.seconds == pytest.approx(2 * 0.1 * expected.makespan, rel=1e-3)
    computed = sum(worker.totals.seconds["compute"] for worker in run.trace.workers)
    idle = 1 - computed / (4 * run.seconds)
    assert idle == pytest.approx(expected.idle_share, abs=0.01)


def test_sharded_parameters_are_gathered_while_devices_compute(tmp_path):
    """With streams FSDP2 hides what fits behind the computation; on CPUs it waits."""
    job = gpt_job(samples=32, epochs=None)
    seconds = {}
    for devices in ((), ("cuda:0",)):
        hosts = tuple(Host(f"h{n}", 1, 1 << 30, devices, workers=1) for n in range(4))
        cluster = Cluster(hosts, Link(2.5e6))
        run = mh.simulate(
            job,
            "fully_sharded()",
            cluster=cluster,
            workers=4,
            times="constant(0.1)",
            time_only=True,
            output=tmp_path / f"{len(devices)}",
        )
        seconds[len(devices)] = run.seconds
    sent = strategy("fully_sharded()").forecast_job(job, 4).sent_per_step(4)
    assert seconds[0] == pytest.approx(2 * (0.1 + sent / 2.5e6), rel=0.01)
    assert 0.2 < seconds[1] < 0.7 * seconds[0]


def test_gradients_of_zero_are_summed_beside_the_backward_pass(tmp_path):
    size = 1_000_000
    data = TensorDataset(torch.zeros(16, 1), torch.zeros(16, size // 8))
    job = gpt_job(
        model=lambda: nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, size // 8)),
        data=data,
        loss=F.mse_loss,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    )
    link = LinkSpeed(0.0, 1.25e7)
    one = ring(size, 4).seconds(link)
    run = simulated(job, "zero(stage=1)", tmp_path, bandwidth=1.25e7, latency=0.0, time_only=True)
    # One bucket has nothing to hide behind; then the updated rows are gathered.
    assert run.seconds == pytest.approx(0.1 + one + one / 2, rel=0.01)


class Branches(nn.Module):
    """Two branches that do not need each other, and a part that needs both."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
        self.merge = nn.Linear(8, 8, bias=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.merge(self.left(inputs) + self.right(inputs))


def test_branches_on_two_workers_are_computed_at_the_same_time(tmp_path):
    job = gpt_job(
        model=lambda: Branches().double(),
        data=TensorDataset(*(torch.zeros(16, 8, dtype=torch.float64) for _ in range(2))),
        loss=F.mse_loss,
    )
    seconds = {}
    for text in ('place(["left on 0", "right on 1", "merge on 0"])',):
        run = mh.simulate(
            job,
            text,
            workers=2,
            times="constant(0.3)",
            bandwidth="1000gbit",
            latency="0us",
            time_only=True,
            output=tmp_path,
        )
        seconds[text] = run.seconds
    # Three parts of equal work, 0.2 s each: the branches at once, then what needs both.
    assert run.seconds == pytest.approx(0.4, rel=0.01)


def test_a_pipeline_waits_and_a_collective_is_an_exchange(tmp_path):
    piped = simulated(linear_job(), "pipeline(microbatches=4)", tmp_path / "a", bandwidth="1gbit")
    shared = simulated(gpt_job(), "tensor(ways=4)", tmp_path / "b", bandwidth="10mbit")
    kinds = [
        {kind for worker in run.trace.workers for kind in worker.totals.seconds}
        for run in (piped, shared)
    ]
    assert "wait" in kinds[0]
    assert "exchange" not in kinds[0]
    assert "exchange" in kinds[1]
    shares = breakdown(shared.trace).overall
    assert shares.communication > 0.1
    assert shares.compute + shares.communication + shares.wait == pytest.approx(1.0, abs=0.02)


def test_a_worker_that_dies_ends_the_run(tmp_path):
    with pytest.raises(
        RunFailed, match=r"worker-1 died after 0\.15 s, and fully_sharded\(\) needs"
    ):
        simulated(gpt_job(), "fully_sharded()", tmp_path, faults="crash(worker=1, at=0.15)")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("fully_sharded(codec=bfloat16(feedback=false))", "codec=.* is not simulated"),
        ("hybrid(data=2, together=2, outer=diloco(every=5))", "only their times are simulated"),
        ("pipeline(schedule=pipedream)", "schedule=pipedream updates after every microbatch"),
    ],
)
def test_options_that_cannot_be_timed_are_refused_in_words(tmp_path, text, words):
    with pytest.raises(ValueError, match=words):
        simulated(gpt_job(), text, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_a_placement_refuses_live_it_refuses_here(tmp_path):
    with pytest.raises(ValueError, match="is a mesh of 2 workers, got 4"):
        simulated(gpt_job(), "hybrid(shard=2)", tmp_path / "a")
    with pytest.raises(ValueError, match="divides scaled_dot_product_attention"):
        simulated(a_classification("plain"), "context(ways=2)", tmp_path / "b")
    with pytest.raises(ValueError, match=r"single\(\) trains on 1 worker, got 3"):
        simulated(gpt_job(), "single()", tmp_path / "c", workers=3)


@dataclass(frozen=True, repr=False)
class Summed(Placement):
    """A placement of one's own that sums everything twice."""

    name: ClassVar[str] = "summed"
    support: ClassVar[Literal["experimental"]] = "experimental"

    def bind(self, job, group, device, waits):
        raise NotImplementedError

    def forecast(self, parameters, workers):  # noqa: ARG002 - the contract
        whole = sum(one.size for one in parameters)
        return Forecast((), (Collective("allreduce", whole),) * 2, 2 * whole)


def test_a_placement_of_ones_own_waits_for_the_collectives_of_its_forecast(tmp_path):
    job = gpt_job(samples=16, epochs=None)
    form = virtual_form(Summed())
    program = form.program(job, 4, PLAIN)
    kinds = [type(one).__name__ for one in program.ranks[0]]
    assert kinds == ["ComputeShare", "BeginCollective", "EndCollective"] * 2


def test_evaluations_metrics_and_targets_work_as_in_any_run(tmp_path):
    job = gpt_job()
    job = replace(job, validation=job.data, epochs=40, target="loss <= 2.5")
    run = simulated(job, "fully_sharded()", tmp_path, bandwidth="1gbit")
    assert run.metrics["loss"] <= 2.5
    assert run.samples < 40 * 44
