"""Workers that are each other's servers talk to those they need: a few, however many there are."""

import pytest
import torch
from safetensors.torch import load_file

from manyhands.protocols.protocol import EVALUATORS
from manyhands.reports import Run
from manyhands.trace import read

WORKERS = EVALUATORS + 2
SCRIPT = """
    import sys
    import torch, torch.nn.functional as F
    import manyhands as mh

    torch.manual_seed(0)
    inputs, targets = torch.randn(400, 8), torch.randint(0, 3, (400,))
    job = mh.Job(
        model=lambda: torch.nn.Linear(8, 3),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=F.cross_entropy,
        data=torch.utils.data.TensorDataset(inputs[:300], targets[:300]),
        validation=torch.utils.data.TensorDataset(inputs[300:], targets[300:]),
        metrics=["accuracy"],
        global_batch=100,
        epochs=1,
    )

    if __name__ == "__main__":
        mh.train(job, sys.argv[1], workers=int(sys.argv[2]), output="run")
"""


@pytest.mark.slow
@pytest.mark.timeout(170)
@pytest.mark.parametrize("text", ["gossip()", "ensemble()"])
def test_a_few_workers_evaluate_what_needs_all_replicas(run_script, tmp_path, text):
    started = run_script(SCRIPT, text, str(WORKERS))
    assert started.finish(150) == 0, started.text()
    peers = [
        len([name for name in worker.totals.received if name.startswith("server-")])
        for worker in read(tmp_path / "run").workers
    ]
    assert peers[:EVALUATORS] == [WORKERS - 1] * EVALUATORS, "evaluators pull all other replicas"
    assert max(peers[EVALUATORS:]) <= 2, "the others talk to their neighbours on the ring"
    run = Run(tmp_path / "run")
    assert run.samples == 300
    if text == "gossip()":
        # The stored model is the mean of all replicas, which was evaluated last.
        torch.manual_seed(0)
        inputs, targets = torch.randn(400, 8)[300:], torch.randint(0, 3, (400,))[300:]
        model = torch.nn.Linear(8, 3)
        model.load_state_dict(load_file(tmp_path / "run" / "model.safetensors"))
        loss = torch.nn.functional.cross_entropy(model(inputs), targets).item()
        assert run.metrics["loss"] == pytest.approx(loss, rel=1e-5)
