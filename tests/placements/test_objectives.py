"""Several objectives under placements: N workers make the alternating steps of one."""

import pytest

SCRIPT = """
    import json, sys
    import forked, gans
    workers, cases = map(json.loads, sys.argv[1:])

    def work(store, rank, size):
        found = []
        for how, options in cases:
            job = gans.gan_job(**options)
            steps, values, state = forked.train(job, how, store, rank, size)
            if rank == 0:
                expected = gans.by_hand(clip=options.get("clip"))
                wanted = gans.losses(expected)
                found.append([
                    gans.apart(state, expected),
                    max(abs(values[name] - wanted[name]) for name in wanted),
                    sorted(values),
                ])
        return found

    if __name__ == "__main__":
        forked.run(work, workers)
"""


OPTIONS = [{}, {"micro_batch": 2}, {"clip": 0.1}]


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_workers_equal_the_loop_of_the_dcgan_example(fork, workers):
    cases = [("allreduce()", options) for options in (OPTIONS if workers == 2 else [{}])]
    cases += [("single()", {})] if workers == 1 else []
    # Lossless, with a state for each objective.
    cases += [("allreduce(codec=exact())", {})] if workers == 2 else []
    found = fork(SCRIPT, workers, cases)[0]
    for case, (parameters, values, names) in zip(cases, found, strict=True):
        assert parameters <= 1e-9, case
        assert values <= 1e-9, case
        assert names == ["discriminator_loss", "generator_loss", "loss"]


PARTS = """
    import json, sys
    import torch
    import forked
    from manyhands.job import Job

    workers, = map(json.loads, sys.argv[1:])

    class Autoencoder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.encode, self.decode = torch.nn.Linear(6, 3), torch.nn.Linear(3, 6)
            self.double()

    def objective(model, batch):
        # Not model(batch): the parts are called, and one of them twice.
        code = model.encode(batch[0])
        again = model.encode(model.decode(code))
        return (model.decode(code) - batch[0]).square().mean() + (again - code).square().mean()

    inputs = torch.randn(22, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    job = Job(
        model=Autoencoder,
        optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=0.01),
        objective=objective,
        data=torch.utils.data.TensorDataset(inputs),
        global_batch=8,
        epochs=3,
    )

    def work(store, rank, size):
        alone = forked.train(job, "single()", store, 0, 1)[2] if rank == 0 else None
        store.set("alone", "") if rank == 0 else store.get("alone")
        state = forked.train(job, "allreduce()", store, rank, size)[2]
        return max((state[name] - alone[name]).abs().max().item() for name in state) if state else 0

    if __name__ == "__main__":
        forked.run(work, workers)
"""


def test_an_objective_may_call_parts_of_the_model(fork):
    # Not through the forward of DDP, which must know of every forward pass.
    assert fork(PARTS, 2)[0] <= 1e-9
