"""What is forecast for sharded models is what torch asks for, and what the kernel sends."""

import pytest

SCRIPT = """
    import json, sys
    import torch, torch.nn.functional as F
    import forked
    from manyhands.job import Job
    from manyhands.models import GPT
    from manyhands.placements.units import sizes
    from manyhands.strategies import strategy

    STEPS = 4

    def model():
        torch.manual_seed(0)
        made = GPT(vocabulary=65, width=48, layers=3, heads=4, length=32)
        made.embedding.position.requires_grad_(False)
        return made

    job = Job(
        model=model,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.01),
        loss=F.cross_entropy,
        data=[(torch.arange(32) % 65, torch.arange(32) % 65)] * 64,
        metrics=(),
        global_batch=8,
        samples=8 * 2 * STEPS,
    )

    def work(store, rank, size):
        given = {}
        for how in json.loads(sys.argv[2]):
            group = forked.group_of(store, rank, size)
            trainer = forked.trainer_of(job, how, group)
            for batch in trainer.batches():
                if batch.step == STEPS:
                    trainer._waits.noted = []
                    before = sum(group.traffic()[0].values())
                trainer.step(batch)
            sent = (sum(group.traffic()[0].values()) - before) / STEPS
            noted = [(one.kind, one.size) for one in trainer._waits.noted]
            each = len(noted) // STEPS
            assert noted == noted[:each] * STEPS
            forecast = strategy(how).forecast(sizes(model()), size)
            told = [(one.kind, one.size) for one in forecast.step]
            given[how] = [noted[:each], told, sent, forecast.sent_per_step(size)]
            group.sum(torch.zeros(1))
            group.close()
        return given

    if __name__ == "__main__":
        forked.run(work, int(sys.argv[1]))
"""

STRATEGIES = ["fully_sharded()", "fully_sharded(give_back=false)", "zero(stage=2)", "zero()"]


@pytest.mark.parametrize("workers", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_forecast_equals_what_happens(fork, workers):
    for given in fork(SCRIPT, workers, STRATEGIES):
        for how, (noted, told, sent, expected) in given.items():
            # What DDP asks for from within is held to the forecast elsewhere, by its buckets.
            assert noted == [one for one in told if one[0] != "allreduce"], how
            # Gloo adds headers to its chunks, a few hundred bytes per collective and peer.
            assert sent == pytest.approx(expected, abs=300 * workers * len(told)), how
