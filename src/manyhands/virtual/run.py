"""Execution of a virtual run, from its first event to its folder."""

from __future__ import annotations

import contextlib
import gc
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from manyhands.faults import Faults
from manyhands.parameters.gradients import build
from manyhands.parameters.initial.start import check_job_start, start_digest
from manyhands.parameters.optional.checks import check_optional
from manyhands.parameters.optional.model_calls import check_calls
from manyhands.parameters.optional.plateau import has_plateau
from manyhands.parameters.weights.loss_division import division_words
from manyhands.seeding import random_state, restore_random_state
from manyhands.strategies import check_job
from manyhands.trace import Setting
from manyhands.virtual.checkpoints import VirtualCheckpoints
from manyhands.virtual.conditions.simulated_faults import simulated
from manyhands.virtual.lockstep import world_class
from manyhands.virtual.log import Logs
from manyhands.virtual.remembered import remembered
from manyhands.virtual.simulator.kernel import Kernel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from manyhands.files.checkpoints import Checkpoint
    from manyhands.job import Job
    from manyhands.protocols import StrategyProtocol
    from manyhands.virtual.conditions.process_hosts import ProcessHosts
    from manyhands.virtual.conditions.run_conditions import Conditions
    from manyhands.virtual.world import World

    Standing = Callable[[], tuple[float, int]]
    """Virtual seconds, and samples trained on."""


def simulate_job(
    job: Job,
    protocol: StrategyProtocol,
    places: ProcessHosts,
    conditions: Conditions,
    folder: Path,
    *,
    faults: Faults | None = None,
    settings: Sequence[Setting] = (),
    begun: Callable[[Standing], object] = lambda _: None,
    time_only: bool = False,
    resume: Checkpoint | None = None,
) -> World:
    """Run a job under a protocol on virtual hosts, and write its trace and model to a folder.

    All randomness derives from the job's seed. The result is bitwise equal on one machine and build
    of torch; computation uses one thread, because sums over several threads would differ.

    Args:
        job: the job to train; gradients are real.
        protocol: the strategy.
        places: the host of each process.
        conditions: times and rates.
        folder: the folder of this run.
        faults: the schedule of faults.
        settings: the run's settings, for the trace.
        begun: called at the start with a function that returns the progress.
        time_only: compute no numbers; all times are the same as with numbers.
        resume: the checkpoint that the run continues from.

    Returns:
        The final state of the simulation.

    Raises:
        ValueError: the run cannot be simulated, or cannot continue from the checkpoint.
    """
    if resume is not None and time_only:
        raise ValueError(
            "a time-only run has no parameters, so it cannot continue from a checkpoint: leave out "
            "time_only, or resume"
        )
    faults = faults or Faults()
    protocol.check(len(places.workers))
    protocol.check_places({*places.workers, *places.servers}, ())
    check_job(protocol, job, len(places.workers))
    if not time_only:
        check_optional(protocol, job, ["cpu"])
        _check_division(job, protocol, len(places.workers))
    needs = protocol.needs(len(places.workers))
    back = needs.takes_back and (bool(protocol.obstacle("plateau")) or not has_plateau(job))
    expected = simulated(faults, places, peers=needs.peer_servers or needs.collectives, back=back)
    job.make_ready()
    job = job if resume is None else replace(job, start=resume.folder)
    check_job_start(job)
    if resume is None and (digest := start_digest(job)) is not None:
        settings = (*settings, Setting("start_sha256", digest, "script"))
    kernel = Kernel()
    follows = "staleness" in job.measures
    logs = Logs(folder, len(places.workers), kernel, follows_staleness=follows)
    checkpoints: VirtualCheckpoints | None = None
    end = {"status": "finished", "words": ""}
    try:
        with _one_thread(), _rare_collections(), torch.random.fork_rng(devices=[]):
            for setting in settings:
                logs.coordinator.setting(setting.name, setting.value, setting.source)
            of_kind = world_class(needs, time_only=time_only)
            world = of_kind(job, protocol, places, conditions, kernel, logs)
            if not time_only:
                checkpoints = VirtualCheckpoints(world, job, protocol, kernel, logs, folder, resume)
            for fault in expected:
                world.expect(fault)
            world.begin()
            if checkpoints is not None:
                checkpoints.begin()
            begun(lambda: (kernel.now, world.committed))
            kernel.run()
            world.store(folder)
    except Exception as error:
        end = {"status": "failed", "words": str(error).partition("\n")[0] or type(error).__name__}
        raise
    except BaseException as error:
        end = {"status": "interrupted", "words": f"interrupted ({type(error).__name__})"}
        raise
    finally:
        if checkpoints is not None:
            checkpoints.close()
        logs.coordinator.event("end", end)
        logs.flush()
    return world


def _check_division(job: Job, protocol: StrategyProtocol, workers: int) -> None:
    """Warn of a loss for which several workers do not train as one; once for a job.

    Raises:
        Refused: workers would wait for each other for ever.
    """
    needs = protocol.needs(workers)
    one_weight = not needs.one_replica or job.micro_batch is not None

    def find() -> str:
        kept = random_state()
        try:
            check_calls(job, model := build(job), needs.calling_alike, protocol)
            return division_words(job, model, one_weight=one_weight)
        finally:
            restore_random_state(kept)

    if job.streams or (workers == 1 and job.micro_batch is None):
        return
    words = remembered(job, ("division", one_weight, needs.calling_alike), find)
    if words:
        warnings.warn(words, stacklevel=2)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def _rare_collections() -> Iterator[None]:
    """Run the garbage collector less often: traversing the objects of many workers is slow."""
    before = gc.get_threshold()
    gc.set_threshold(100_000, 50, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)
