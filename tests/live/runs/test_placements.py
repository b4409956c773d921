"""Models that no worker could hold alone, by the agent, from a script to the model's file."""

import json
import sys
from pathlib import Path

import pytest

from manyhands.files.checkpoint import load_state
from manyhands.reports import Run
from support import ROOT

TOO_LARGE = """
    import resource, sys
    import torch, torch.nn.functional as F
    import manyhands as mh

    # 33 million parameters, 134 MB: with gradients and Adam's state more than 530 MB.
    tokens = torch.randint(0, 8192, (16, 17), generator=torch.Generator().manual_seed(0))
    job = mh.Job(
        model=lambda: mh.models.GPT(vocabulary=8192, length=16, width=512, layers=8, heads=8),
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3),
        loss=F.cross_entropy,
        data=torch.utils.data.TensorDataset(tokens[:, :-1], tokens[:, 1:]),
        metrics=(),
        global_batch=4,
        epochs=1,
    )

    def loop(trainer):
        for batch in trainer.batches():
            print("LOSS", trainer.rank, trainer.step(batch).item(), flush=True)

    if __name__ == "__main__":
        mh.train(job, sys.argv[1], workers=2, loop=loop, output="run")
    else:
        # What is reserved and not written, as for stacks of threads, does not count.
        used = int(open("/proc/self/statm").read().split()[5]) * resource.getpagesize()
        limit = used + 480_000_000
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
"""


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("how", ["fully_sharded()", "zero(stage=3)"])
def test_a_model_that_fits_on_no_worker_is_trained_in_shards(run_script, how):
    started = run_script(TOO_LARGE, how)
    assert started.finish(300) == 0, started.text()
    state = load_state(started.folder / "run" / "model.safetensors")
    assert sum(tensor.numel() for tensor in state.values()) > 33_000_000


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_whole_it_does_not_fit_and_the_words_name_the_remedy(run_script):
    started = run_script(TOO_LARGE, "allreduce()")
    assert started.finish(300) != 0
    text = " ".join(started.text().split())
    assert "allreduce() needs more memory than worker" in text, text
    assert "use fully_sharded(), under which each of N workers holds 1/N of the model" in text


SEVERAL = """
    import json, sys
    import torch, torch.nn.functional as F
    import manyhands as mh

    torch.set_default_dtype(torch.float64)
    source = torch.Generator().manual_seed(0)
    pairs = torch.randn(46, 2, 5, 8, generator=source)
    related = torch.randint(0, 3, (46,), generator=source)
    data = torch.utils.data.TensorDataset(pairs, related)
    job = mh.Job(
        model=lambda: mh.models.SharedLSTM(inputs=8, hidden=6, outputs=3),
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2),
        loss=F.cross_entropy,
        data=data,
        validation=data,
        global_batch=12,
        epochs=2,
    )

    if __name__ == "__main__":
        results = {}
        for strategy, workers in json.loads(sys.argv[1]):
            run = mh.train(job, strategy, workers=workers)
            print(run.summary())
            results[strategy] = [str(run.folder.resolve()), run.metrics, run.samples]
        print("RESULTS", json.dumps(results))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_shared_lstm_under_place_and_sharded_ends_where_one_worker_does(run_script):
    place = 'place(modules=["encoder on 0, 1", "merge on 2"])'
    wanted = [["single()", 1], [place, 3], ["fully_sharded()", 2]]
    started = run_script(SEVERAL, json.dumps(wanted))
    assert started.finish(280) == 0, started.text()
    text = started.text()
    results = json.loads(text.split("RESULTS ")[1].splitlines()[0])
    folder, values, _ = results["single()"]
    alone = load_state(Path(folder) / "model.safetensors")
    for how, (where, metrics, samples) in results.items():
        state = load_state(Path(where) / "model.safetensors")
        worst = max((state[name] - alone[name]).abs().max().item() for name in alone)
        assert worst < 1e-9, f"{how} is {worst} away"
        assert metrics == pytest.approx(values, abs=1e-9), how
        assert samples == 92, how
    assert "worker 0" in text
    assert "encoder" in text


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_copies_that_meet_rarely_learn_and_send_less(start, tmp_path):
    sent = []
    for number, between in enumerate(("", ", outer=diloco(every=8)")):
        how, output = f"hybrid(data=2, shard=2{between})", tmp_path / f"run-{number}"
        started = start(
            *(sys.executable, "-m", "manyhands", "train", ROOT / "examples" / "gpt.py"),
            *("--strategy", how, "--workers", "4", "--samples", "1600", "--output", output),
        )
        assert started.finish(400) == 0, started.text()
        run = Run(output)
        assert run.samples == 1600, how
        assert run.metrics["loss"] < 3.0, how
        sent.append([worker.totals.sent for worker in run.trace.workers])
    for rank, (lockstep, apart) in enumerate(zip(*sent, strict=True)):
        beside, inside = f"worker-{(rank + 2) % 4}", f"worker-{rank ^ 1}"
        # Of 50 steps every eighth ends with a meeting, and the last one.
        assert apart[beside] == pytest.approx(lockstep[beside] * 7 / 50, rel=0.05)
        assert apart[inside] == pytest.approx(lockstep[inside], rel=0.05)


PIPED = """
    import json
    import torch, torch.nn.functional as F
    import manyhands as mh

    torch.set_default_dtype(torch.float64)
    tokens = torch.randint(0, 65, (70, 25), generator=torch.Generator().manual_seed(0))
    data = torch.utils.data.TensorDataset(tokens[:, :-1], tokens[:, 1:])
    job = mh.Job(
        model=lambda: mh.models.GPT(length=24, width=16, layers=3, heads=2),
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2),
        loss=F.cross_entropy,
        data=data,
        validation=data,
        global_batch=16,
        epochs=2,
        clip=0.5,
    )

    if __name__ == "__main__":
        results = {}
        for strategy in ("hybrid(tensor=2, pipeline=2)", "hybrid(shard=2, pipeline=2)", "single()"):
            run = mh.train(job, strategy, workers=1 if strategy == "single()" else 4)
            print(run.summary())
            results[strategy] = [str(run.folder.resolve()), run.metrics, run.samples]
        print("RESULTS", json.dumps(results))
"""


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_stages_that_are_divided_end_where_one_worker_does_and_say_how(run_script):
    started = run_script(PIPED)
    assert started.finish(380) == 0, started.text()
    text = started.text()
    results = json.loads(text.split("RESULTS ")[1].splitlines()[0])
    folder, values, _ = results["single()"]
    alone = load_state(Path(folder) / "model.safetensors")
    for how, (where, metrics, samples) in results.items():
        state = load_state(Path(where) / "model.safetensors")
        assert state.keys() == alone.keys(), how
        worst = max((state[name] - alone[name]).abs().max().item() for name in alone)
        assert worst < 1e-9, f"{how} is {worst} away"
        assert metrics == pytest.approx(values, abs=1e-9), how
        assert samples == 140, how
    words = " ".join(text.split())
    assert "stage 1 " in words
    assert "split block1.attention.query, block1.attention.key, block1.attention.value to" in words
