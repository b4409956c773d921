"""Plans: what is ranked first is what the formulas say, and what cannot run is left out."""

import dataclasses

import msgspec
import pytest
import torch

import manyhands as mh
from manyhands.cluster import Cluster
from manyhands.costs import PieceTime
from manyhands.lab.calibration.measure import piece_times
from manyhands.lab.planning.candidates import Candidate, candidates
from manyhands.lab.planning.timing import asked_of, for_payload, predict, seconds_of

SIZE = 250_000
"""Parameters: 1 MB."""


def job(batch: int = 64) -> mh.Job:
    data = torch.utils.data.TensorDataset(torch.zeros(batch, 500), torch.zeros(batch, 500))
    return mh.Job(
        model=lambda: torch.nn.Linear(500, 500, bias=False),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=torch.nn.functional.mse_loss,
        data=data,
        global_batch=batch,
        epochs=1,
        metrics=(),
    )


def calibration(per_sample: float = 0.001, cv: float = 0.0) -> mh.Calibration:
    compute = tuple(
        mh.ComputeTime(samples=samples, seconds=per_sample * samples, cv=cv, data=0.0, steps=9)
        for samples in (8, 64)
    )
    return mh.Calibration(date="", job="job", parameters=4 * SIZE, compute=compute)


def rate(strategy: str, cluster: str, workers: int, slow: tuple[mh.Pace, ...] = ()) -> float:
    found = Candidate(mh.strategy(strategy), workers)
    return predict(job(), found, Cluster.parse(cluster), calibration(), slow).rate


def test_one_worker_goes_at_its_measured_speed() -> None:
    assert rate("single()", "4 hosts of 1 worker, 1gbit", 1) == pytest.approx(1000, rel=0.01)


def test_allreduce_takes_as_long_as_computing_and_the_ring() -> None:
    # 16 ms of computing; of 1 MB in a bucket each worker sends 2·(3/4) MB at 12.5 MB/s: 120 ms.
    found = rate("allreduce()", "4 hosts of 1 worker, 100mbit", 4)
    assert found == pytest.approx(64 / (0.016 + 0.12), rel=0.03)


def test_rare_exchanges_are_seen_at_their_true_cost() -> None:
    # 32 steps of 16 ms; then four workers send 1 MB each to one server, through its port of
    # 12.5 MB/s, and get as much back: 0.51 s and 0.64 s for 2,048 samples. Streams share the port
    # unequally, so that a worker whose answer came early also sends before the others do: of one
    # of the two transfers only a quarter is left to wait for, at best.
    # An epoch ends a round, so there are more than 32 batches in one.
    zeros = torch.zeros(1, 500).expand(64 * 64, 500)
    long = dataclasses.replace(job(), data=torch.utils.data.TensorDataset(zeros, zeros))
    cluster = Cluster.parse("4 hosts of 1 worker, 100mbit")
    candidate = Candidate(mh.strategy("diloco(every=32)"), 4)
    found = predict(long, candidate, cluster, calibration(), ()).rate
    assert 2048 / (0.512 + 0.64) <= found <= 2048 / (0.512 + 0.32 + 0.08)


def test_a_short_virtual_run_has_the_speed_of_a_long_one() -> None:
    # The first parameters are 4 MB through a port of 1.25 MB/s: 3.2 s, and 24 steps take 0.9 s.
    found = Candidate(mh.strategy("asynchronous(codec=topk(0.01))"), 4)
    about = (job(), found, Cluster.parse("4 hosts of 1 worker, 10mbit"), calibration())
    short, long = (predict(*about, steps=steps, repeats=1).rate for steps in (24, 192))
    assert short == pytest.approx(long, rel=0.1)


@pytest.mark.parametrize(("strategy", "replicas"), [("gossip()", 2), ("ensemble()", 0)])
def test_peers_send_receive_and_do_what_a_server_does(strategy: str, replicas: int) -> None:
    # 16 ms of computing; an exchange of 10 ms for each replica that is sent to another worker.
    known = msgspec.structs.replace(calibration(), exchange=0.01, served=0.004)
    where = Cluster.parse("4 hosts of 1 worker, 1gbit")
    seconds = seconds_of(job(), Candidate(mh.strategy(strategy), 4), where, known)
    assert seconds == (pytest.approx(0.016), pytest.approx(0.01 * replicas))


def test_replicas_on_sites_synchronise_every_so_many_steps() -> None:
    # 16 ms of computing; 1 MB sharded by two workers within a site in no time. Of the 0.5 MB of
    # each worker as much is sent to the other site every 32 steps, by two workers at a time through
    # an uplink of 1.25 MB/s.
    where = "2 sites of 2 workers, 1000gbit within, 10mbit and 0ms between"
    found = rate("hybrid(data=2, shard=2, outer=averaging(every=32))", where, 4)
    assert found == pytest.approx(32 * 64 / (32 * 0.016 + 1.0 / 1.25), rel=0.05)


def test_on_sites_a_plan_considers_replicas_of_several_workers() -> None:
    where = Cluster.parse("2 sites of 2 workers, 10gbit within, 10mbit and 20ms between")
    found = [one for one in candidates(job(), where, [4]) if isinstance(one, Candidate)]
    assert "hybrid(data=2, shard=2, outer=diloco(every=32))" in map(str, found)
    alike = Cluster.parse("4 hosts of 1 worker, 1gbit")
    others = [one for one in candidates(job(), alike, [4]) if isinstance(one, Candidate)]
    assert not any("hybrid" in str(one) for one in others)


@pytest.mark.parametrize(("served", "seconds"), [(None, 4 * 0.01), (0.004, 0.006 + 4 * 0.004)])
def test_workers_wait_for_each_other_while_a_server_is_busy(served, seconds) -> None:
    # 16 ms of computing; an exchange of 10 ms, of which the server takes all or 4 ms.
    known = msgspec.structs.replace(calibration(), exchange=0.01, served=served)
    where = Cluster.parse("4 hosts of 1 worker, 100gbit")
    found = predict(job(), Candidate(mh.strategy("synchronous()"), 4), where, known).rate
    assert 64 / found == pytest.approx(0.016 + seconds, rel=0.05)


def test_links_lose_what_headers_take() -> None:
    declared = Cluster.parse("2 sites of 2 workers, 1gbit within, 100mbit and 40ms between")
    left = for_payload(declared)
    for pair in (("host-0", "host-1"), ("host-0", "host-2")):
        before, after = declared.between(*pair), left.between(*pair)
        assert before is not None
        assert after is not None
        assert after.bandwidth == pytest.approx(1448 / 1514 * before.bandwidth)
        assert after.latency == before.latency


def test_a_slow_worker_holds_up_those_who_wait() -> None:
    paces = (mh.Pace.read("3:4x"),)
    waiting = rate("allreduce()", "4 hosts of 1 worker, 10gbit", 4, paces)
    free = rate("asynchronous()", "4 hosts of 1 worker, 10gbit", 4, paces)
    assert waiting == pytest.approx(1000, rel=0.05)
    assert free > 2 * waiting


@pytest.mark.parametrize("strategy", ["allreduce", "synchronous"])
def test_batches_that_are_divided_by_speed_are_predicted_as_they_are_once_it_is_known(
    strategy,
) -> None:
    # Four workers as fast as 3.25 of them: 64 samples of 1 ms take 19.7 ms instead of 64.
    paces = (mh.Pace.read("3:4x"),)
    about = ("4 hosts of 1 worker, 1000gbit and 0ms", 4, paces)
    assert rate(f"{strategy}()", *about) == pytest.approx(1000, rel=0.02)
    assert rate(f"{strategy}(shares=by_speed)", *about) == pytest.approx(3250, rel=0.07)


def test_what_is_considered_has_servers_on_every_host_and_shares_of_unequal_workers() -> None:
    def found(where: str, **asked: bool) -> set[str]:
        among = candidates(job(), Cluster.parse(where), [4], **asked)
        return {str(one) for one in among if isinstance(one, Candidate)}

    sharded = {"local_sgd(servers=2)", "diloco(every=32, servers=2)"}
    sharded |= {"averaging(every=8, servers=2)", "easgd(every=8, servers=2)"}
    assert sharded <= found("2 hosts of 2 workers, 1gbit")
    assert sharded <= found("4 workers, 1gbit, servers on 2 hosts apart")
    assert not sharded & found("4 workers")
    by_speed = {"allreduce(shares=by_speed)", "synchronous(servers=2, shares=by_speed)"}
    assert by_speed <= found("2 hosts of 2 workers, 1gbit", unequal=True)
    assert not by_speed & found("2 hosts of 2 workers, 1gbit")


def test_of_strategies_that_are_equally_fast_the_simplest_is_advised() -> None:
    def row(strategy: str, rate: float) -> mh.PlannedStrategy:
        return mh.PlannedStrategy(strategy, 4, rate, 0.99 * rate, 1.01 * rate, "computing")

    ranking = (
        row("synchronous(servers=4, codec=int8())", 1010.0),
        row("synchronous(servers=4)", 1005.0),
        row("gossip()", 1004.0),
        row("synchronous()", 1000.0),
        row("allreduce()", 800.0),
    )
    found = mh.Plan(ranking, (), "4 workers, 1gbit", calibration(), 0.0)
    assert found.choice is ranking[3]
    assert found.verdict.startswith("synchronous() on 4 workers: 1,000 samples/s; cannot be told")


def test_a_text_its_first_hosts_and_a_calibration_are_the_same_machines_to_the_bit() -> None:
    names = [f"host-{number}" for number in range(4)]
    measured = for_payload(Cluster.parse("2 workers, 1gbit")).link
    assert measured is not None
    hosts = tuple(
        mh.CalibratedHost(name=name, workers=1, samples=16, seconds=0.016) for name in names
    )
    links = tuple(
        mh.CalibratedLink(
            sender=one, receiver=two, bandwidth=measured.bandwidth, latency=measured.latency
        )
        for one in names
        for two in names
        if one != two
    )
    known = calibration(cv=0.1)
    calibrated = msgspec.structs.replace(known, hosts=hosts, links=links).cluster
    assert calibrated is not None
    where = {
        "text": for_payload(Cluster.parse("4 workers, 1gbit")),
        "first": for_payload(Cluster.parse("7 workers, 1gbit")).first(4),
        "in turn": for_payload(Cluster.parse("4 hosts of 1 worker, 1gbit, servers in turn")),
        "calibration": calibrated,
    }
    for strategy in ("synchronous(servers=4)", "asynchronous(servers=3)", "synchronous()"):
        found = Candidate(mh.strategy(strategy), 4)
        rates = {
            name: predict(job(), found, cluster, known, repeats=1, reasons=False).rate
            for name, cluster in where.items()
        }
        assert len(set(rates.values())) == 1, (strategy, rates)


def test_a_worker_that_does_most_of_the_work_is_named() -> None:
    # 1 MB through a port of 12.5 MB/s for all workers but the first, which is beside the server.
    asked = {"strategies": ["asynchronous()", "synchronous()"], "workers": [4]}
    beside = mh.plan(job(), "4 workers, 100mbit", calibration(), **asked)
    (note,) = beside.notes
    assert note.startswith("asynchronous() on 4 workers: worker 0 had ")
    assert note.endswith(" % of the samples; an equal part is 25 %")
    assert not mh.plan(job(), "4 workers, 100mbit, servers apart", calibration(), **asked).notes


def test_where_the_network_is_too_slow_the_advice_is_not_to_distribute() -> None:
    found = mh.plan(
        job(), "4 hosts of 1 worker, 1mbit", calibration(), strategies=["allreduce()", "single()"],
        workers=[1, 4],
    )  # fmt: skip
    assert found.verdict.startswith("do not distribute")
    assert found.ranking[0].workers == 1


def test_a_ranking_has_numbers_reasons_and_what_was_left_out() -> None:
    found = mh.plan(
        job(), "2 sites of 2 workers, 1gbit within, 20mbit and 20ms between", calibration(cv=0.1)
    )
    names = {(one.strategy, one.workers) for one in found.ranking}
    assert ("allreduce()", 4) in names
    assert ("allreduce()", 2) in names
    assert ("single()", 1) in names
    rates = [one.rate for one in found.ranking]
    assert rates == sorted(rates, reverse=True)
    assert all(one.low <= one.rate <= one.high for one in found.ranking)
    assert all(
        "on 4 workers" in one.strategy or "on 2 workers" in one.strategy for one in found.left_out
    )
    across = next(one for one in found.ranking if (one.strategy, one.workers) == ("allreduce()", 4))
    within = next(one for one in found.ranking if (one.strategy, one.workers) == ("allreduce()", 2))
    assert across.limit == "the network"
    assert within.rate > across.rate


def test_predictions_that_are_near_cannot_be_told_apart() -> None:
    found = mh.plan(
        job(), "2 hosts of 1 worker, 10gbit", calibration(cv=0.1),
        strategies=["averaging(every=8)", "local_sgd(every=8)"], workers=[2],
    )  # fmt: skip
    assert len(found.best) == 2
    assert "cannot be told apart from" in found.verdict


def test_the_first_hosts_of_a_cluster() -> None:
    sites = Cluster.parse("2 sites of 4 workers, 1gbit within, 100mbit and 40ms between")
    half = sites.first(4)
    assert [host.name for host in half.hosts] == ["host-0", "host-1", "host-2", "host-3"]
    assert len(half.sites) == 1
    assert half.worker_hosts(4) == ("host-0", "host-1", "host-2", "host-3")
    assert Cluster.parse("2 hosts of 4 workers, 1gbit").first(6).worker_hosts(6) == (
        *("host-0",) * 4,
        *("host-1",) * 2,
    )
    with pytest.raises(ValueError, match="has 8 workers, not 9"):
        sites.first(9)


def test_what_does_not_fit_into_a_hosts_memory_is_left_out() -> None:
    # A process takes 35 MiB and 256 kB of data. Parameters and gradients are 2 MB of a worker, and
    # 4 MB under gossip, which keeps what it serves to its neighbours, too: 81.9 MB for two.
    # The agent and the fork server load torch, 150 MiB each: 396.5 MB in all.
    asked = {"strategies": ["allreduce()", "gossip()", "fully_sharded()"], "workers": [4]}
    tight = "2 hosts of 2 workers, 1gbit, 397MB of memory"
    found = mh.plan(job(), tight, calibration(), **asked)
    assert {one.strategy for one in found.ranking} == {
        "single()", "allreduce()", "gossip()", "fully_sharded()"
    }  # fmt: skip
    assert not found.left_out
    found = mh.plan(job(), tight.replace("397MB", "395MB"), calibration(), **asked)
    left = {one.strategy: one.why for one in found.left_out}
    assert "gossip() on 4 workers" in left
    assert "host-0: 2 workers need at least" in left["gossip() on 4 workers"]
    assert "395 MB are available" in left["gossip() on 4 workers"]
    assert "fully_sharded()" in {one.strategy for one in found.ranking}
    found = mh.plan(job(), tight.replace("397MB", "300MB"), calibration(), **asked)
    assert not found.ranking
    assert found.verdict == "no strategy can train this job on this cluster"


def test_a_cluster_is_read_before_anything_is_measured() -> None:
    with pytest.raises(ValueError, match="is not a cluster: expected a size such as"):
        mh.plan(job(), "4 workers, 16XB of memory")


@pytest.mark.parametrize(
    ("times", "slowest"),
    [((1.0, 1.0, 1.0, 1.0), 1 / 4), ((1.0, 1.0, 4.0, 2.0), 4 / 8), ((), 1 / 4)],
)
def test_a_pipeline_is_as_fast_as_its_slowest_stage_was_measured(times, slowest) -> None:
    # Four layers of the same multiplications, a stage each; 64 microbatches of 1 ms in all stages
    # together, links without delay: (64 + 3 of the others) of the slowest one's part.
    chained = dataclasses.replace(
        job(), model=lambda: torch.nn.Sequential(*(torch.nn.Linear(500, 500) for _ in range(4)))
    )
    pieces = tuple(PieceTime(str(n), one, 2 * one) for n, one in enumerate(times))
    known = msgspec.structs.replace(calibration(), pieces=pieces)
    found = Candidate(mh.strategy("pipeline(microbatches=64)"), 4)
    where = Cluster.parse("4 hosts of 1 worker, 1000gbit and 0ms")
    seconds = 64 / predict(chained, found, where, known).rate
    others = 0.001 * (1 - slowest)
    assert seconds == pytest.approx(64 * 0.001 * slowest + others, rel=0.05)


def test_a_calibration_measures_the_pieces_of_a_model() -> None:
    layers = (torch.nn.Linear(500, 2_000), torch.nn.Linear(2_000, 500))
    chained = dataclasses.replace(job(), model=lambda: torch.nn.Sequential(*layers))
    found = piece_times(chained, 64)
    assert [one.first for one in found] == ["0", "1"]
    assert all(one.forward > 0 and one.backward > 0 for one in found)
    with_objective = dataclasses.replace(
        chained, loss=None, objective=lambda model, batch: model(batch[0]).mean()
    )
    assert piece_times(with_objective, 64) == ()


@pytest.mark.parametrize("strategy", ["asynchronous", "ssp", "synchronous"])
def test_servers_with_a_part_of_the_parameters_are_busy_for_that_part_of_the_time(
    strategy: str,
) -> None:
    """A server with all of them is busy for 0.4 s with each of eight updates, and limits the run.

    The calibration measured one server; each of N has 1/N of the parameters.
    """
    known = msgspec.structs.replace(calibration(1e-6), exchange=0.4, served=0.4)
    where = Cluster.parse("8 hosts of 1 worker, 1000gbit and 1us")
    rates = {}
    for servers in (1, 2, 4, 8):
        found = Candidate(mh.strategy(f"{strategy}(servers={servers})"), 8)
        rates[servers] = predict(job(), found, where, known, repeats=1, reasons=False).rate
    # Eight updates of 8 samples each.
    assert rates[1] == pytest.approx(64 / (8 * 0.4), rel=0.05)
    for servers in (2, 4, 8):
        assert rates[servers] == pytest.approx(servers * rates[1], rel=0.1)


def test_a_peer_has_all_parameters_and_is_busy_as_long_as_one_server() -> None:
    known = msgspec.structs.replace(calibration(), exchange=0.4, served=0.4)
    where = Cluster.parse("4 hosts of 1 worker, 1000gbit and 1us")
    asked = asked_of(job(), Candidate(mh.strategy("gossip()"), 4), where, known)
    assert asked.service in (None, 0.4)
