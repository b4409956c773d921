"""Allreduce on the virtual cluster: the numbers of one worker, and the times of its algorithm."""

from __future__ import annotations

import random
import sys
from dataclasses import replace

import pytest
import test_streams as streams
import torch
from classification import EPOCHS, OPTIMIZERS, SAMPLES, UNEVEN, a_job
from test_equivalences import by_hand, distance
from torch import nn
from torch.utils.data import TensorDataset
from virtual_jobs import a_job as a_regression

import gans
import manyhands as mh
from manyhands.cluster import Link
from manyhands.collectives import ALLREDUCE
from manyhands.costs import BETWEEN_WORKERS, LinkSpeed, crossover
from manyhands.failure import RunFailed
from manyhands.job import Job
from manyhands.reports.figures.breakdown import breakdown
from manyhands.reports.figures.trace_figures import traffic
from manyhands.strategies import strategy, virtual_form
from manyhands.virtual import ProcessHosts
from manyhands.virtual.log import Logs
from manyhands.virtual.simulator.kernel import Kernel
from manyhands.virtual.simulator.member import VirtualProcess
from manyhands.virtual.simulator.network import Network
from manyhands.virtual.worker.endpoint import VirtualEndpoint
from manyhands.virtual.worker.group import GroupEndpoint, VirtualGroup

every = pytest.mark.parametrize("algorithm", ALLREDUCE)


def allreduce(text: str = "allreduce"):
    form = virtual_form(strategy(text))
    assert form is not None
    return form


@every
@pytest.mark.parametrize("workers", range(1, 9))
def test_every_algorithm_equals_one_worker_with_uneven_batches(virtually, algorithm, workers):
    # 151 = 4 · 37 + 3: parts differ in size, and in the last batch of an epoch most are empty.
    form = allreduce(f"allreduce(algorithm={algorithm})")
    done = virtually(a_job("momentum"), form, workers=workers, seconds=UNEVEN)
    assert distance(done.run.state_dict(), by_hand("momentum")) <= 1e-9
    assert done.run.samples == EPOCHS * SAMPLES


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("bucket", [25.0, 0.0001])
def test_any_optimizer_and_any_bucket(virtually, kind, bucket):
    form = allreduce(f"allreduce(bucket_mb={bucket})")
    done = virtually(a_job(kind), form, workers=3, seconds=UNEVEN)
    assert distance(done.run.state_dict(), by_hand(kind)) <= 1e-9


def test_all_replicas_are_equal_to_the_bit(virtually):
    for algorithm in ALLREDUCE:
        form = allreduce(f"allreduce(algorithm={algorithm})")
        done = virtually(a_job("adamw"), form, workers=6, seconds=UNEVEN)
        first, *others = [worker.replication.parameters[0] for worker in done.world._workers]
        assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("cluster", ["2 hosts of 2 workers", "3 hosts of 2 workers"])
def test_hosts_sum_first_and_send_each_number_once(tmp_path, cluster):
    by_hosts, flat = (
        mh.simulate(a_job("momentum"), text, cluster=f"{cluster}, 1gbit", output=tmp_path / text)
        for text in ("allreduce()", "allreduce(shared_memory=false)")
    )
    assert distance(by_hosts.state_dict(), by_hand("momentum")) <= 1e-9
    assert distance(flat.state_dict(), by_hand("momentum")) <= 1e-9
    between, all_between = (
        traffic(run.trace).flow("training", "between").payload_sent for run in (by_hosts, flat)
    )
    hosts, workers = int(cluster[0]), 2 * int(cluster[0])
    # In one ring the last worker of a host sends to the first one of the next.
    assert between / all_between == pytest.approx((hosts - 1) / hosts / ((workers - 1) / workers))


@pytest.mark.parametrize("text", ["allreduce()", "allreduce(shared_memory=false)"])
def test_its_text_is_that_of_a_live_run(text):
    assert str(allreduce(text)) == text


def test_clipping_acts_on_the_mean_gradient(virtually):
    one = virtually(replace(a_job("plain"), clip=0.05), allreduce(), workers=1)
    several = virtually(replace(a_job("plain"), clip=0.05), allreduce(), workers=4)
    free = virtually(a_job("plain"), allreduce(), workers=4)
    assert distance(several.run.state_dict(), one.run.state_dict()) <= 1e-12
    assert distance(several.run.state_dict(), free.run.state_dict()) > 1e-3


def test_buffers_are_averaged_over_the_workers(virtually):
    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).double()

    job = replace(a_job("plain"), model=model, samples=36, global_batch=36, epochs=None)
    done = virtually(job, allreduce(), workers=4)
    kept = [worker.replication.buffers[0] for worker in done.world._workers]
    mean = torch.stack(kept).mean(0)
    assert (done.run.state_dict()["1.running_mean"] - mean).abs().max() <= 1e-12


def test_losses_with_weights_are_means_over_all_counted_targets(virtually):
    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs, targets, ignore_index=0)

    job = replace(a_job("momentum"), loss=loss)
    one = virtually(job, allreduce(), workers=1)
    several = virtually(job, allreduce("allreduce(algorithm=halving)"), workers=5)
    assert distance(several.run.state_dict(), one.run.state_dict()) <= 1e-9


def big_job(numbers: int, steps: int = 4) -> Job:
    """A model of one vector, and as many global batches as steps."""
    data = TensorDataset(torch.zeros(steps * 8, 1), torch.zeros(steps * 8, numbers))

    return Job(
        model=lambda: nn.Linear(1, numbers, bias=False),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=nn.functional.mse_loss,
        data=data,
        metrics=(),
        global_batch=8,
        epochs=1,
    )


def exchange_seconds(tmp_path, algorithm: str, workers: int, size: int, link: Link) -> float:
    """Seconds of one allreduce in the virtual network: what a step takes beyond its computing.

    The difference between two runs, because workers do not begin their first step together.
    """
    few, more = (
        mh.simulate(
            big_job(size // 4 - 1, steps),
            f"allreduce(algorithm={algorithm})",
            workers=workers,
            times="constant(0.25)",
            bandwidth=link.bandwidth,
            latency=link.latency,
            time_only=True,
            output=tmp_path / f"{algorithm}-{workers}-{size}-{steps}",
        ).seconds
        for steps in (1, 5)
    )
    return (more - few) / 4 - 0.25


def seconds_alone(
    tmp_path, algorithm: str, workers: int, size: int, link: Link, *, notifies: bool
) -> float:
    """Seconds of one allreduce that all workers begin at the same time."""
    kernel, places = Kernel(), ProcessHosts.host_each(workers, 0, link)
    network, logs = Network(kernel, places.cluster, copy_rate=2e9), Logs(tmp_path, workers, kernel)
    group, left = VirtualGroup(kernel, network, places.workers, notifies), [workers]

    async def work(own: GroupEndpoint) -> None:
        await own.end(own.begin(ALLREDUCE[algorithm](workers), size))

    def ended() -> None:
        left[0] -= 1
        if not left[0]:
            kernel.finish()

    for rank, host in enumerate(places.workers):
        member = VirtualProcess(f"worker-{rank}", host)
        member.begin()
        log = logs.worker(member, rank)
        endpoint = VirtualEndpoint(member, {}, kernel, network, random.Random(), log)  # noqa: S311
        kernel.start(member, work(group.join(endpoint, rank, log)), ended)
    kernel.run()
    return kernel.now


@every
@pytest.mark.parametrize("workers", range(2, 10))
@pytest.mark.parametrize("size", [5040, 5_040_000])
def test_its_time_is_that_of_the_formula(tmp_path, algorithm, workers, size):
    formula = BETWEEN_WORKERS[algorithm](size, workers).seconds(LinkSpeed(1e-4, 1.25e8))
    found = seconds_alone(tmp_path, algorithm, workers, size, Link(1.25e8, 1e-4), notifies=False)
    assert found == pytest.approx(formula, rel=1e-3)


@pytest.mark.parametrize("algorithm", ["ring", "butterfly", "halving"])
@pytest.mark.parametrize("workers", [2, 4, 8])
def test_a_sender_that_has_to_hear_of_its_receiver_waits_a_latency_more(
    tmp_path, algorithm, workers
):
    # All enter a round at the same time, so every message begins one latency later.
    formula = BETWEEN_WORKERS[algorithm](5040, workers).seconds(LinkSpeed(2e-4, 1.25e8))
    found = seconds_alone(tmp_path, algorithm, workers, 5040, Link(1.25e8, 1e-4), notifies=True)
    assert found == pytest.approx(formula, rel=1e-3)


@pytest.mark.parametrize(("first", "second"), [("butterfly", "halving"), ("butterfly", "ring")])
@pytest.mark.parametrize("workers", [4, 8])
def test_algorithms_cross_where_the_formula_has_it(tmp_path, first, second, workers):
    # A message takes two latencies: its sender has to hear of its receiver first.
    speed, link = LinkSpeed(2e-4, 1.25e8), Link(1.25e8, 1e-4)
    costs = (BETWEEN_WORKERS[first], BETWEEN_WORKERS[second])
    size = crossover(*costs, workers, speed)
    assert size is not None
    found = {}
    for factor in (0.9, 1.1):
        each = int(size * factor) // 4 * 4
        found[factor] = [
            exchange_seconds(tmp_path, name, workers, each, link) for name in (first, second)
        ]
    assert found[0.9][0] < found[0.9][1]
    assert found[1.1][0] > found[1.1][1]


def test_buckets_are_summed_while_the_backward_pass_goes_on(virtually):
    # 16 layers of 40 kB; a bucket takes 2/3 · 40 kB each way on links of 1.6 MB/s: 33 ms of which
    # all but the last are hidden behind 16 · 42 ms of backward pass.
    job = a_regression(
        model=lambda: nn.Sequential(*(nn.Linear(100, 100) for _ in range(16))),
        data=TensorDataset(torch.zeros(60, 100), torch.zeros(60, 100)),
        epochs=1,
    )
    places = ProcessHosts.host_each(3, 0, Link(1.6e6))
    seconds = {}
    for mebibytes in (0.001, 25.0):
        form = allreduce(f"allreduce(bucket_mb={mebibytes})")
        few, more = (
            virtually(one, form, workers=3, places=places, seconds="constant(1.0)").run.seconds
            for one in (job, replace(job, epochs=2))
        )
        seconds[mebibytes] = (more - few) / 3 - 1.0
    # A bucket is a tensor here, and the last one, a weight, has nothing to hide behind.
    assert seconds[0.001] == pytest.approx(2 * 2 / 3 * 40_004 / 1.6e6, rel=0.01)
    assert seconds[25.0] == pytest.approx(16 * 2 * 2 / 3 * 40_400 / 1.6e6, rel=0.01)


def test_all_wait_for_a_straggler(virtually):
    slow = "constant(0.1, slow=[slow(rank=2, factor=3.0)])"
    places = ProcessHosts.host_each(4, 0, Link(1e9))
    done = virtually(a_regression(), allreduce(), workers=4, places=places, seconds=slow)
    assert done.run.seconds == pytest.approx(20 * 0.3, rel=0.01)
    shares = breakdown(done.run.trace).workers
    assert shares["worker-2"].wait == pytest.approx(0.0, abs=0.01)
    assert shares["worker-0"].wait == pytest.approx(2 / 3, abs=0.01)


def test_workers_on_one_host_share_its_port(virtually):
    job = big_job(250_000)
    link = Link(1e7)
    apart = virtually(job, allreduce(), workers=4, places=ProcessHosts.host_each(4, 0, link))
    # In blocks of ranks two of four messages of the ring's rounds pass between two hosts.
    flat = allreduce("allreduce(shared_memory=false)")
    blocks = ProcessHosts.in_blocks(4, 0, (2, 0), link)
    beside = virtually(job, flat, workers=4, places=blocks)
    hosts_first = virtually(job, allreduce(), workers=4, places=blocks)
    halves = virtually(
        job,
        allreduce("allreduce(algorithm=butterfly)"),
        workers=4,
        places=blocks,
    )
    one = 2 * 3 / 4 * 1e6 / 1e7
    assert apart.run.seconds == pytest.approx(4 * (0.1 + one), rel=0.01)
    assert beside.run.seconds == pytest.approx(4 * (0.1 + one), rel=0.01)
    # Each host sends half of the sum to the other, and then its half of the result.
    assert hosts_first.run.seconds == pytest.approx(4 * (0.1 + 1e6 / 1e7), rel=0.01)
    # In the second round both workers of a host send the whole vector through its port.
    assert halves.run.seconds == pytest.approx(4 * (0.1 + 2 * 1e6 / 1e7), rel=0.01)


def test_its_bytes_are_those_of_the_forecast(virtually):
    done = virtually(big_job(25_000), allreduce(), workers=4)
    flow = traffic(done.run.trace).flow("training")
    # The weight of a gradient is one number more.
    assert flow.payload_sent == flow.payload_received == 4 * 4 * 2 * 3 / 4 * 100_004
    assert traffic(done.run.trace).flow("start").payload_sent == 3 * 100_000


def test_a_run_without_numbers_takes_the_same_time(tmp_path):
    for algorithm in ("ring", "halving"):
        runs = [
            mh.simulate(
                a_job("momentum"),
                f"allreduce(algorithm={algorithm}, bucket_mb=0.0001)",
                workers=5,
                times=UNEVEN,
                bandwidth="1mbit",
                time_only=time_only,
                output=tmp_path / f"{algorithm}-{time_only}",
            )
            for time_only in (False, True)
        ]
        assert runs[0].seconds == runs[1].seconds
        sent = [traffic(run.trace).sent for run in runs]
        assert sent[0] == sent[1]


def test_it_is_repeatable_to_the_bit(virtually):
    one, other = (
        virtually(a_job("adamw"), allreduce(), workers=4, seconds=UNEVEN) for _ in range(2)
    )
    assert one.digest == other.digest
    assert one.run.parameters_digest == other.run.parameters_digest


def test_a_limit_in_seconds_ends_after_a_whole_global_batch(virtually):
    job = replace(a_job("plain", validates=False), epochs=None, seconds=1.0)
    done = virtually(job, allreduce(), workers=4, seconds=UNEVEN)
    assert 1.0 <= done.run.seconds < 1.6
    leases = done.world.coordinator.leases
    assert leases.held == leases.lost == 0


def test_evaluations_by_time_and_a_target_end_it_as_any_run(virtually):
    job = replace(
        a_job("momentum"), evaluate_every=mh.every(seconds=0.5), target="loss <= 1.09", epochs=30
    )
    done = virtually(job, allreduce(), workers=3, seconds=UNEVEN)
    assert done.run.metrics["loss"] <= 1.09
    assert done.run.samples < 30 * SAMPLES


@pytest.mark.parametrize(
    "fault", ["crash(worker=2, at=0.5)", "crash(worker=2, at=0.5, restart=0.2)"]
)
def test_a_worker_that_dies_ends_the_run_and_is_named(virtually, fault):
    with pytest.raises(RunFailed, match=r"worker-2 died after 0\.5 s, and allreduce\(\) needs all"):
        virtually(a_job("plain"), allreduce(), workers=4, faults=fault)


def test_a_pause_or_a_cut_delays_all_and_changes_nothing(virtually):
    plain = virtually(a_job("plain"), allreduce(), workers=4)
    for fault in (
        "pause(worker=1, at=0.45, seconds=2.0)",
        'cut("worker-0", "worker-1", start=0.45, stop=2.45)',
    ):
        done = virtually(a_job("plain"), allreduce(), workers=4, faults=fault)
        assert distance(done.run.state_dict(), plain.run.state_dict()) == 0
        assert plain.run.seconds + 1.5 < done.run.seconds < plain.run.seconds + 3.5


def test_a_codec_is_refused():
    with pytest.raises(ValueError, match=r"codec=topk\(.*is not simulated: leave it out"):
        allreduce("allreduce(codec=topk(0.01))")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ema": 0.9}, "an average of weights is not simulated"),
        ({"autocast": "float16"}, "a loss scale is not simulated"),
        ({"sync_batchnorm": True}, "are not exchanged on a virtual clock"),
    ],
)
def test_options_of_a_job_that_are_not_simulated_are_refused(virtually, changes, words):
    with pytest.raises(ValueError, match=words):
        virtually(replace(a_job("plain"), **changes), allreduce(), workers=2)


@pytest.mark.slow
def test_a_live_run_says_which_algorithm_the_engine_takes(start, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(LIVE, encoding="utf-8")
    text = "allreduce(algorithm=halving)"
    train = ("train", script, "--strategy", text, "--workers", "2", "--output", tmp_path / "run")
    started = start(sys.executable, "-m", "manyhands", *train)
    assert started.finish() == 0, started.text()
    said = " ".join(started.text().split())
    assert "algorithm Gloo's ring sums gradients in a live run; halving is for the virtual" in said


LIVE = """
import torch
import manyhands as mh

data = torch.utils.data.TensorDataset(torch.eye(2).repeat(32, 1), torch.arange(64) % 2)
job = mh.Job(
    model=lambda: torch.nn.Linear(2, 2),
    optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=1.0),
    loss=torch.nn.functional.cross_entropy,
    data=data,
    global_batch=16,
    epochs=1,
)
"""


def test_words_about_the_engine_are_only_for_other_algorithms():
    assert strategy("allreduce").engine_words("cpu") == ()
    assert "what NCCL chooses" in strategy("allreduce(algorithm=tree)").engine_words("cuda")[0]


@pytest.mark.parametrize("text", ["single()", "allreduce()", "allreduce(algorithm=halving)"])
def test_every_objective_has_a_step_of_its_own_optimizer(tmp_path, text):
    workers = 1 if text.startswith("single") else 3
    run = mh.simulate(gans.gan_job(clip=0.1), text, workers=workers, output=tmp_path)
    assert gans.apart(run.state_dict(), gans.by_hand(clip=0.1)) <= 1e-9
    assert run.samples == gans.EPOCHS * gans.SAMPLES


@pytest.mark.parametrize("text", ["allreduce()", "fully_sharded()"])
def test_every_sample_of_a_stream_is_trained_on_once(tmp_path, text):
    alone: list[int] = []
    seen: list[int] = []
    one = mh.simulate(streams.a_job(alone), "single()", output=tmp_path / "one")
    several = mh.simulate(streams.a_job(seen), text, workers=3, output=tmp_path / "several")
    assert sorted(seen) == sorted(alone) == [*range(streams.SAMPLES)]
    assert several.samples == one.samples == streams.SAMPLES
    assert distance(several.state_dict(), one.state_dict()) <= 1e-9


def test_the_norm_that_is_measured_is_that_of_the_mean_gradient(virtually):
    job = replace(a_job("plain"), measures=("gradient_norm",))
    norms = []
    for workers in (1, 4):
        done = virtually(job, allreduce(), workers=workers)
        norms.append(
            [
                point.value
                for process in done.run.trace.processes
                for point in process.points
                if point.name == "measure/gradient_norm"
            ]
        )
    assert norms[0] == pytest.approx(norms[1], rel=1e-9)
    assert len(norms[0]) == EPOCHS
