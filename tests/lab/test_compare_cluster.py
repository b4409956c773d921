"""Comparisons on a declared cluster: the same for every strategy, and recorded."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from test_compare_virtual import a_job

import manyhands as mh
from manyhands.cluster import Cluster
from manyhands.reports import Run, read_results
from manyhands.reports.page import write_page

SITES = "2 sites of 2 workers, 1gbit within, 10mbit and 20ms between"
THREE = "diloco(every=4), hierarchical(outer=diloco(every=4)), gossip"
JOB = a_job()


def compared(output: Path, strategies: str = THREE, **settings: object) -> mh.Compared:
    given = {"cluster": SITES, "repeats": 1, "virtual": True} | settings
    return mh.compare(JOB, strategies, output=output, **given)


def places(made: mh.Compared) -> dict[str, dict[str, str]]:
    """By strategy, the host of each process that trains or serves."""
    return {
        run.strategy.partition("(")[0]: {
            process.header.name: process.header.host
            for process in Run(made.folder / run.folder).trace.processes
            if process.header.role in ("worker", "server")
        }
        for run in made.results.runs
    }


def test_all_strategies_run_on_the_declared_cluster_and_islands_are_its_sites(
    tmp_path: Path,
) -> None:
    made = compared(tmp_path)
    found = places(made)
    workers = {f"worker-{rank}": f"host-{rank}" for rank in range(4)}
    assert all(places.items() >= workers.items() for places in found.values())
    assert found["diloco"]["server-0"] == "host-0"
    islands = {"server-0": "host-0", "server-1": "host-2", "server-2": "host-0"}
    assert found["hierarchical"] == workers | islands
    told = {
        setting.name: setting.value
        for process in Run(tmp_path / made.results.runs[1].folder).trace.processes
        for setting in process.settings
    }
    assert told["cluster"] == SITES
    assert told["strategy"] == "hierarchical(outer=diloco(every=4), islands=2)"


def test_an_island_on_a_site_is_as_fast_as_the_site(tmp_path: Path) -> None:
    """Steps within an island cross no uplink, so only every 4th step pays for the way between."""
    made = compared(tmp_path, f"{THREE}, synchronous", times="constant(0.01)")
    rate = {run.strategy.partition("(")[0]: run.rate for run in made.results.runs}
    assert rate["hierarchical"] > 2 * rate["synchronous"]
    assert rate["diloco"] > 1.5 * rate["gossip"]


def test_the_results_record_the_cluster_as_text_and_as_a_value(tmp_path: Path) -> None:
    made = compared(tmp_path, "diloco, gossip")
    results = read_results(tmp_path)
    assert results.cluster == SITES
    assert results.layout == Cluster.parse(SITES)
    assert (results.hosts, results.workers) == (4, (4,))
    assert results.network == f"virtual links of {SITES}"
    assert f"cluster: {SITES}" in " ".join(made.summary().split())
    text = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert [site["uplink"]["latency"] for site in text["layout"]["sites"]] == [0.02, 0.02]
    page = tmp_path / "page.html"
    write_page(results, page)
    assert SITES in page.read_text(encoding="utf-8")
    for name in ("cluster", "layout"):
        del text[name]
    (tmp_path / "results.json").write_text(json.dumps(text), encoding="utf-8")
    old = read_results(tmp_path)
    assert (old.cluster, old.layout) == ("", None)


def test_runs_of_another_cluster_are_not_mixed_in(tmp_path: Path) -> None:
    compared(tmp_path, "diloco")
    with pytest.raises(ValueError, match="other settings"):
        compared(tmp_path, "diloco", cluster=SITES.replace("20ms", "30ms"))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"workers": 5}, "workers is 5, but the cluster has 4: omit one of the two"),
        ({"workers": (2, 4)}, "workers is 2, but the cluster has 4"),
        ({"bandwidth": "1gbit"}, "bandwidth is given twice: leave it out, the cluster determines"),
        ({"hosts": 2}, "hosts is given twice: leave it out, the cluster determines it"),
        ({"network": "1gbit"}, "network makes links between real processes"),
        ({"cluster": "2 sites of 2 workers"}, "its sites have no link to each other"),
        ({"cluster": "4 workers, 1gbit, 8 cores", "virtual": False}, "cores are those of this"),
        ({"cluster": "300 workers, 1gbit", "virtual": False}, "at most 250 hosts, got 300"),
    ],
)
def test_what_contradicts_the_cluster_is_refused(
    tmp_path: Path, given: dict[str, object], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        compared(tmp_path / "out", "diloco", **given)
    assert not (tmp_path / "out").exists()


def test_what_pytorch_executes_live_runs_on_the_same_virtual_cluster(tmp_path: Path) -> None:
    texts = "single, fully_sharded, allreduce, allreduce(algorithm=butterfly)"
    made = compared(tmp_path / "out", texts)
    runs = {run.strategy: run for run in made.results.runs}
    assert {run.status for run in runs.values()} == {"finished"}
    assert runs["single()"].workers == 1
    # Each of a ring's six rounds passes between the sites; of a butterfly's two rounds one does.
    rates = {name: runs[f"allreduce(algorithm={name})"].rate for name in ("butterfly", "ring")}
    assert rates["butterfly"] > 1.5 * rates["ring"]


def test_simulate_runs_on_a_text_and_says_how_to_repeat_it(tmp_path: Path) -> None:
    run = mh.simulate(JOB, "hierarchical", cluster=SITES, output=tmp_path / "a")
    again = mh.simulate(JOB, "hierarchical", cluster=Cluster.parse(SITES), output=tmp_path / "b")
    assert run.parameters_digest == again.parameters_digest
    assert len(run.trace.workers) == 4
    with pytest.raises(ValueError, match="workers is 3, but the cluster has 4"):
        mh.simulate(JOB, "diloco", cluster=SITES, workers=3, output=tmp_path / "c")


SCRIPT = """
import torch
import manyhands as mh

DATA = torch.utils.data.TensorDataset(torch.eye(2).repeat(16, 1), torch.arange(32) % 2)
job = mh.Job(
    model=lambda: torch.nn.Linear(2, 2),
    optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    loss=torch.nn.functional.cross_entropy, data=DATA, global_batch=8, epochs=1,
)
"""


def command(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    (folder / "script.py").write_text(SCRIPT, encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-m", "manyhands", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_one_command_compares_on_two_sites(tmp_path: Path) -> None:
    done = command(
        tmp_path,
        *("compare", "script.py", "--virtual", "--strategies", THREE, "--cluster", SITES),
        *("--repeats", "1", "--output", "out"),
    )
    assert done.returncode == 0, done.stderr
    assert f"cluster: {SITES}" in " ".join(done.stdout.split())
    assert read_results(tmp_path / "out").layout == Cluster.parse(SITES)


def test_simulate_takes_the_cluster_and_prints_it_for_a_replay(tmp_path: Path) -> None:
    done = command(tmp_path, "simulate", "script.py", "--cluster", SITES)
    assert done.returncode == 0, done.stderr
    assert f"--cluster '{SITES}'" in done.stdout
