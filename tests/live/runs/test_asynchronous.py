"""Asynchronous training on real servers: exact where it must be, and hard to kill."""

import contextlib
import json
import random
import sys
import time

import psutil
import pytest

from manyhands.reports import Run
from support import ROOT, wait_for

EQUIVALENCE = '''
    import json, sys
    import torch, torch.nn.functional as F
    from torch import nn
    import manyhands as mh

    torch.set_default_dtype(torch.float64)
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(1001, 20, generator=generator)
    targets = torch.randint(0, 5, (1001,), generator=generator)

    class Network(nn.Module):
        """A tied and a frozen layer, and batch norm."""

        def __init__(self):
            super().__init__()
            self.first = nn.Linear(20, 20)
            self.norm = nn.BatchNorm1d(20)
            self.tied = nn.Linear(20, 20)
            self.tied.weight = self.first.weight
            self.frozen = nn.Linear(20, 20).requires_grad_(False)
            self.last = nn.Linear(20, 5)

        def forward(self, x):
            x = torch.tanh(self.norm(self.first(x)))
            return self.last(torch.tanh(self.frozen(torch.tanh(self.tied(x)))))

    def optimizer(model):
        groups = [
            {"params": [*model.first.parameters(), model.tied.bias, *model.norm.parameters()]},
            {"params": model.last.parameters(), "lr": 0.002},
        ]
        if sys.argv[1] == "sgd":
            return torch.optim.SGD(groups, lr=0.05, momentum=0.9)
        return torch.optim.AdamW(groups, lr=0.003, weight_decay=0.1)

    job = mh.Job(
        model=Network,
        optimizer=optimizer,
        loss=F.cross_entropy,
        data=torch.utils.data.TensorDataset(inputs, targets),
        validation=torch.utils.data.TensorDataset(inputs[:503], targets[:503]),
        metrics=["accuracy", "f1"],
        global_batch=37,
        epochs=3,
        seed=11,
    )

    if __name__ == "__main__":
        results, first = {}, None
        servers = [f"asynchronous(servers={n})" for n in (1, 2, 3)]
        for strategy in ["single()", "hogwild()", *servers]:
            run = mh.train(job, strategy, workers=1)
            state = run.state_dict()
            first = first or state
            worst = max((state[key] - first[key]).abs().max().item() for key in first)
            results[strategy] = [worst, run.metrics, run.samples, run.parameters_digest]
        print("RESULTS", json.dumps(results))
'''


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_one_asynchronous_worker_equals_single_whatever_the_servers(run_script, kind):
    started = run_script(EQUIVALENCE, kind)
    assert started.finish(220) == 0, started.text()
    results = json.loads(started.text().split("RESULTS ")[1].splitlines()[0])
    assert len(results) == 5
    for strategy, (worst, metrics, samples, _) in results.items():
        assert worst <= 1e-9, strategy
        assert metrics == pytest.approx(results["single()"][1], abs=1e-9)
        assert samples == 3003
    digests = {row[3] for name, row in results.items() if name != "single()"}
    assert len(digests) == 1, "0, 1, 2 and 3 servers give the same parameters to the bit"


INTEGERS = '''
    import time
    import torch
    import manyhands as mh

    class Counter(torch.nn.Module):
        """Whole numbers in float64: their sum is exact, so a lost or doubled update shows."""

        def __init__(self):
            super().__init__()
            self.count = torch.nn.Parameter(torch.zeros(50_000, dtype=torch.float64))

        def forward(self, x):
            return -(self.count * 1.0).sum() * x.mean()

    def loss(outputs, targets):
        time.sleep(0.005)
        return outputs

    job = mh.Job(
        model=Counter,
        # One sample per update of a global batch of 4: the rate is 4, so each adds exactly 1.
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=4.0),
        loss=loss,
        data=torch.utils.data.TensorDataset(
            torch.ones(100_000, dtype=torch.float64), torch.zeros(100_000)
        ),
        global_batch=4,
        samples=SAMPLES,
        metrics=(),
    )

    if __name__ == "__main__":
        run = mh.train(job, "asynchronous(servers=2)", workers=4, output="run")
        counts = run.state_dict()["count"]
        print(run.summary())
        print("COUNTS", counts.min().item(), counts.max().item())
'''


def has_begun(started, updates=20):
    assert started.process.poll() is None, started.text()
    trace = started.folder / "run" / "trace" / "server-0.jsonl"
    return trace.exists() and trace.read_text().count('"span"') > updates


def kill_servers(run_script, samples, kills, seed, durability="process"):
    """Kill a server at seeded moments while four workers push; the run's text at its end."""
    script = INTEGERS.replace("SAMPLES,", f'{samples}, durability="{durability}",')
    started = run_script(script, name=f"count{seed}{durability}.py")
    wait_for(lambda: has_begun(started), 90, "pushes")
    draw, done = random.Random(seed), 0  # noqa: S311 - the same moments every time
    while done < kills and started.process.poll() is None:
        number = draw.randrange(2)
        time.sleep(draw.uniform(0.0, 0.3))
        server = started.named("manyhands.live.server.process", str(number))
        if server is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                server.kill()
                done += 1
        log = started.folder / "run" / "logs" / f"server-{number}.{done}.err"
        wait_for(
            lambda: log.exists() or started.process.poll() is not None,  # noqa: B023
            30,
            "its successor",
        )
    code = started.finish(170)
    assert code == 0, started.text()
    assert done == kills, f"only {done} kills before the run ended"
    assert f"COUNTS {samples}.0 {samples}.0" in started.text(), started.text()
    return started.text()


@pytest.mark.timeout(240)
def test_no_acknowledged_update_is_lost_or_doubled_when_servers_are_killed(run_script):
    text = kill_servers(run_script, samples=4000, kills=4, seed=1)
    assert text.count("it is restarted") == 4


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("durability", ["process", "power"])
@pytest.mark.parametrize("seed", range(10))
def test_a_hundred_seeded_kills_lose_nothing(run_script, seed, durability):
    kill_servers(run_script, samples=12_000, kills=10, seed=100 + seed, durability=durability)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_without_durability_a_killed_server_ends_the_run(run_script):
    script = INTEGERS.replace("SAMPLES,", '100_000, durability="none",')
    started = run_script(script)
    wait_for(lambda: has_begun(started), 90, "pushes")
    started.named("manyhands.live.server.process", "0").kill()
    assert started.finish(120) != 0
    text = started.text()
    assert "server 0" in text
    assert "COUNTS" not in text
    assert not (started.folder / "run" / "journal").exists()


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_killed_worker_is_named_and_the_others_continue(run_script):
    started = run_script(INTEGERS.replace("SAMPLES", "2400"))
    wait_for(lambda: has_begun(started), 90, "pushes")
    started.worker(3).kill()
    assert started.finish(120) == 0, started.text()
    text = started.text()
    assert "worker 3 on " in text
    assert "the other workers continue" in text
    run = Run(started.folder / "run")
    assert run.status == "finished"
    assert run.samples >= 2400
    assert " 0 lost" in text
    assert "repeated" in text
    summary = run.summary()
    assert "worker 3" in summary, summary
    count = float(text.split("COUNTS ")[1].split()[0])
    # Every sample is trained on at least once, and at most what was given again twice.
    assert 2400 <= count <= 2400 + 2


@pytest.mark.timeout(300)
@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_four_workers_reach_97_percent_on_mnist_within_two_epochs(start, tmp_path, optimizer):
    script = tmp_path / "mnist.py"
    text = (ROOT / "examples" / "mnist.py").read_text(encoding="utf-8")
    if optimizer == "Adam":
        before = "torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)"
        assert before in text
        text = text.replace(before, "torch.optim.Adam(model.parameters(), lr=0.001)")
    script.write_text(text, encoding="utf-8")
    started = start(
        *(sys.executable, "-m", "manyhands", "train", script, "--epochs", "2"),
        *("--strategy", "asynchronous(servers=2)", "--workers", "4", "--output", "run"),
    )
    assert started.finish(280) == 0, started.text()
    print(started.text())
    assert Run(tmp_path / "run").metrics["accuracy"] >= 0.97
