"""A run of several hosts, each of them an agent of its own on this machine."""

import shlex
import sys
import textwrap

from support import wait_for

EPOCH = 2048
EPOCHS = 20
BATCH = 64
JOB = f"""
    import time
    import torch, torch.nn.functional as F
    import manyhands as mh

    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn({EPOCH}, 20, generator=generator)
    data = torch.utils.data.TensorDataset(inputs, inputs[:, :5].argmax(1))

    def loss(outputs, targets):
        time.sleep(0.02)
        return F.cross_entropy(outputs, targets)

    job = mh.Job(
        model=lambda: torch.nn.Linear(20, 5),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5),
        loss=loss,
        data=data,
        validation=data,
        global_batch={BATCH},
        epochs={EPOCHS},
    )
"""
MANYHANDS = (sys.executable, "-m", "manyhands")


def begun(start, tmp_path, strategy, hosts="a:1, b:1", listen="127.0.0.1", inside=(), options=()):
    """The first host of a run that waits for others, and the commands by which they join it."""
    script = tmp_path / "job.py"
    script.write_text(textwrap.dedent(JOB))
    first = start(
        *(*inside, *MANYHANDS, "train", script, "--strategy", strategy, "--hosts", hosts),
        *("--listen", listen, "--patience", "6", "--output", "run", *options),
    )
    lines = tmp_path / "run" / "join"
    wait_for(lambda: lines.exists() or first.process.poll() is not None, 60, "the lines to join by")
    assert lines.exists(), first.text()
    return first, [shlex.split(line)[1:] for line in lines.read_text().splitlines()]


def is_training(run):
    """Whether its progress line has a percentage."""
    return " %)" in run.text()


def kill(run):
    """Kill a host: its agent and all of its processes."""
    for process in (*run.tree(), run.process):
        process.kill()
