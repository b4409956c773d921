"""Every protocol on real processes: it learns, it is exact where it must be, it survives a kill."""

import sys

import pytest

from manyhands.protocols import ALL
from manyhands.reports import Run
from support import ROOT, wait_for

LEARNS = """
    import sys
    import torch, torch.nn.functional as F
    import manyhands as mh

    job = mh.Job(
        model=lambda: mh.models.MLP(hidden=(64,)),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5),
        loss=F.cross_entropy,
        data=torch.utils.data.Subset(mh.data.mnist("train"), range(15_000)),
        validation=mh.data.mnist("test"),
        metrics=["accuracy"],
        global_batch=128,
        epochs=2,
    )

    if __name__ == "__main__":
        print(mh.train(job, sys.argv[1], workers=4, output="run").summary())
"""
VARIANTS = {
    "synchronous": ["synchronous(servers=2)"],
    "softsync": ["softsync(wait_for=3)"],
    "ssp": ["ssp(staleness=2)"],
    "averaging": ["averaging(every=4)"],
    "local_sgd": ["local_sgd(every=8, warmup=20)"],
    "diloco": ["diloco(every=10)", "diloco(every=12, fragments=3, overlap=3, wait_for=3)"],
    "hierarchical": ["hierarchical(outer=diloco(every=10))"],
    "easgd": ["easgd()", "easgd(order=asynchronous)", "easgd(order=round_robin)"],
    "gossip": ["gossip()", "gossip(graph=random_pairs, order=asynchronous)"],
    "push_sum": ["push_sum()"],
    "asynchronous": ["asynchronous(damping=inverse, delay_compensation=0.1)"],
}
"""How each protocol is written where its name alone would not show it."""
EVERY = [text for cls in ALL for text in VARIANTS.get(cls.name, [f"{cls.name}()"])]
OF_A_KIND = {
    "softsync(wait_for=3)": "synchronous(servers=2)",
    "ssp(staleness=2)": "asynchronous(damping=inverse, delay_compensation=0.1)",
    "averaging(every=4)": "diloco(every=10)",
    "local_sgd(every=8, warmup=20)": "diloco(every=10)",
    "diloco(every=12, fragments=3, overlap=3, wait_for=3)": "diloco(every=10)",
    "easgd()": "easgd(order=round_robin)",
    "easgd(order=asynchronous)": "easgd(order=round_robin)",
    "ensemble()": "gossip()",
    "push_sum()": "gossip()",
    "hierarchical(outer=diloco(every=10))": "diloco(every=10)",
    "broadcast()": "gossip(graph=random_pairs, order=asynchronous)",
    "hogwild()": "tests/live/runs/test_hogwild.py",
    "central_storage()": "tests/live/runs/test_hogwild.py",
}
"""Those that are slow tests, and where the same processes and messages are tested every day."""


@pytest.mark.timeout(170)
@pytest.mark.parametrize(
    "text",
    [pytest.param(text, marks=pytest.mark.slow) if text in OF_A_KIND else text for text in EVERY],
)
def test_four_workers_learn_mnist(run_script, text):
    started = run_script(LEARNS, text)
    assert started.finish(150) == 0, started.text()
    run = Run(started.folder / "run")
    assert run.metrics["accuracy"] >= 0.90, run.summary()
    assert run.samples == 30_000
    assert " 0 repeated, 0 lost" in started.text()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("text", EVERY)
def test_four_workers_take_lenet_to_97_percent_in_two_epochs(start, tmp_path, text):
    script = ROOT / "examples" / "mnist.py"
    started = start(
        *(sys.executable, "-m", "manyhands", "train", script, "--epochs", "2"),
        *("--strategy", text, "--workers", "4", "--output", "run"),
    )
    assert started.finish(850) == 0, started.text()
    print(started.text())
    assert Run(tmp_path / "run").metrics["accuracy"] >= 0.97


@pytest.mark.timeout(170)
@pytest.mark.parametrize(
    "text",
    [
        "synchronous(servers=2)",
        pytest.param("gossip()", marks=pytest.mark.slow),
        pytest.param("diloco(every=5)", marks=pytest.mark.slow),
        pytest.param("broadcast()", marks=pytest.mark.slow),
        pytest.param("diloco(every=6, fragments=2, overlap=2)", marks=pytest.mark.slow),
        pytest.param("diloco(every=6, fragments=2, wait_for=3)", marks=pytest.mark.slow),
        pytest.param("hierarchical(outer=synchronous())", marks=pytest.mark.slow),
    ],
)
def test_those_who_wait_for_each_other_go_on_without_one_that_is_killed(run_script, text):
    started = run_script(LEARNS.replace("epochs=2", "epochs=4"), text)
    wait_for(lambda: " %)" in started.text(), 90, "training")
    started.worker(2).kill()
    assert started.finish(150) == 0, started.text()
    run = Run(started.folder / "run")
    assert run.status == "finished"
    assert run.metrics["accuracy"] >= 0.90
    assert run.samples == 60_000
    assert "worker 2" in run.summary()


SUMS = """
    import torch, torch.nn.functional as F
    import manyhands as mh

    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(151, 6, generator=generator, dtype=torch.float64)
    targets = torch.randint(0, 3, (151,), generator=generator)

    job = mh.Job(
        model=lambda: mh.models.MLP(inputs=6, hidden=(8,), outputs=3).double(),
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=0.01),
        loss=F.cross_entropy,
        data=torch.utils.data.TensorDataset(inputs, targets),
        global_batch=37,
        epochs=3,
        clip=0.5,
        lr_schedule=mh.lr_schedules.cosine(3),
        metrics=(),
    )

    if __name__ == "__main__":
        names = ("synchronous()", "hierarchical(outer=synchronous(), islands=3)")
        one, other = (mh.train(job, name, workers=5).state_dict() for name in names)
        print("apart by", max((one[name] - other[name]).abs().max().item() for name in one))
"""


@pytest.mark.slow
@pytest.mark.timeout(170)
def test_islands_that_sum_gradients_are_synchronous_on_real_processes(run_script):
    started = run_script(SUMS)
    assert started.finish(150) == 0, started.text()
    assert float(started.text().rpartition("apart by")[2].split()[0]) <= 1e-9, started.text()
