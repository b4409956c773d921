"""Regression, with float targets, validation data and no metrics named: N workers equal one."""

import pytest

SCRIPT = """
    import json, sys
    from dataclasses import replace
    import torch, torch.nn.functional as F
    import forked
    from manyhands.job import Job
    from manyhands.sampling.permutation import permutation

    workers, micro_batches = map(json.loads, sys.argv[1:])
    torch.set_default_dtype(torch.float64)
    draw = torch.Generator().manual_seed(3)
    inputs = torch.randn(47, 5, generator=draw)
    targets = inputs.square().sum(1, keepdim=True) + 0.1 * torch.randn(47, 1, generator=draw)
    job = Job(
        model=lambda: torch.nn.Sequential(
            torch.nn.Linear(5, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)
        ),
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=0.01),
        loss=F.mse_loss,
        data=torch.utils.data.TensorDataset(inputs[:34], targets[:34]),
        validation=torch.utils.data.TensorDataset(inputs[34:], targets[34:]),
        global_batch=10,
        epochs=3,
    )

    def by_hand():
        torch.manual_seed(0)
        model = job.model()
        optimizer = job.optimizer(model)
        for epoch in range(3):
            for indices in permutation(34, 0, epoch).split(10):
                optimizer.zero_grad()
                F.mse_loss(model(inputs[indices]), targets[indices]).backward()
                # The last batch is short, and its step is as much shorter.
                optimizer.param_groups[0]["lr"] = 0.01 * len(indices) / 10
                optimizer.step()
        with torch.no_grad():
            return model.state_dict(), F.mse_loss(model(inputs[34:]), targets[34:]).item()

    def work(store, rank, size):
        found, (expected, loss) = [], by_hand()
        for micro_batch in micro_batches:
            given = replace(job, micro_batch=micro_batch)
            _, values, state = forked.train(given, "allreduce()", store, rank, size)
            # The first worker alone has the stored model.
            worst = max(((state[k] - expected[k]).abs().max().item() for k in state), default=0)
            found.append([worst, abs(values["loss"] - loss), sorted(values)])
        return found

    if __name__ == "__main__":
        forked.run(work, workers)
"""


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_a_regression_equals_a_plain_loop(fork, workers):
    for found in fork(SCRIPT, workers, [None, 2]):
        for parameters, loss, names in found:
            assert parameters <= 1e-9
            assert loss <= 1e-9
            assert names == ["loss"]
