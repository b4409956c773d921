"""Workers without an agent: real processes in real groups, forked by one that has torch loaded.

A script says `if __name__ == "__main__": forked.run(work)`; `work(store, size)` is called in every
process and gives what is written down as JSON by rank. `train` runs a job under a strategy there.
"""

import faulthandler
import json
import os
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from manyhands.files.checkpoint import load_state
from manyhands.job import Job
from manyhands.live.member.progress import Progress
from manyhands.live.worker.checkpoints.storing_plan import StoringPlan
from manyhands.live.worker.trainer import Trainer
from manyhands.models import GPT
from manyhands.strategies import strategy
from manyhands.trace import Header, Recorder
from manyhands.transport.collectives import Group, connect_store, serve_store

CPU = torch.device("cpu")


def run(work: Callable[[Any, int, int], Any], size: int) -> None:
    """Call `work(store, rank, size)` in so many processes; each writes `given-RANK.json`."""
    warnings.simplefilter("error")
    _, port = serve_store()
    children = []
    for rank in range(size):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                torch.set_num_threads(1)
                # Groups wait for 60 s: whoever is waited for has said by then where it stands.
                faulthandler.dump_traceback_later(50, repeat=True)
                given = work(connect_store("127.0.0.1", port), rank, size)
                Path(f"given-{rank}.json").write_text(json.dumps(given), encoding="utf-8")
                code = 0
            except BaseException:  # noqa: BLE001 - shown, and told by the exit code
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        children.append(child)
    failed = [os.waitpid(child, 0)[1] for child in children]
    sys.exit(1 if any(failed) else 0)


_groups: Counter[int] = Counter()


def group_of(store: Any, rank: int, size: int) -> Group:
    """A new group of so many workers; all of them must ask for it."""
    _groups[size] += 1
    return Group(store, rank, size, epoch=_groups[size] * 100 + size, device=CPU, timeout=60.0)


def trainer_of(job: Job, how: str, group: Group, storing: StoringPlan | None = None) -> Trainer:
    """A trainer that writes its trace nowhere."""
    header = Header(role="worker", rank=group.rank, host="a", pid=1, boot="b", clock=0.0, wall=1e9)
    recorder = Recorder(header, lambda _: None, time.monotonic)
    about = (job, strategy(how), group, CPU, recorder, Progress(), time.monotonic)
    return Trainer(*about, storing=storing)


def train(
    job: Job, how: str, store: Any, rank: int, size: int, storing: StoringPlan | None = None
) -> tuple[list[float], dict[str, float], dict[str, torch.Tensor]]:
    """The losses of all steps, the last evaluation and, on the first worker, the stored model.

    The loss of a step is the mean over all samples of the global batch.
    """
    group = group_of(store, rank, size)
    trainer = trainer_of(job, how, group, storing)
    losses = []
    for batch in trainer.batches():
        loss = trainer.step(batch).double().reshape(1)
        samples = batch.share.samples if trainer._bound.speaks else 0
        losses.append(torch.cat([loss * samples, torch.tensor([float(samples)]).double()]))
    total = torch.stack(losses)
    group.sum(total)
    path = Path(f"model-{how}-{size}-{rank}.safetensors")
    state = trainer.finish()
    stored = {}
    if rank == 0:
        state.save(path)
        stored = load_state(path)
    else:
        for _ in state.fetch():
            pass
    group.handle.barrier().wait(timedelta(seconds=60))
    group.close()
    return (total[:, 0] / total[:, 1]).tolist(), trainer.values, stored


def gpt_job(steps: int) -> Job:
    """A small GPT with a frozen parameter, on samples that are all alike."""

    def model() -> GPT:
        torch.manual_seed(0)
        made = GPT(vocabulary=65, width=48, layers=3, heads=4, length=32)
        made.embedding.position.requires_grad_(False)
        return made

    return Job(
        model=model,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.01),
        loss=torch.nn.functional.cross_entropy,
        data=[(torch.arange(32) % 65, torch.arange(32) % 65)] * 64,
        metrics=(),
        global_batch=8,
        samples=8 * steps,
    )


def exchanged(
    job: Job, how: str, store: Any, rank: int, size: int, *, after: int
) -> tuple[list[tuple[str, int, int]], float]:
    """What a worker exchanges in all steps after so many, and the bytes it sends in one of them.

    The first are left out, in which buffers are made and graphs traced.
    """
    group = group_of(store, rank, size)
    trainer = trainer_of(job, how, group)
    before, step = 0, 0
    for batch in trainer.batches():
        if batch.step == after:
            trainer._waits.noted = []
            before = sum(group.traffic()[0].values())
        trainer.step(batch)
        step = batch.step
    sent = (sum(group.traffic()[0].values()) - before) / (step + 1 - after)
    noted = [(one.kind, one.size, one.workers) for one in trainer._waits.noted]
    group.sum(torch.zeros(1))
    group.close()
    return noted, sent
