"""Comparisons on a virtual cluster: the whole of it, on this machine and in no time."""

from pathlib import Path

import pytest
import torch

import manyhands as mh
from manyhands.lab.compare import Compared
from manyhands.reports import Run, read_results
from manyhands.reports.comparison.verdict import verdict

STRATEGIES = "synchronous, asynchronous, ssp(staleness=2)"


def a_job(loss=torch.nn.functional.cross_entropy) -> mh.Job:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(256, 4, generator=generator)
    data = torch.utils.data.TensorDataset(inputs, (inputs.sum(1) > 0).long())
    return mh.Job(
        model=lambda: torch.nn.Linear(4, 2),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=loss,
        data=data,
        validation=data,
        global_batch=16,
        epochs=2,
    )


def compared(output: Path, strategies: str = STRATEGIES, **settings: object) -> Compared:
    settings = {"workers": 4, "repeats": 2} | settings
    return mh.compare(a_job(), strategies, virtual=True, output=output, **settings)


def times(folder: Path) -> dict[str, int]:
    """When the traces of the runs were written."""
    return {path.name: (path / "trace").stat().st_mtime_ns for path in folder.glob("runs/*")}


def test_every_entrant_runs_in_every_repeat_under_the_same_seeds(tmp_path: Path) -> None:
    made = compared(tmp_path, seed=3, price=2.0)
    assert made.results == read_results(tmp_path)
    results = made.results
    assert results.strategies == ("synchronous()", "asynchronous()", "ssp(staleness=2)")
    assert [(run.repeat, run.seed) for run in results.runs] == [(0, 3)] * 3 + [(1, 4)] * 3
    assert [run.strategy for run in results.runs[:3]] == [
        run.strategy for run in reversed(results.runs[3:])
    ]
    for run in results.runs:
        assert (run.kind, run.status, run.samples) == ("virtual", "finished", 512)
        assert run.cost == pytest.approx(2.0 * 4 * (run.start_up + run.seconds) / 3600)
        assert (tmp_path / run.folder / "trace").is_dir()
    assert results.processes_per_core is None
    assert results.budget == "2 epochs (512 samples)"
    assert "synchronous()" in made.summary()
    shown = " ".join(made.summary().split())
    assert all(line in shown for line in made.verdict.splitlines())


def test_a_run_that_was_made_is_not_made_again_and_more_repeats_are_added(tmp_path: Path) -> None:
    first = compared(tmp_path)
    before = times(tmp_path)
    again = compared(tmp_path)
    assert times(tmp_path) == before
    assert again.results.runs == first.results.runs
    more = compared(tmp_path, repeats=3)
    assert {name: at for name, at in times(tmp_path).items() if name in before} == before
    assert len(more.results.runs) == 9
    assert more.results.runs[:6] == first.results.runs
    with pytest.raises(ValueError, match="other settings"):
        compared(tmp_path, workers=5)


def test_what_is_planted_is_found(tmp_path: Path) -> None:
    """A strategy slowed by 20 % is slower; the same strategy twice is not different."""
    made = compared(
        tmp_path,
        "asynchronous, asynchronous slow all:1.2x, asynchronous",
        repeats=3,
        times="lognormal(0.1, cv=0.1)",
    )
    found = verdict(made.results)
    assert found is not None
    speed = found.contests["speed"]
    assert speed.behind == ("asynchronous() slow all:1.2x",)
    assert len(speed.even) == 1
    assert made.results.paced.startswith("under asynchronous() slow all:1.2x, all workers compute")


def test_one_slow_worker_holds_up_those_who_wait_for_it(tmp_path: Path) -> None:
    plain = compared(tmp_path / "plain", repeats=1, times="constant(0.1)")
    slowed = compared(tmp_path / "slowed", repeats=1, times="constant(0.1)", slow=["2:4x"])
    lost = {
        one.strategy: other.seconds / one.seconds
        for one, other in zip(plain.results.runs, slowed.results.runs, strict=True)
    }
    assert lost["synchronous()"] == pytest.approx(4, rel=0.1)
    assert lost["asynchronous()"] < 2
    assert slowed.results.paced == "worker 2 computes 4 times as long"


def test_a_run_that_fails_is_a_result_and_the_others_are_still_compared(tmp_path: Path) -> None:
    calls = [0]

    def breaks(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        calls[0] += 1
        if calls[0] == 40:
            raise RuntimeError("the fortieth")
        return torch.nn.functional.cross_entropy(outputs, targets)

    def again() -> Compared:
        # In this process, because the runs share a counter.
        settings = {"workers": 2, "repeats": 1, "processes": 1}
        return mh.compare(a_job(breaks), STRATEGIES, virtual=True, output=tmp_path, **settings)

    statuses = {run.strategy: (run.status, run.words) for run in again().results.runs}
    assert statuses["synchronous()"][0] == "failed"
    assert "the fortieth" in statuses["synchronous()"][1]
    assert statuses["asynchronous()"] == statuses["ssp(staleness=2)"] == ("finished", "")
    before = times(tmp_path)
    kept = {run.strategy: run.status for run in again().results.runs}
    assert kept["synchronous()"] == "failed", "what failed is not tried again"
    assert times(tmp_path) == before


def test_mistakes_are_answered_with_the_fix_before_anything_is_written(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for settings, why in [
        ({"strategies": "synchronous, allreduce(codec=int8())"}, "of allreduce.. is not simulated"),
        ({"strategies": "softsync(wait_for=9)"}, "softsync"),
        ({"times": "sometimes(1)"}, "there is no compute time"),
        ({"bandwidth": "fast"}, "expected a bandwidth such as"),
        ({"target": "f2 >= 1"}, "names no metric"),
    ]:
        with pytest.raises((TypeError, ValueError), match=why):
            compared(out, **({"strategies": STRATEGIES} | settings))
        assert not out.exists()
    with pytest.raises(ValueError, match="bandwidth describes a virtual cluster"):
        mh.compare(JOB, "allreduce", workers=2, bandwidth="1gbit", output=out)


ISLANDS = "hierarchical(outer=averaging(every=1), islands={})"


def hosts(made: Compared) -> dict[str, list[str]]:
    """By strategy, the hosts of the workers."""
    return {
        run.strategy: [one.header.host for one in Run(made.folder / run.folder).trace.workers]
        for run in made.results.runs
    }


def test_all_strategies_run_on_the_same_hosts_which_the_results_state(tmp_path: Path) -> None:
    links = {"bandwidth": "1mbit", "repeats": 1, "workers": 5}
    three = f"synchronous, {ISLANDS.format(2)}, gossip"
    made = compared(tmp_path / "a", three, hosts=2, **links)
    blocks = ["host-0"] * 3 + ["host-1"] * 2
    assert list(hosts(made).values()) == [blocks] * 3
    assert read_results(tmp_path / "a").hosts == 3
    assert made.results.network == (
        "virtual links of 1mbit, 0.1ms each way, between 2 hosts of workers and 1 host of servers"
    )
    each = compared(tmp_path / "b", f"{three}, asynchronous(servers=2)", **links)
    assert list(hosts(each).values()) == [[f"host-{rank}" for rank in range(5)]] * 4
    assert each.results.hosts == 7
    one = compared(tmp_path / "c", "asynchronous", repeats=1)
    assert (one.results.hosts, one.results.network) == (1, "")


def test_all_strategies_run_on_as_many_hosts_as_are_asked_for(tmp_path: Path) -> None:
    both = f"{ISLANDS.format(2)}, {ISLANDS.format(4)}, synchronous"
    links = {"bandwidth": "1mbit", "repeats": 1}
    with pytest.raises(ValueError, match="4 workers need 1 to 4 hosts, got 5"):
        compared(tmp_path, both, hosts=5, **links)
    with pytest.raises(ValueError, match="requires the bandwidth of links"):
        compared(tmp_path, both, hosts=2, repeats=1)
    made = compared(tmp_path, both, hosts=2, **links)
    assert list(hosts(made).values()) == [["host-0", "host-0", "host-1", "host-1"]] * 3
    assert made.results.job["hosts"] == "2"


JOB = a_job()


def test_more_workers_have_smaller_shares_and_take_less_time_for_them(tmp_path: Path) -> None:
    made = compared(tmp_path, "asynchronous", workers=(1, 2, 4), repeats=1, times="constant(0.4)")
    seconds = {run.workers: run.seconds for run in made.results.runs}
    assert seconds[1] == pytest.approx(0.4 * 512 / 16, rel=0.01)
    assert seconds[2] == pytest.approx(seconds[1] / 2, rel=0.05)
    assert seconds[4] == pytest.approx(seconds[1] / 4, rel=0.1)
