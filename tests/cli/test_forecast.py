"""`manyhands forecast`: what is sent and held, before a worker is started."""

import json
import sys
import textwrap

import pytest

from manyhands.models import GPT
from support import ROOT

JOB = """
    import torch, torch.nn.functional as F
    import manyhands as mh

    tokens = torch.zeros(32, dtype=torch.int64)
    job = mh.Job(
        model=lambda: mh.models.GPT(vocabulary=256, width=64, layers=4, heads=4, length=32),
        optimizer=lambda model: torch.optim.AdamW(model.parameters()),
        loss=F.cross_entropy,
        data=[(tokens, tokens)] * 2,
        metrics=(),
        global_batch=8,
        epochs=1,
    )
"""


@pytest.fixture
def forecast(start, tmp_path):
    """Forecast the job above, or an example: the exit code and what was printed."""
    (tmp_path / "job.py").write_text(textwrap.dedent(JOB), encoding="utf-8")

    def begin(how, workers, *options, script="job.py"):
        command = (sys.executable, "-m", "manyhands", "forecast", script)
        started = start(*command, "--strategy", how, "--workers", str(workers), *options)
        return started.finish(), started.text()

    return begin


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_a_billion_parameters_on_a_thousand_workers(forecast):
    code, text = forecast(
        "hybrid(data=16, shard=8, tensor=8)", 1024, "--json", script=ROOT / "examples" / "gpt_1b.py"
    )
    assert code == 0, text
    told = json.loads(text)
    assert told["seconds"] < 120
    (worker,) = told["played"]
    # 1/64 of a billion parameters, and Adam's two numbers for each.
    assert worker["held"] == pytest.approx(1.015e9 / 64 * 12, rel=0.03)
    assert worker["held"] < worker["peak"] < 16e9
    among = {(each["kind"], each["workers"]) for each in worker["step"]}
    assert {("all_gather", 8), ("reduce_scatter", 8), ("allreduce", 16)} <= among
    assert worker["sent"] == pytest.approx(sum(each["sent"] for each in worker["step"]))


@pytest.mark.slow
def test_each_stage_of_a_pipeline_is_shown(forecast):
    code, text = forecast("pipeline()", 4)
    assert code == 0, text
    lines = [line.split() for line in text.splitlines()]
    assert [line[0] for line in lines if line and line[0].isdigit()] == ["0", "1", "2", "3"]
    assert any(line[:1] == ["send"] for line in lines)


def test_a_protocol_s_payload_is_that_of_its_formula(forecast):
    code, text = forecast("local_sgd(every=4)", 2, "--json")
    assert code == 0, text
    found = json.loads(text)
    parameters = 4 * sum(
        one.numel()
        for one in GPT(vocabulary=256, width=64, layers=4, heads=4, length=32).parameters()
    )
    assert found["parameters"] == parameters
    assert found["payload"] == {"sent": parameters / 4, "received": parameters / 4}
    code, text = forecast("gossip()", 4)
    assert code == 0, text
    assert "on 4 workers" in text
    assert "sent, " in text
    assert "manyhands simulate job.py" in text


def test_what_cannot_be_forecast_is_refused_with_what_can_be_done(forecast):
    code, text = forecast("hybrid(data=3, shard=2)", 4)
    assert (code, "use 6 workers" in text) == (2, True)


@pytest.mark.slow
def test_memory_that_workers_share_is_shown(forecast):
    code, text = forecast("allreduce()", 2, "--json")
    assert code == 0, text
    model = GPT(vocabulary=256, width=64, layers=4, heads=4, length=32)
    gradients = 4 * sum(one.numel() for one in model.parameters())
    # Two chunks for each of two workers, its gradients twice for a moment, and pages for counters.
    assert json.loads(text)["shared"] == pytest.approx(6 * gradients, rel=0.02)
    code, text = forecast("allreduce(shared_memory=false)", 2)
    assert (code, "of one host need" in text) == (0, False)
