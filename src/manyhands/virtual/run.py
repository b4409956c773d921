"""A virtual run, from its first event to its folder."""

from __future__ import annotations

import contextlib
import gc
from typing import TYPE_CHECKING

import torch

from manyhands.files.checkpoint import MODEL, member_file, save_model
from manyhands.virtual.conditions.faults import Faults
from manyhands.virtual.log import Logs
from manyhands.virtual.simulator.kernel import Kernel
from manyhands.virtual.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from manyhands.job import Job
    from manyhands.protocols import StrategyProtocol
    from manyhands.trace import Setting
    from manyhands.virtual.conditions.process_hosts import ProcessHosts
    from manyhands.virtual.world import Conditions

    Standing = Callable[[], tuple[float, int]]
    """Virtual seconds, and samples that are trained on."""


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
) -> World:
    """Run a job under a protocol on virtual hosts, and leave its trace and model in a folder.

    Everything that is random follows from the job's seed. The result is the same to the bit on
    one machine and build of torch; one thread computes, because sums over threads would not be.

    Args:
        job: what to train; gradients are real.
        protocol: how.
        places: who runs where.
        conditions: times and rates.
        folder: for this run.
        faults: what goes wrong.
        settings: what to write down about how the run was set.
        begun: is given, when the run begins, what tells how far it is.

    Returns:
        The world as it was left.
    """
    faults = faults or Faults()
    protocol.check(len(places.workers))
    protocol.check_places({*places.workers, *places.servers}, ())
    protocol.check_job(job, len(places.workers))
    needs = protocol.needs(len(places.workers))
    servers = 0 if needs.peer_servers else len(places.servers)
    faults.check(len(places.workers), servers, peers=needs.peer_servers)
    job.make_ready()
    kernel = Kernel()
    logs = Logs(folder, len(places.workers), kernel)
    end = {"status": "finished", "words": ""}
    try:
        with _one_thread(), _rare_collections(), torch.random.fork_rng(devices=[]):
            for setting in settings:
                logs.coordinator.setting(setting.name, setting.value, setting.source)
            world = World(job, protocol, places, conditions, kernel, logs)
            for fault in faults.faults:
                world.expect(fault)
            world.begin()
            begun(lambda: (kernel.now, world.committed))
            kernel.run()
            sha256 = save_model(world.shared(), folder / MODEL)
            logs.coordinator.event("parameters", {"sha256": sha256})
            if needs.ensemble:
                for rank, model in world.members():
                    save_model(model, folder / member_file(rank))
    except Exception as error:
        end = {"status": "failed", "words": str(error).partition("\n")[0] or type(error).__name__}
        raise
    except BaseException as error:
        end = {"status": "interrupted", "words": f"interrupted ({type(error).__name__})"}
        raise
    finally:
        logs.coordinator.event("end", end)
        logs.flush()
    return world


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
    """Look for garbage less often: what ten thousand workers hold is no garbage, and is much."""
    before = gc.get_threshold()
    gc.set_threshold(100_000, 50, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)
