"""Losses of one job under several strategies, held against one worker's."""

SCRIPT = """
    import json, sys
    from dataclasses import replace
    import torch, torch.nn.functional as F
    import forked
    from manyhands.data import tinyshakespeare
    from manyhands.job import Job
    from manyhands.models import GPT

    workers, steps, strategies, dtype, clip, options = map(json.loads, sys.argv[1:])
    torch.set_default_dtype(getattr(torch, dtype))

    # The last batch is cut, so some workers have fewer samples than others or none.
    job = Job(
        model=lambda: GPT(width=32, layers=2, heads=4, length=32),
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=3e-3),
        loss=F.cross_entropy,
        data=tinyshakespeare("train", 32),
        validation=torch.utils.data.Subset(tinyshakespeare("test", 32), range(19)),
        global_batch=10,
        samples=steps * 10 - 9,
        clip=clip,
        seed=5,
    )

    def work(store, rank, size):
        whole = replace(job, global_batch=options.get("global_batch", 10))
        alone = forked.train(whole, "single()", store, 0, 1) if rank == 0 else None
        store.set("alone", "") if rank == 0 else store.get("alone")
        apart = {}
        for how in strategies:
            asked = replace(job, **options)
            losses, values, state = forked.train(asked, how, store, rank, size)
            if rank == 0:
                assert state.keys() == alone[2].keys()
                apart[how] = {
                    "losses": max(abs(a / b - 1) for a, b in zip(losses, alone[0], strict=True)),
                    "values": max(abs(values[k] - alone[1][k]) for k in alone[1]),
                    "parameters": max(
                        (state[name] - alone[2][name]).abs().max().item() for name in state
                    ),
                    "learnt": alone[0][0] - losses[-1],
                }
        return apart

    if __name__ == "__main__":
        forked.run(work, workers)
"""


def apart(fork, workers, steps, strategies, dtype, clip=None, options=None, seconds=150):
    arguments = (workers, steps, strategies, dtype, clip, options or {})
    found = fork(SCRIPT, *arguments, seconds=seconds)[0]
    assert list(found) == strategies
    return found
