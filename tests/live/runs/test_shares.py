"""`synchronous(shares=by_speed)` on real processes: a slow worker has fewer samples."""

SCRIPT = """
    import time
    import torch, torch.nn.functional as F
    import manyhands as mh

    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(480, 8, generator=generator, dtype=torch.float64)

    def loss(outputs, targets):
        if torch.is_grad_enabled():
            time.sleep(0.001 * len(targets))
        return F.cross_entropy(outputs, targets)

    job = mh.Job(
        model=lambda: torch.nn.Sequential(
            torch.nn.Linear(8, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2)
        ).double(),
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=0.01),
        loss=loss,
        data=torch.utils.data.TensorDataset(inputs, (inputs.sum(1) > 0).long()),
        metrics=(),
        global_batch=48,
        epochs=4,
    )
"""


def test_a_slow_worker_has_fewer_samples_and_the_result_is_that_of_one(train_script) -> None:
    about = ("--strategy", "synchronous(shares=by_speed)", "--workers", "2", "--slow", "1:5x")
    run = train_script("two", *about)
    assert run.samples == 4 * 480
    fast, slow = (worker.totals.samples for worker in run.trace.workers)
    assert fast + slow == 4 * 480
    # Of 40 batches the first ones are divided evenly, the others in about 5 to 1.
    assert fast > 1.4 * slow
    changes = [event for one in run.trace.processes for event in one.events]
    shares = [event.detail["shares"] for event in changes if event.what == "shares"]
    first, second = map(float, shares[-1].split(","))
    assert first > 2 * second
    alone = train_script("one", "--strategy", "single", "--workers", "1")
    mine, its = run.state_dict(), alone.state_dict()
    assert max((mine[name] - its[name]).abs().max() for name in its) < 1e-9
