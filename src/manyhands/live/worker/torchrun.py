"""Scripts under torchrun: every process is a worker already, and torchrun watches them."""

from __future__ import annotations

import gc
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from manyhands.engine import PrefixStore, Store, rendezvous
from manyhands.live.devices import devices, take
from manyhands.live.member.heartbeat import FileHeartbeat
from manyhands.live.member.progress import Progress
from manyhands.live.member.trace_files import append_to
from manyhands.live.worker.process import run_loop
from manyhands.live.worker.slowdown import Slowdown
from manyhands.pacing import factor
from manyhands.parameters.initial.start import start_digest
from manyhands.parameters.optional.checks import check_optional
from manyhands.script.origin import override
from manyhands.trace import Recorder, estimate_offset, live_header, trace_file
from manyhands.transport.collectives import LOOPBACK, Group
from manyhands.transport.interfaces import address_towards

if TYPE_CHECKING:
    from collections.abc import Callable

    from manyhands.job import Job
    from manyhands.live.request import RunSetting
    from manyhands.pacing import Pace
    from manyhands.script.origin import Overrides
    from manyhands.strategies import Strategy

_PINGS = 8
_calls = 0


def is_torchrun() -> bool:
    """Whether torchrun, or a launcher that sets its variables, started this process."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()


def workers() -> int:
    """Number of processes that torchrun started."""
    return int(os.environ["WORLD_SIZE"])


def rank() -> int:
    """Rank of this process."""
    return int(os.environ["RANK"])


def join(
    job: Job,
    strategy: Strategy,
    overrides: Overrides,
    loop: Callable[..., Any] | None,
    folder: Path,
    settings: tuple[RunSetting, ...],
    slow: tuple[Pace, ...],
) -> Path:
    """Train as one of torchrun's processes; return the run's folder, which rank 0 chooses."""
    global _calls  # noqa: PLW0603 - several runs in one script need separate keys in the store
    _calls += 1
    check_optional(strategy, job, devices(1))
    store, number, size = next(iter(rendezvous("env://")))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    prefixed = PrefixStore(f"manyhands/{attempt}/{_calls}", store)
    folder = _agree_on_folder(prefixed, number, folder)
    job.make_ready()
    overrides = _agree_on_start(prefixed, number, job, overrides)

    head = live_header("worker", number, clock=time.monotonic, wall=time.time)
    recorder = Recorder(head, append_to(trace_file(folder, head)), time.monotonic)
    progress = Progress()
    if number == 0:
        for setting in settings:
            recorder.setting(setting.name, setting.value, setting.source)
    heartbeat = FileHeartbeat(recorder, progress, time.monotonic)
    heartbeat.start()
    status, words = "failed", "worker 0 failed"
    try:
        local = int(os.environ.get("LOCAL_RANK", "0"))
        device = take(devices(local + 1)[local])
        group = Group(prefixed, number, size, epoch=1, device=device, address=_own_address())
        _compare_clocks(group, prefixed, head.boot, recorder)
        run_loop(
            override(job, overrides),
            strategy,
            group,
            device,
            recorder,
            progress,
            loop,
            folder,
            Slowdown(factor(slow, number)),
        )
        status, words = "finished", ""
    finally:
        if number == 0:
            recorder.event("end", {"status": status, "words": words})
        heartbeat.stop()
    # The first worker reads all traces, so none may return before all are written.
    group.sum(torch.zeros(1, device=device))
    group.close()
    # A thread of Gloo drops the tensors of the last collective after it has ended, and needs the
    # interpreter for that: a script that ends at once would be aborted. So the threads end first.
    del group
    gc.collect()
    return folder


def _agree_on_folder(prefixed: Store, rank: int, folder: Path) -> Path:
    if rank == 0:
        (folder / "trace").mkdir(parents=True, exist_ok=True)
        prefixed.set("folder", str(folder.resolve()))
    chosen = Path(prefixed.get("folder").decode())
    (chosen / "trace").mkdir(parents=True, exist_ok=True)
    return chosen


def _agree_on_start(prefixed: Store, rank: int, job: Job, overrides: Overrides) -> Overrides:
    """The overrides with the digest that the job's start has on worker 0."""
    if job.start is None:
        return overrides
    if rank == 0:
        prefixed.set("start", start_digest(job) or "")
    digest = prefixed.get("start").decode()
    return replace(overrides, start_digest=digest)


def _own_address() -> str:
    """The address of the interface that leads to torchrun's master; loopback on one host."""
    if os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]:
        return LOOPBACK
    return address_towards(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))


def _compare_clocks(group: Group, prefixed: Store, boot: str, recorder: Recorder) -> None:
    """Estimate the offset of each worker's clock from rank 0's, if there are several hosts."""
    prefixed.set(f"boot/{group.rank}", boot)
    boots = {prefixed.get(f"boot/{rank}") for rank in range(group.size)}
    if len(boots) == 1:
        return
    word = torch.zeros(1, dtype=torch.float64, device=group.device)
    for peer in range(1, group.size):
        exchanges = []
        for _ in range(_PINGS):
            if group.rank == peer:
                sent = time.monotonic()
                group.handle.send([word], 0, 0).wait()
                group.handle.recv([word], 0, 0).wait()
                exchanges.append((sent, word.item(), time.monotonic()))
            elif group.rank == 0:
                group.handle.recv([word], peer, 0).wait()
                group.handle.send([torch.full_like(word, time.monotonic())], peer, 0).wait()
        if exchanges:
            offset = estimate_offset(exchanges)
            recorder.offset(offset.seconds, offset.error)
