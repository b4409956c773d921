"""Codecs on real processes: references and residuals survive what servers and workers do not."""

import re

import pytest

from support import wait_for

JOB = """
    import sys, time
    import torch, torch.nn.functional as F
    import manyhands as mh

    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(1200, 16, generator=generator)
    targets = (inputs @ torch.randn(16, 4, generator=generator)).argmax(1)

    def loss(outputs, wanted):
        time.sleep(0.02)
        return F.cross_entropy(outputs, wanted)

    def model():
        return torch.nn.Sequential(
            torch.nn.Linear(16, 64), torch.nn.BatchNorm1d(64), torch.nn.ReLU(),
            torch.nn.Linear(64, 4),
        )

    job = mh.Job(
        model=model,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5),
        loss=loss,
        data=torch.utils.data.TensorDataset(inputs, targets),
        validation=torch.utils.data.TensorDataset(inputs, targets),
        metrics=["accuracy"],
        global_batch=20,
        epochs=2,
    )

    if __name__ == "__main__":
        run = mh.train(job, sys.argv[1], workers=2, output=sys.argv[2])
        print(run.summary())
        print("ACCURACY", run.metrics["accuracy"])
"""


def digest(started) -> str:
    assert started.finish(200) == 0, started.text()
    (found,) = re.findall(r"parameters +([0-9a-f]{64})", started.text())
    return found


def has_pushed(started) -> bool:
    assert started.process.poll() is None, started.text()
    trace = started.folder / "run" / "trace" / "server-0.jsonl"
    return trace.exists() and trace.read_text().count('"span"') > 10


def has_residual(started) -> bool:
    assert started.process.poll() is None, started.text()
    trace = started.folder / "run" / "trace" / "worker-1.jsonl"
    return trace.exists() and '"residual"' in trace.read_text()


def accuracy(started) -> float:
    return float(re.findall(r"ACCURACY ([0-9.]+)", started.text())[0])


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "text",
    [
        "synchronous(codec=topk(0.05))",
        "asynchronous(codec=onebit(), servers=2)",
        "diloco(every=3, codec=onebit())",
        "easgd(every=2, codec=int8())",
        "ssp(staleness=0, servers=2, codec=ternary())",
    ],
)
def test_a_killed_server_has_the_references_again(run_script, text) -> None:
    # A worker whose answer was lost gets whole parameters instead, so bits may differ.
    started = run_script(JOB, text, "run")
    wait_for(lambda: has_pushed(started), 90, "pushes")
    started.named("manyhands.live.server.process", "0").kill()
    assert started.finish(200) == 0, started.text()
    assert started.text().count("it is restarted") == 1
    assert "2,400 seen, 0 repeated, 0 lost" in started.text()
    assert accuracy(started) > 0.8
    assert started.text().count("saves no time on one host; it pays on networks below") == 1
    assert re.search(r"encoding and decoding took .* on workers, .* on servers", started.text())
    assert (" not sent at the end" in started.text()) == ("topk" in text or "onebit" in text)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("codec", "is_fed_back"),
    [
        ("powersgd(rank=1)", True),
        ("sparse_sum(0.05)", True),
        ("onebit()", True),
        ("factors()", False),
    ],
)
def test_a_summary_has_the_time_of_a_reducer_and_what_it_did_not_send(
    run_script, codec, is_fed_back
) -> None:
    started = run_script(JOB, f"allreduce(codec={codec})", "run")
    assert started.finish(120) == 0, started.text()
    assert re.search(r"encoding and decoding took .* on workers", started.text())
    assert (" not sent at the end" in started.text()) == is_fed_back
    assert accuracy(started) > 0.8


@pytest.mark.slow
@pytest.mark.timeout(420)
@pytest.mark.parametrize("text", ["synchronous(codec=deflate())", "averaging(2, codec=exact())"])
def test_under_a_lossless_codec_a_killed_server_changes_no_bit(run_script, text) -> None:
    undisturbed = digest(run_script(JOB, text, "undisturbed", name="undisturbed.py"))
    started = run_script(JOB, text, "run", name="killed.py")
    wait_for(lambda: has_pushed(started), 90, "pushes")
    started.named("manyhands.live.server.process", "0").kill()
    assert digest(started) == undisturbed
    assert started.text().count("it is restarted") == 1


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_killed_worker_returns_without_its_residual(run_script) -> None:
    job = JOB.replace("epochs=2", "epochs=4")
    started = run_script(job, "asynchronous(codec=topk(0.05))", "run")
    wait_for(lambda: has_residual(started), 90, "a record of what was not sent")
    started.named("manyhands.live.worker.process", "1").kill()
    assert started.finish(200) == 0, started.text()
    assert "4,800 seen" in started.text()
    assert accuracy(started) > 0.8
    said = " ".join(started.text().split())
    assert re.search(r"residual norm \S+ not sent at the end; lost with worker 1: norm \d", said)
