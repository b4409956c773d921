"""Without numbers a virtual run has the times, bytes and decisions that it has with them."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn
from virtual_jobs import a_job

import manyhands as mh
from manyhands.protocols import ALL
from manyhands.reports import settings
from manyhands.strategies import strategy

WORKERS = 5
STRATEGIES = (
    "synchronous(servers=2)",
    "central_storage()",
    "softsync(wait_for=3, late=drop)",
    "ssp(staleness=2)",
    "ssp(staleness=0, servers=2)",
    "asynchronous(servers=3, delay_compensation=0.1)",
    "hogwild()",
    "averaging(every=2, servers=2)",
    "local_sgd(every=3)",
    "diloco(every=2)",
    "diloco(every=4, fragments=2, overlap=1, wait_for=2)",
    "hierarchical(outer=diloco(every=2), islands=2)",
    "hierarchical(outer=synchronous(), islands=2)",
    "easgd(order=parallel)",
    "easgd(order=asynchronous, servers=2)",
    "easgd(order=round_robin)",
    "gossip(order=lockstep)",
    "gossip(order=asynchronous)",
    "push_sum()",
    "broadcast(codec=none)",
    "ensemble()",
)
ONE_HOST = {"central_storage", "hogwild"}


class Model(nn.Module):
    """With a buffer that is averaged, a tied weight, and enough tensors for several shards."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.tied, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.tied.weight = self.first.weight
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.mean.lerp_(inputs.mean(0), 0.1)
        return self.last(self.tied(self.first(inputs - self.mean)))


def data(size: int) -> torch.utils.data.TensorDataset:
    inputs = torch.randn(size, 4, generator=torch.Generator().manual_seed(7))
    return torch.utils.data.TensorDataset(inputs, inputs[:, :2])


def both(folder: Path, text: str, job: mh.Job | None = None, **conditions: Any) -> mh.Run:
    """Simulate with numbers and without, compare the traces; return the run without."""
    job = job or a_job(model=Model, data=data(83), validation=data(40), epochs=1.5)
    given = {"workers": WORKERS, "seed": 3} | conditions
    numbers = mh.simulate(job, text, output=folder / "numbers", **given)
    times = mh.simulate(job, text, output=folder / "times", time_only=True, **given)
    assert records(numbers) == records(times)
    assert numbers.seconds == times.seconds
    return times


def records(run: mh.Run) -> dict[str, list[Any]]:
    """By process, its trace without that which is a number of the model."""
    return {
        path.name: [line for line in map(msgspec.json.decode, lines(path)) if not is_number(line)]
        for path in sorted((run.folder / "trace").iterdir())
    }


def lines(path: Path) -> list[bytes]:
    return [line for line in path.read_bytes().splitlines() if line]


def is_number(line: list[Any]) -> bool:
    return line[0] in ("point", "setting") or (line[0], line[2]) == ("event", "parameters")


def test_all_protocols_are_here() -> None:
    assert {type(strategy(text)) for text in STRATEGIES} == set(ALL)


@pytest.mark.parametrize("text", STRATEGIES)
def test_times_are_the_same_on_one_host(text: str, tmp_path: Path) -> None:
    run = both(
        tmp_path, text, times="lognormal(0.1, cv=0.5)", slow=["2:3x"], cores=3, handover="1ms"
    )
    assert run.status == "finished"
    assert run.samples > 60


@pytest.mark.parametrize(
    "text", [text for text in STRATEGIES if text.partition("(")[0] not in ONE_HOST]
)
def test_times_are_the_same_on_slow_links_under_faults(text: str, tmp_path: Path) -> None:
    peers = strategy(text).needs(WORKERS).peer_servers
    server = "worker-1" if peers else "server-0"
    faults = [
        "crash(worker=2, at=0.4, restart=0.5)",
        "pause(worker=3, at=0.3, seconds=0.4)",
        f"cut(a='worker-0', b='{server}', start=0.6, stop=0.9)".replace("'", '"'),
    ]
    if not peers:
        faults += [
            "crash(server=0, at=1.0, restart=0.3)",
            'lose(a="worker-4", b="server-0", at=1.2)',
        ]
    both(
        tmp_path,
        text,
        times="exponential(0.1)",
        bandwidth="20kbit",
        latency="3ms",
        detection="1s",
        service="2ms",
        faults=f"[{', '.join(faults)}]",
    )


def test_there_are_no_numbers(tmp_path: Path) -> None:
    run = both(tmp_path, "asynchronous()")
    assert run.metrics == {}
    assert run.parameters_digest is None
    assert not (run.folder / "model.safetensors").exists()
    assert "time_only no numbers" in run.summary()
    assert "loss" not in run.summary()
    with pytest.raises(FileNotFoundError):
        run.state_dict()


def test_no_batch_is_loaded_and_no_parameter_allocated(tmp_path: Path) -> None:
    def never(*_: Any) -> torch.Tensor:
        raise AssertionError("a loss was computed")

    job = a_job(model=lambda: nn.Linear(1_000_000, 1_000_000), loss=never, epochs=1)
    run = mh.simulate(job, "asynchronous()", time_only=True, bandwidth="100gbit", output=tmp_path)
    assert run.status == "finished"
    # 4 TB, and back again, 40 times, and once at the start.
    sent = sum(sum(each.totals.sent.values()) for each in run.trace.workers)
    assert sent > 40 * 4e12


def test_what_needs_numbers_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    job = a_job(validation=data(40))
    with pytest.raises(ValueError, match=r"computes no metrics.*leave the target out"):
        mh.simulate(job, time_only=True, target="loss <= 0.1", output=out)
    aimed = a_job(validation=data(40), target="loss <= 0.1", epochs=None)
    with pytest.raises(ValueError, match="computes no metrics"):
        mh.simulate(aimed, time_only=True, output=out)
    assert not out.exists()
    aimed = a_job(validation=data(40), target="loss <= 100")
    run = mh.simulate(aimed, time_only=True, output=out)
    assert run.samples == 400
    assert "the target loss <= 100 is not checked" in " ".join(run.summary().split())


def test_a_comparison_of_times_alone(tmp_path: Path) -> None:
    job = a_job(validation=data(40), target="loss <= 1e-9")
    made = {
        time_only: mh.compare(
            job,
            "asynchronous, synchronous",
            workers=3,
            repeats=2,
            virtual=True,
            time_only=time_only,
            output=tmp_path / str(time_only),
        )
        for time_only in (None, True)
    }
    seconds = {key: [run.seconds for run in one.results.runs] for key, one in made.items()}
    assert seconds[None] == seconds[True]
    assert made[True].results.target is None
    assert not any(run.validation or run.loss.value for run in made[True].results.runs)
    assert "asynchronous()" in made[True].verdict
    assert made[True].report is None or made[True].report.exists()
    with pytest.raises(ValueError, match="time_only describes a virtual cluster"):
        mh.compare(JOB, "asynchronous", time_only=True, output=tmp_path / "live")


JOB = a_job()


CODED = (
    "synchronous(servers=2, codec=half())",
    "softsync(wait_for=3, codec=topk(0.2))",
    "ssp(staleness=2, codec=int8(), answer_codec=none)",
    "asynchronous(servers=3, codec=none, answer_codec=topk(0.2))",
    "asynchronous(codec=exact())",
    "averaging(every=2, servers=2, codec=topk(0.2))",
    "local_sgd(every=3, codec=int8())",
    "diloco(every=2, codec=topk(0.2))",
    "easgd(order=parallel, codec=half())",
    "easgd(order=round_robin, codec=topk(0.2))",
    "gossip(order=lockstep, codec=half())",
    "gossip(order=asynchronous, codec=topk(0.2))",
    "broadcast(codec=topk(0.2))",
)


@pytest.mark.parametrize(
    "text",
    [
        text if number % 4 == 0 else pytest.param(text, marks=pytest.mark.slow)
        for number, text in enumerate(CODED)
    ],
)
def test_codecs_of_a_fixed_size_have_their_times(text: str, tmp_path: Path) -> None:
    times = "lognormal(0.1, cv=0.4)"
    both(tmp_path, text, times=times, bandwidth="1mbit", coding="100kB/s", service="1ms")


def test_a_server_may_crash_while_it_encodes(tmp_path: Path) -> None:
    faults = (
        "crash(worker=2, at=0.4, restart=0.5)",
        "pause(worker=3, at=0.3, seconds=0.4)",
        "crash(server=0, at=1.0, restart=0.3)",
        'lose(a="worker-4", b="server-0", at=1.2)',
    )
    run = both(
        tmp_path,
        "softsync(wait_for=3, codec=topk(0.2))",
        times="exponential(0.1)",
        bandwidth="20kbit",
        coding="2kB/s",
        detection="1s",
        faults=f"[{', '.join(faults)}]",
    )
    assert run.status == "finished"


def test_codecs_of_no_fixed_size_have_their_largest_one(tmp_path: Path) -> None:
    given = {"workers": 2, "bandwidth": "100kbit", "time_only": True}
    job = a_job(model=Model, data=data(83), epochs=1)
    largest = mh.simulate(job, "asynchronous(codec=deflate())", output=tmp_path / "1", **given)
    plain = mh.simulate(job, "asynchronous()", output=tmp_path / "2", **given)
    assert largest.seconds >= plain.seconds
    told = {setting.name: setting.value for setting in settings(largest.trace)}
    assert told["time_only"] == "no numbers; bytes of deflate() at most"
