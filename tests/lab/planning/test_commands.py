"""The command of every row of a plan, read back, asks for what was predicted."""

import dataclasses
import shlex
from pathlib import Path

import pytest
import torch
import typer

import manyhands as mh
from manyhands.cli.app import app
from manyhands.cli.train import _read
from manyhands.lab.network_run import hosts_of
from manyhands.lab.networks.sites import check_live
from manyhands.lab.planning.candidates import Candidate, candidates, numbers_of_workers
from manyhands.lab.planning.commands import PlannedJob, command_of
from manyhands.lab.planning.timing import asked_of, for_payload
from manyhands.live.hosts.host_list import Hosts
from manyhands.script.origin import override
from manyhands.strategies import protocol_of
from manyhands.verbs.command import Command
from manyhands.verbs.simulate import plan as plan_virtual
from manyhands.verbs.train import TrainOptions
from manyhands.verbs.train import _plan as plan_live

STRATEGIES = (
    "allreduce()",
    "synchronous()",
    "asynchronous(servers=3)",
    "synchronous(servers=2, codec=topk(density=0.05))",
    "diloco(every=4, servers=2)",
    "gossip()",
    "hierarchical()",
    "fully_sharded()",
    "allreduce(shares=by_speed)",
)
CLUSTERS = (
    "4 workers, 1gbit, servers at hosts 3 and 1",
    "2 hosts of 3 workers, 1gbit and 1ms, servers on 2 hosts apart",
    "2 sites of 2 workers, 1gbit within, 100mbit and 20ms between, servers at site 1",
    "3 hosts of 2 workers, 1gbit, 8 cores, servers at host 1",
)
MORE = (
    "4 workers",
    "4 workers, 1gbit",
    "4 workers, 1gbit, servers apart",
    "2 hosts of 2 workers, 1gbit, servers at host 0",
    "2 sites of 2 hosts of 2 workers, 1gbit within, 100mbit between",
)
UNEQUAL = mh.Cluster(
    tuple(
        mh.Host(name, 4, 1 << 30, workers=count) for name, count in (("a", 1), ("b", 0), ("c", 3))
    ),
    links=(
        ("a", "b", mh.Link(1e8, 1e-4)),
        ("a", "c", mh.Link(1e7, 1e-4)),
        ("b", "c", mh.Link(1e8, 1e-4)),
    ),
)


def job() -> mh.Job:
    data = torch.utils.data.TensorDataset(torch.zeros(48, 20), torch.zeros(48, 20))
    return mh.Job(
        model=lambda: torch.nn.Linear(20, 20),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=torch.nn.functional.mse_loss,
        data=data,
        validation=data,
        global_batch=24,
        samples=96,
        metrics=(),
    )


def calibration(hosts: tuple[mh.CalibratedHost, ...] = ()) -> mh.Calibration:
    compute = tuple(
        mh.ComputeTime(samples=n, seconds=0.001 * n, cv=0.0, data=0.0, steps=9) for n in (8, 64)
    )
    names = [host.name for host in hosts]
    links = tuple(
        mh.CalibratedLink(sender=one, receiver=other, bandwidth=1.2e8, latency=1e-4)
        for one in names
        for other in names
        if one != other
    )
    return mh.Calibration(
        date="", job="job", parameters=1_680, compute=compute, hosts=hosts, links=links
    )


CALIBRATED = tuple(
    mh.CalibratedHost(name=name, workers=workers, samples=8, seconds=0.008, cores=4)
    for name, workers in (("here", 1), ("there", 2), ("yonder", 2))
)


def parsed(command: str) -> tuple[dict[str, object], list[str]]:
    """The options that the command line has in a command, and the script's own arguments."""
    program, verb, *words = shlex.split(command)
    assert (program, verb) == ("manyhands", "train")
    context = typer.main.get_group(app).commands["train"].make_context("train", words)
    arguments = context.params.pop("arguments") or []
    return context.params, list(arguments)


def check(found: mh.Plan, asked: PlannedJob, made: mh.Job, slow: tuple[str, ...]) -> None:
    assert found.where is not None
    seen = set()
    for row in found.ranking:
        options, arguments = parsed(command_of(found, row, asked))
        assert options.pop("script") == Path(asked.script)
        assert arguments == list(asked.arguments)
        assert options.pop("job") == asked.job
        read = _read({name: value for name, value in options.items() if name in vars(Command())})
        command = Command(**read)
        part = found.where.first(row.workers)
        hosts = None
        if command.cluster is not None:
            declared = mh.Cluster.parse(command.cluster)
            check_live(declared)
            assert declared == part
            hosts = hosts_of(declared)
        elif command.hosts is not None:
            hosts = Hosts.read(command.hosts)
            assert dict(hosts.counts).items() <= {h.name: h.workers for h in part.hosts}.items()
        seen.add("cluster" if command.cluster else "hosts" if command.hosts else "one host")
        live = plan_live(made, TrainOptions(), command, hosts)
        assert live.workers == row.workers
        # What is predicted is what the virtual run of the prediction is made of.
        candidate = Candidate(mh.strategy(row.strategy), row.workers)
        virtual = plan_virtual(
            made,
            dataclasses.replace(
                asked_of(made, candidate, for_payload(found.where), found.calibration, found.slow),
                time_only=True,
            ),
            "plan",
        )
        islands = part.islands()
        fitted = mh.strategy(row.strategy)
        fitted = fitted.on_islands(islands) if hasattr(fitted, "on_islands") else fitted
        assert live.strategy == fitted
        names = hosts.names[:1] if hosts else tuple(host.name for host in part.hosts)[:1]
        servers = live.strategy.needs(row.workers).server_processes
        assert (live.server_hosts or names * servers) == virtual.places.servers
        if hosts is not None:
            on = tuple(name for name, count in hosts.counts for _ in range(count))
            assert on == virtual.places.workers
        applies = tuple(map(mh.Pace.read, slow))
        applies = tuple(one for one in applies if one.worker is None or one.worker < row.workers)
        assert live.slow == applies
        trained = override(made, live.overrides)
        assert trained.batch_sizes.at(0) == (asked.global_batch or made.batch_sizes.at(0))
        assert trained.target == found.target
    assert seen


def is_divided(one: Candidate, where: mh.Cluster) -> bool:
    """Whether islands of a strategy are those of the cluster; a prediction leaves out others."""
    protocol = protocol_of(one.strategy)
    try:
        if protocol is not None:
            protocol.on_islands(where.first(one.workers).islands())
    except ValueError:
        return False
    return True


def everything(where: mh.Cluster, slow: tuple[str, ...] = (), target: str | None = None) -> mh.Plan:
    """A plan with all that is considered, not timed."""
    counts = numbers_of_workers(where)
    about = dataclasses.replace(job(), global_batch=48)
    usual = [*candidates(about, where, counts, unequal=True)]
    usual += candidates(about, where, counts, STRATEGIES)
    rows = tuple(
        mh.PlannedStrategy(str(one), one.workers, 1.0, 1.0, 1.0, "")
        for one in dict.fromkeys(usual)
        if isinstance(one, Candidate) and is_divided(one, where)
    )
    assert len(rows) > 20
    paces = tuple(map(mh.Pace.read, slow))
    named = {"where": where, "slow": paces, "target": target}
    return mh.Plan(rows, (), str(where), calibration(), 0.0, **named)


@pytest.mark.parametrize(
    "where", [*CLUSTERS, *(pytest.param(one, marks=pytest.mark.slow) for one in MORE)]
)
def test_a_command_asks_for_what_was_predicted(where: str) -> None:
    slow = ("1:3x", "all:1.1x")
    found = everything(mh.Cluster.parse(where), slow, "loss <= 0.1")
    check(found, PlannedJob("train.py", ("--fast", "a b"), "job", 48), job(), slow)


@pytest.mark.parametrize("named", [(), ("c", "a")])
def test_a_command_names_the_hosts_of_a_cluster_without_a_text(named: tuple[str, ...]) -> None:
    found = everything(dataclasses.replace(UNEQUAL, servers=named))
    check(found, PlannedJob("train.py", global_batch=48), job(), ())


def test_a_command_names_the_hosts_of_a_calibration() -> None:
    found = mh.plan(job(), None, calibration(CALIBRATED), strategies=STRATEGIES[:3])
    check(found, PlannedJob("train.py"), job(), ())
    whole = next(one for one in found.ranking if one.workers == 5 and "servers=3" in one.strategy)
    command = command_of(found, whole, PlannedJob("train.py"))
    assert "--hosts 'here:1, there:2, yonder:2'" in command


def test_a_command_of_one_machine_has_its_workers() -> None:
    found = mh.plan(job(), None, calibration(), strategies=STRATEGIES[:2], workers=[2])
    check(found, PlannedJob("train.py"), job(), ())
