"""Bytes mean one thing: the table of strategies, virtual runs and live runs count the same.

Payloads are equal to the byte, wire bytes within 2 %. What a run exchanges does not depend on the
order in which its messages arrive, so the sums of two runs can be compared.
"""

import json
import sys
import textwrap

import pytest

from manyhands.costs import TensorSize
from manyhands.lab.networks.namespaces import NotPermitted, network
from manyhands.placements import AllReduce, FullySharded, Zero
from manyhands.protocols import ALL
from manyhands.reports import Run, measure, traffic
from manyhands.strategies import strategy
from manyhands.trace import Flow

WORKERS = 4
SCRIPT = """
    import json, os, sys
    import torch, torch.nn.functional as F
    import manyhands as mh

    WIDTH = int(os.environ.get("WIDTH", "330"))

    torch.manual_seed(0)
    inputs, targets = torch.randn(128, 300), torch.randint(0, WIDTH, (128,))
    job = mh.Job(
        model=lambda: torch.nn.Linear(300, WIDTH),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.01),
        loss=F.cross_entropy,
        data=torch.utils.data.TensorDataset(inputs, targets),
        validation=torch.utils.data.TensorDataset(inputs[:8], targets[:8]),
        metrics=(),
        global_batch=16,
        epochs=1,
    )

    if __name__ == "__main__":
        for number, (text, samples) in enumerate(json.loads(sys.argv[1])):
            mh.train(job, text, workers=4, samples=samples, output=f"live-{number}")
            if sys.argv[2] == "both":
                mh.simulate(job, text, workers=4, samples=samples, output=f"virtual-{number}")
"""
SIZE = 4 * 330 * 301
"""Bytes of the parameters: about 10^5 of them."""
SAMPLES = 128
"""Eight global batches, so every interval below divides the steps of a worker."""
EVERY_DAY = [
    "synchronous(servers=2)",
    "hierarchical(outer=diloco(every=4))",
    "gossip()",
    "push_sum()",
]
FURTHER = [
    "asynchronous()",
    "local_sgd(every=4)",
    "central_storage()",
    "softsync(wait_for=3)",
    "ssp(staleness=2)",
    "hogwild()",
    "averaging(every=2)",
    "diloco(every=8, servers=2)",
    "hierarchical(outer=synchronous())",
    "easgd(every=2)",
    "easgd(order=asynchronous)",
    "easgd(order=round_robin)",
    "gossip(graph=exponential)",
    "gossip(graph=random_pairs)",
    "gossip(order=asynchronous)",
    "broadcast(codec=none)",
    "ensemble()",
]


def test_every_protocol_takes_part():
    named = {text.partition("(")[0] for text in EVERY_DAY + FURTHER}
    assert named == {protocol.name for protocol in ALL}


def samples_of(text):
    # A worker of push_sum that runs ahead skips a transfer after six without receiving any; one
    # global batch has four steps.
    return 16 if text.startswith("push_sum") else SAMPLES


def check(text, live, virtual):
    """Table, virtual run and live run of one protocol on one host."""
    protocol = strategy(text)
    formula = protocol.step_payload(WORKERS, SIZE)
    steps = samples_of(text) // 4
    for run in (live, virtual):
        assert sum(worker.totals.steps for worker in run.trace.workers) == steps, text
        found = traffic(run.trace)
        worker = found.workers_flow("training")
        assert worker.payload_sent == formula.sent * steps, (text, run.trace.kind)
        assert worker.payload_received == formula.received * steps, (text, run.trace.kind)
        carried = found.flow("training", "within")
        assert carried.payload_sent == carried.payload_received == formula.carried * steps, text
        assert found.flow("training", "between") == Flow(), text
        training = measure(run.trace).traffic.get("training")
        if training is not None:
            assert training.payload_within == carried.payload_sent
            assert training.wire_within == carried.wire_sent
            assert training.workers_sent == formula.sent * steps
            assert training.workers_received == formula.received * steps
    phases = ["start", "training", "evaluation"]
    if text == "ensemble()":
        # A virtual evaluation of an ensemble computes on the replicas where they are.
        phases.remove("evaluation")
    for phase in phases:
        one, other = (traffic(run.trace).flow(phase) for run in (live, virtual))
        assert one.payload_sent == other.payload_sent, (text, phase)
        assert one.payload_received == other.payload_received, (text, phase)
        assert one.wire_sent == pytest.approx(other.wire_sent, rel=0.02, abs=5000), (text, phase)
    one, other = (traffic(run.trace).flow("training") for run in (live, virtual))
    assert one.wire_sent == pytest.approx(other.wire_sent, rel=0.02), text
    assert one.wire_received == pytest.approx(other.wire_received, rel=0.02), text


def conform(run_script, tmp_path, texts):
    chosen = [(text, samples_of(text)) for text in texts]
    started = run_script(SCRIPT, json.dumps(chosen), "both")
    assert started.finish(30 + 20 * len(texts)) == 0, started.text()
    for number, text in enumerate(texts):
        check(text, *(Run(tmp_path / f"{kind}-{number}") for kind in ("live", "virtual")))


@pytest.mark.timeout(170)
@pytest.mark.slow
def test_table_virtual_and_live_runs_count_the_same_bytes(run_script, tmp_path):
    conform(run_script, tmp_path, EVERY_DAY)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_other_protocols_count_the_same_bytes(run_script, tmp_path):
    conform(run_script, tmp_path, FURTHER)


PLACED = {"allreduce()": AllReduce(), "zero(stage=1)": Zero(1), "fully_sharded()": FullySharded()}


SIZES = [TensorSize("weight", 4 * 330 * 300, rows=330), TensorSize("bias", 4 * 330, rows=330)]


@pytest.mark.timeout(170)
@pytest.mark.parametrize(
    "text",
    [
        text if number == 0 else pytest.param(text, marks=pytest.mark.slow)
        for number, text in enumerate(PLACED)
    ],
)
def test_collectives_send_what_is_forecast(run_script, tmp_path, text):
    started = run_script(SCRIPT, json.dumps([(text, SAMPLES)]), "live")
    assert started.finish(150) == 0, started.text()
    trace, steps = Run(tmp_path / "live-0").trace, SAMPLES // 16
    forecast = PLACED[text].forecast(SIZES, WORKERS).sent_per_step(WORKERS)
    for worker in trace.workers:
        flow = worker.totals.traffic["training/within"]
        assert flow.payload_sent == pytest.approx(forecast * steps, abs=1)
        assert flow.wire_sent == pytest.approx(flow.payload_sent, rel=0.02)
        assert flow.wire_received == pytest.approx(flow.payload_received, rel=0.02)
    assert traffic(trace).flow("training", "between") == Flow()


@pytest.mark.slow
@pytest.mark.timeout(170)
@pytest.mark.parametrize(
    # Updates of 2.4 MB are granted a slot and sent in chunks, those of 0.4 MB with their offer.
    ("text", "width"),
    [("synchronous()", 2000), ("gossip()", 330)],
)
def test_between_hosts_in_namespaces_the_bytes_are_those_of_a_virtual_network(
    start, tmp_path, text, width
):
    try:
        with network(2, 1e8, 0.0):
            pass
    except NotPermitted as reason:
        pytest.skip(str(reason))
    job = textwrap.dedent(SCRIPT).partition("if __name__")[0]
    main = 'if __name__ == "__main__":\n    mh.train(job)\n'
    (tmp_path / "script.py").write_text(job + main, encoding="utf-8")
    command = (sys.executable, "-m", "manyhands")
    common = ("script.py", "--strategy", text, "--workers", "2")
    started = start(
        *command, "train", *common, "--network", "1gbit", "--output", "live", WIDTH=str(width)
    )
    assert started.finish(120) == 0, started.text()
    network_of = ("--bandwidth", "1gbit", "--placing", "colocated")
    started = start(
        *command, "simulate", *common, *network_of, "--output", "virtual", WIDTH=str(width)
    )
    assert started.finish(60) == 0, started.text()
    live, virtual = (traffic(Run(tmp_path / kind).trace) for kind in ("live", "virtual"))
    size, steps = 4 * width * 301, SAMPLES // 16
    formula = strategy(text).step_payload(2, size)
    # Of two workers the first is beside the server; two neighbours are each other's.
    between = formula.carried * steps * (1 if text == "synchronous()" else 2)
    for phase in ("start", "training", "evaluation"):
        for scope in ("between", "within"):
            one, other = live.flow(phase, scope), virtual.flow(phase, scope)
            assert one.payload_sent == other.payload_sent, (phase, scope)
            assert one.payload_received == other.payload_received, (phase, scope)
            assert one.wire_sent == pytest.approx(other.wire_sent, rel=0.02, abs=2000)
    assert live.flow("training", "between").payload_sent == between
    assert live.flow("training", "between").payload_received == between
