"""A job's rate, clip and growing batch on real processes: what plain PyTorch does, in float64."""

import contextlib
import json
import random
import time
from pathlib import Path

import psutil
import pytest
import torch
from torch import nn

from manyhands import lr_schedules
from manyhands.files.checkpoint import load_state
from manyhands.reports import Run
from manyhands.sampling.permutation import permutation
from support import wait_for

SCRIPT = """
    import json, sys, time
    import torch, torch.nn.functional as F
    from torch import nn
    import manyhands as mh

    kind, clip, pause = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
    torch.set_default_dtype(torch.float64)
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(1001, 20, generator=generator)
    targets = torch.randint(0, 5, (1001,), generator=generator)

    def loss(outputs, targets):
        time.sleep(pause)
        return F.cross_entropy(outputs, targets)

    def optimizer(model):
        if kind == "plain":
            return torch.optim.SGD(model.parameters(), lr=0.05)
        return torch.optim.AdamW(model.parameters(), lr=0.003, weight_decay=0.1)

    job = mh.Job(
        model=lambda: nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 5)),
        optimizer=optimizer,
        loss=loss,
        data=torch.utils.data.TensorDataset(inputs, targets),
        validation=torch.utils.data.TensorDataset(inputs[:503], targets[:503]),
        metrics=(),
        global_batch={0: 5, 1: 19, 1.5: 37},
        lr_schedule=mh.lr_schedules.cosine(2, warmup=0.25),
        clip=clip or None,
        epochs=2,
        seed=11,
    )

    if __name__ == "__main__":
        results = {}
        for strategy, workers in json.loads(sys.argv[4]):
            run = mh.train(job, strategy, workers=workers, output="run")
            results[f"{strategy} {workers}"] = [str(run.folder.resolve()), run.samples]
        print(run.summary())
        print("RESULTS", json.dumps(results))
"""
CLIP = 0.8


def by_hand(kind: str, clip: float) -> dict[str, torch.Tensor]:
    """The same training in plain PyTorch, sharing only the order of the samples."""
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(1001, 20, generator=generator, dtype=torch.float64)
    targets = torch.randint(0, 5, (1001,), generator=generator)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(11)
    model = nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 5))
    torch.set_default_dtype(before)
    first = 0.05 if kind == "plain" else 0.003
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=first)
    if kind == "adamw":
        optimizer = torch.optim.AdamW(model.parameters(), lr=first, weight_decay=0.1)
    rate, clipped = lr_schedules.cosine(2, warmup=0.25), []
    for epoch in range(2):
        order, start = permutation(1001, 11, epoch), 0
        while start < 1001:
            done = epoch + start / 1001
            whole = 5 if done < 1 else 19 if done < 1.5 else 37
            batch = order[start : start + whole]
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs[batch]), targets[batch]).backward()
            if clip:
                norm = nn.utils.clip_grad_norm_(model.parameters(), clip)
                clipped.append(norm.item() > clip)
            optimizer.param_groups[0]["lr"] = first * rate(done) * len(batch) / whole
            optimizer.step()
            start += whole
    assert not clipped or (any(clipped) and not all(clipped))
    return dict(model.state_dict())


def distance(run: Path, oracle: dict[str, torch.Tensor]) -> float:
    state = load_state(run / "model.safetensors")
    assert state.keys() == oracle.keys()
    return max((state[key] - oracle[key]).abs().max().item() for key in oracle)


def _equal_plain_pytorch(run_script, kind, clip, wanted):
    started = run_script(SCRIPT, kind, str(clip), "0", json.dumps(wanted))
    assert started.finish(280) == 0, started.text()
    results = json.loads(started.text().split("RESULTS ")[1].splitlines()[0])
    oracle = by_hand(kind, clip)
    assert len(results) == len(wanted)
    for name, (folder, samples) in results.items():
        assert distance(Path(folder), oracle) <= 1e-9, name
        assert samples == 2002
    return started.text()


@pytest.mark.timeout(170)
def test_all_options_together_are_plain_pytorch(run_script):
    wanted = [["allreduce()", 2], ["synchronous()", 3]]
    text = _equal_plain_pytorch(run_script, "adamw", CLIP, wanted)
    said = " ".join(text.split())
    assert "global_batch {0: 5, 1: 19, 1.5: 37}" in said
    assert "lr_schedule cosine(epochs=2.0, warmup=0.25)" in said
    assert "clip 0.8" in said


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_all_options_are_plain_pytorch_wherever_the_mean_is_stepped_with(run_script):
    lockstep = [["synchronous()", 2], ["softsync(3)", 3], ["central_storage()", 4]]
    wanted = [["single()", 1], ["allreduce()", 4], *lockstep]
    _equal_plain_pytorch(run_script, "adamw", CLIP, wanted)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_without_a_clip_plain_sgd_is_the_same_wherever_parts_add_up(run_script):
    wanted = [["synchronous(servers=3)", 4], ["averaging(every=1)", 4], ["ssp(staleness=0)", 3]]
    _equal_plain_pytorch(run_script, "plain", 0, wanted)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_one_worker_is_single_under_strategies_of_every_kind(run_script):
    texts = ["asynchronous(servers=2)", "hogwild()", "local_sgd(every=3)", "gossip()", "ssp(2)"]
    _equal_plain_pytorch(run_script, "adamw", CLIP, [[text, 1] for text in texts])


@pytest.mark.slow
@pytest.mark.timeout(170)
def test_a_killed_servers_successor_keeps_the_rate_and_the_batch(run_script):
    wanted = json.dumps([["asynchronous()", 1]])
    started = run_script(SCRIPT, "adamw", str(CLIP), "0.005", wanted)
    trace = started.folder / "run" / "trace" / "server-0.jsonl"
    wait_for(lambda: trace.exists() and trace.read_text().count('"span"') > 5, 90, "pushes")
    draw = random.Random(3)  # noqa: S311 - the same moments every time
    for kill in (1, 2, 3):
        time.sleep(draw.uniform(0.0, 0.3))
        with contextlib.suppress(psutil.NoSuchProcess):
            started.named("manyhands.live.server.process", "0").kill()
        successor = started.folder / "run" / "logs" / f"server-0.{kill}.err"
        wait_for(successor.exists, 30, "its successor")
    assert started.finish(120) == 0, started.text()
    assert started.text().count("it is restarted") == 3
    assert distance(started.folder / "run", by_hand("adamw", CLIP)) <= 1e-9
    assert Run(started.folder / "run").samples == 2002


def test_a_mean_that_no_server_has_whole_is_refused_before_anything_starts(run_script):
    wanted = json.dumps([["synchronous(servers=2)", 2]])
    started = run_script(SCRIPT, "adamw", str(CLIP), "0", wanted)
    assert started.finish(60) != 0
    assert "needs the norm of the whole mean gradient" in started.text()
    assert "use servers=1" in started.text()
    assert not (started.folder / "run" / "logs").exists()
