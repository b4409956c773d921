"""Updates with NaN are refused on real processes, as on virtual ones."""

import re

import pytest
import torch

from manyhands.reports import Run
from manyhands.reports.figures.outcome import refusals
from manyhands.reports.figures.speed import accounting

JOB = """
    import sys
    import torch, torch.nn.functional as F
    import manyhands as mh

    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(200, 8, generator=generator)
    targets = torch.randint(0, 3, (200,), generator=generator)
    kind = sys.argv[2]
    if kind == "nan":
        inputs[37, 2] = float("nan")
    elif kind == "gradient":
        inputs[37, 2] = 1000.0

    def loss(outputs, targets):
        found = F.cross_entropy(outputs, targets)
        if kind == "gradient" and outputs.detach().abs().max() > 40:
            # A finite loss, and a gradient that is none: the slope of a root at 0.
            found = found + (outputs * 0).sum().sqrt()
        return found

    def make():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))
        if kind == "gradient":
            model[1] = torch.nn.Identity()
        return model

    job = mh.Job(
        model=make,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5),
        loss=loss,
        data=torch.utils.data.TensorDataset(inputs, targets),
        global_batch=20,
        epochs=2,
        metrics=(),
        stop_on_nan=kind == "gradient",
    )

    if __name__ == "__main__":
        strategy = sys.argv[1]
        print(mh.train(job, strategy, workers=2, output="live").summary())
        if "virtually" in sys.argv:
            mh.simulate(job, strategy, workers=2, output="virtual")
"""


def trained(run_script, tmp_path, *arguments: str) -> Run:
    started = run_script(JOB, *arguments)
    assert started.finish(150) == 0, started.text()
    print(started.text())
    run = Run(tmp_path / "live")
    assert run.status == "finished"
    assert all(value.isfinite().all() for value in run.state_dict().values())
    return run


def check_refused(run: Run, samples: int, name: str = "worker [01]") -> None:
    found = refusals(run.trace)
    assert sum(one.updates for one in found) == 2, found
    assert {one.what for one in found} == {"NaN"}
    assert sum(one.samples for one in found) == samples
    kept = accounting(run.trace)
    assert (kept.seen, kept.lost) == (400 - samples, samples)
    assert re.search(rf"updates? of {name} had NaN and w", run.summary())


@pytest.mark.parametrize(
    "text",
    [
        "synchronous(servers=2, codec=topk(0.5))",
        pytest.param("averaging(every=2)", marks=pytest.mark.slow),
        pytest.param("gossip()", marks=pytest.mark.slow),
    ],
)
def test_an_update_is_refused_as_virtually_to_the_bit(run_script, tmp_path, text) -> None:
    run = trained(run_script, tmp_path, text, "nan", "virtually")
    check_refused(run, 20)
    virtual = Run(tmp_path / "virtual")
    mine, its = run.state_dict(), virtual.state_dict()
    assert all(torch.equal(mine[name], its[name]) for name in its)
    assert refusals(virtual.trace) == refusals(run.trace)


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "asynchronous()",
        "ssp()",
        "softsync(wait_for=2)",
        "central_storage()",
        "hogwild()",
        "easgd()",
        "diloco(every=3)",
        "hierarchical(outer=synchronous())",
        "push_sum()",
        "broadcast()",
        "ensemble()",
    ],
)
def test_other_protocols_refuse_it_too(run_script, tmp_path, text) -> None:
    check_refused(trained(run_script, tmp_path, text, "nan"), 20)


@pytest.mark.parametrize("kind", [pytest.param("nan", marks=pytest.mark.slow), "gradient"])
def test_no_worker_of_allreduce_steps_with_it(run_script, tmp_path, kind) -> None:
    run = trained(run_script, tmp_path, "allreduce()", kind)
    # The step of all workers is not taken, so both their shares are lost.
    check_refused(run, 40)


@pytest.mark.parametrize(
    "text",
    [
        "fully_sharded()",
        pytest.param("zero(stage=1)", marks=pytest.mark.slow),
        pytest.param("zero(stage=2)", marks=pytest.mark.slow),
        pytest.param("tensor()", marks=pytest.mark.slow),
        pytest.param("tensor(samples=own)", marks=pytest.mark.slow),
        pytest.param("pipeline(microbatches=2)", marks=pytest.mark.slow),
        "pipeline(microbatches=1, schedule=pipedream)",
    ],
)
def test_workers_with_parts_of_the_model_do_not_step_with_it(run_script, tmp_path, text) -> None:
    check_refused(trained(run_script, tmp_path, text, "nan"), 40)


@pytest.mark.slow
@pytest.mark.parametrize("text", ["fully_sharded()", "tensor()", "pipeline(microbatches=2)"])
def test_parts_of_a_gradient_of_a_finite_loss_have_no_name(run_script, tmp_path, text) -> None:
    check_refused(trained(run_script, tmp_path, text, "gradient"), 40, "an unknown worker")


@pytest.mark.slow
def test_a_copy_that_steps_by_itself_loses_its_own_samples(run_script, tmp_path) -> None:
    text = "hybrid(data=2, outer=local_sgd(every=3))"
    check_refused(trained(run_script, tmp_path, text, "nan"), 20)


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["topk(0.5)", "half()"])
def test_under_a_codec_a_worker_sends_zeros_in_its_place(run_script, tmp_path, codec) -> None:
    run = trained(run_script, tmp_path, f"allreduce(codec={codec})", "nan")
    found = refusals(run.trace)
    assert sum(one.updates for one in found) == 2
    assert {one.what for one in found} == {"NaN"}


@pytest.mark.slow
def test_one_worker_alone(run_script, tmp_path) -> None:
    started = run_script(JOB.replace("workers=2", "workers=1"), "single()", "nan")
    assert started.finish(150) == 0, started.text()
    check_refused(Run(tmp_path / "live"), 40)
