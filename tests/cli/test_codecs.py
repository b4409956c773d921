"""`manyhands codecs`: measured on a job's own gradients."""

import sys
import textwrap

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

import manyhands as mh
from manyhands.codecs import ALL
from manyhands.lab.break_even import break_even
from manyhands.lab.break_even.codecs import default_codecs

JOB = """
    import torch, torch.nn.functional as F
    import manyhands as mh

    torch.manual_seed(0)
    job = mh.Job(
        model=lambda: torch.nn.Linear(200, 100),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=F.cross_entropy,
        data=torch.utils.data.TensorDataset(torch.randn(64, 200), torch.randint(0, 100, (64,))),
        metrics=(),
        global_batch=16,
        epochs=1,
    )
"""


@pytest.fixture
def codecs(start, tmp_path):
    """Measure codecs for the job above: the exit code and what was printed."""
    (tmp_path / "job.py").write_text(textwrap.dedent(JOB), encoding="utf-8")

    def begin(*options):
        started = start(sys.executable, "-m", "manyhands", "codecs", "job.py", *options)
        return started.finish(), started.text()

    return begin


def test_the_table_says_where_codecs_pay(codecs):
    code, text = codecs("--codec", "topk(0.01)", "--codec", "exact()")
    assert code == 0, text
    assert "Codecs for gradients of 80.4 kB" in text
    (topk,) = (line for line in text.splitlines() if line.startswith("topk(0.01)"))
    (exact,) = (line for line in text.splitlines() if line.startswith("exact()"))
    assert "78×" in topk
    assert "never" in exact
    assert text.index(topk) < text.index(exact)
    assert "At 10 Mbit/s only topk(0.01) pays." in text
    assert max(map(len, text.splitlines())) <= 100


def test_a_wrong_codec_is_named(codecs):
    code, text = codecs("--codec", "topf(0.01)", "--json")
    assert code != 0
    assert "there is no codec 'topf'; did you mean 'topk'?" in text


def job() -> mh.Job:
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(64, 50), torch.randint(0, 40, (64,)))
    return mh.Job(
        model=lambda: torch.nn.Sequential(torch.nn.Linear(50, 40), torch.nn.BatchNorm1d(40)),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=F.cross_entropy,
        data=data,
        metrics=(),
        global_batch=16,
        epochs=1,
    )


def test_figures_are_those_of_the_codecs() -> None:
    found = break_even(job(), ["topk(0.1)", "half()", "deflate()"], ["100mbit", "1gbit"], workers=2)
    by_name = {one.text: one for one in found.codecs}
    elements, buffers = 50 * 40 + 40 + 80, 2 * 40 * 4
    assert found.samples == 8
    assert found.dense == 4 * elements + buffers
    half, topk = by_name["half()"], by_name["topk(0.1)"]
    assert half.cost.coded == 2 * elements + buffers
    assert topk.cost.coded == topk.codec.wire_bytes(elements) + buffers
    assert topk.worker_memory == 2 * found.dense
    assert topk.server_memory == 2 * found.dense
    assert by_name["deflate()"].server_memory == 0
    assert by_name["deflate()"].cost.coded < found.dense
    for one in found.codecs:
        slow, fast = one.networks
        assert slow.saved == pytest.approx(10 * fast.saved)
        assert (slow.gain > 1) == (one.pays_below > slow.bandwidth)
    gains = [one.networks[0].gain for one in found.codecs]
    assert gains == sorted(gains, reverse=True)


def test_all_codecs_are_measured_by_default() -> None:
    names = [text.partition("(")[0] for text in default_codecs()]
    assert names[: len(ALL)] == [cls.name for cls in ALL]
