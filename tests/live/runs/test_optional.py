"""Options of a job in a run with all of its processes: what is stored, and what is refused."""

SCRIPT = """
    import sys
    import torch
    import manyhands as mh
    from torch.nn import functional
    from torch.optim.lr_scheduler import ReduceLROnPlateau

    source = torch.Generator().manual_seed(0)
    inputs = torch.randn(32, 6, generator=source)
    data = torch.utils.data.TensorDataset(inputs, (inputs.sum(1) > 0).long())
    job = mh.Job(
        model=lambda: torch.nn.Sequential(
            torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 2)
        ),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=functional.cross_entropy,
        data=data,
        validation=data,
        global_batch=8,
        epochs=2,
        lr_scheduler=lambda optimizer: ReduceLROnPlateau(optimizer, patience=0),
        ema=0.5,
        sync_batchnorm=True,
        autocast="float16",
    )

    if __name__ == "__main__":
        run = mh.train(job, sys.argv[1], workers=2)
        model, average = run.state_dict(), run.state_dict(average=True)
        assert set(model) == set(average) == set(job.model().state_dict())
        assert not torch.equal(model["0.weight"], average["0.weight"])
        assert torch.equal(model["1.running_mean"], average["1.running_mean"])
        print(sorted(run.metrics))
"""


def test_the_average_is_stored_beside_the_model(run_script):
    started = run_script(SCRIPT, "allreduce()")
    assert started.finish() == 0, started.text()
    assert "['accuracy', 'ema_accuracy', 'ema_loss', 'loss']" in started.text()


def test_a_strategy_that_cannot_refuses_before_a_process_starts(run_script, tmp_path):
    started = run_script(SCRIPT, "asynchronous()")
    assert started.finish() != 0
    assert "Job(sync_batchnorm=True) does not work under asynchronous()" in started.text()
    assert not list(tmp_path.glob("runs/*/trace/worker*"))
