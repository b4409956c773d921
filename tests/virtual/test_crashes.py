"""Workers and servers die and return, links are cut, processes stand still: nothing is lost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import pytest
import torch
from virtual_jobs import a_job

from manyhands.cluster import Link
from manyhands.endpoint import Pull
from manyhands.failure import RunFailed
from manyhands.protocols import Asynchronous, Gossip
from manyhands.reports import Run, accounting, throughput
from manyhands.virtual import Crash, Faults, ProcessHosts

if TYPE_CHECKING:
    from pathlib import Path

    from manyhands.endpoint import Endpoint, Replica


def test_a_worker_that_dies_loses_nothing_and_its_samples_are_repeated(virtually) -> None:
    done = virtually(faults="crash(worker=1, at=0.35)", detection=0.5)
    kept = accounting(done.run.trace)
    assert (kept.seen, kept.repeated, kept.lost) == (400, 5, 0)
    assert done.run.status == "finished"
    assert done.events("fault") == [{"what": "crash(worker=1, at=0.35)"}]
    assert done.events("lost") == [{"member": "worker-1", "words": "worker-1 died after 0.35 s"}]
    assert "  mishaps      worker-1 died after 0.35 s\n" in done.run.summary()
    assert done.events("given again") == [{"member": "worker-1", "samples": "5"}]
    assert done.world.versions == (80,), "it died while it computed, so nothing came twice"


def test_the_others_wait_for_what_a_dead_worker_held_until_it_is_missed(virtually) -> None:
    job = a_job(epochs=1)
    quick = virtually(job, faults="crash(worker=1, at=0.35)", detection=0.1)
    late = virtually(job, faults="crash(worker=1, at=0.35)", detection=30.0)
    assert late.run.seconds == pytest.approx(0.35 + 30 + 0.1, rel=0.01)
    assert quick.run.seconds < 2
    assert late.run.samples == quick.run.samples == 200


def test_a_worker_that_dies_between_push_and_answer_has_its_update_applied(virtually) -> None:
    # A round trip of 0.2 s: pushed at 0.3, delivered at 0.4; dead at 0.35, when all had left.
    places = ProcessHosts.host_each(2, 1, Link(1e9, 0.1))
    job = a_job(size=40, global_batch=2, epochs=1)
    done = virtually(job, places=places, faults="crash(worker=1, at=0.35)")
    kept = accounting(done.run.trace)
    assert (kept.seen, kept.repeated, kept.lost) == (40, 1, 0)
    assert done.world.versions == (41,), "trained on twice, and counted as repeated"


def test_what_had_not_left_when_its_sender_died_never_arrives(virtually) -> None:
    # 104 bytes at 1 kB/s take 0.1 s: pushed at 0.2 or later, dead in the middle of it.
    places = ProcessHosts.host_each(2, 1, Link(1e3, 0.0))
    job = a_job(size=40, global_batch=2, epochs=1)
    clean = virtually(job, places=places)
    spans = [s for s in clean.run.trace.workers[1].spans if s.kind == "compute"]
    middle = round(spans[0].start + spans[0].seconds + 0.05, 3)
    done = virtually(job, places=places, faults=f"crash(worker=1, at={middle})")
    assert accounting(done.run.trace).repeated == 1
    assert done.world.versions == (40,)


def test_a_worker_returns_with_nothing_and_trains_on(virtually) -> None:
    done = virtually(faults="crash(worker=1, at=0.35, restart=0.2)", detection=30.0)
    assert accounting(done.run.trace).repeated == 5
    assert "  mishaps      worker-1 died after 0.35 s, started again\n" in done.run.summary()
    assert done.events("lost") == []
    assert done.run.seconds < 5, "who returns is missed at once"
    lives = [p for p in done.run.trace.workers if p.name == "worker-1"]
    assert [life.life for life in lives] == [0, 1]
    assert lives[1].began == pytest.approx(0.55)
    assert lives[1].totals.samples > 0


def test_the_only_worker_may_return_and_go_on(virtually) -> None:
    done = virtually(
        workers=1,
        faults="[crash(worker=0, at=0.35, restart=2), crash(worker=0, at=3.05, restart=1)]",
    )
    assert done.run.samples == 400
    assert accounting(done.run.trace).repeated == 40


def test_a_run_whose_workers_are_all_gone_fails_and_says_so(virtually, tmp_path: Path) -> None:
    faults = "[crash(worker=0, at=0.1), crash(worker=1, at=0.2), crash(worker=2, at=0.3)]"
    with pytest.raises(RunFailed, match=r"all workers were lost after 0\.3 s"):
        virtually(workers=3, faults=faults)
    summary = Run(tmp_path / "run-1").summary()
    assert "failed: all workers were lost" in summary


def _until_the_end(done) -> float:
    speed = throughput(done.run.trace)
    return speed.start_up + speed.seconds


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("at", [0.05, 0.1, 0.3, 0.301, 0.35, 0.4])
def test_every_update_is_applied_once_though_a_server_dies(
    virtually, servers: int, at: float
) -> None:
    places = ProcessHosts.host_each(4, servers, Link(1e4, 0.01))
    job = a_job(global_batch=4, size=100, epochs=1)
    faults = f"[crash(server=0, at={at}, restart=0.7), crash(server=0, at={at + 2.5}, restart=0.0)]"
    done = virtually(job, Asynchronous(servers=servers), places=places, faults=faults)
    assert done.world.versions == (100,) * servers
    assert accounting(done.run.trace) == accounting(virtually(job).run.trace)
    calm = virtually(job, Asynchronous(servers=servers), places=places)
    # The first of these moments is before any worker has pulled the parameters.
    assert _until_the_end(done) > _until_the_end(calm)


def test_a_server_s_death_costs_a_probe_and_the_parameters_survive_it(virtually) -> None:
    job = a_job(global_batch=1, size=20, epochs=1)
    calm = virtually(job, workers=1)
    done = virtually(job, workers=1, faults="crash(server=0, at=0.55, restart=0.04)")
    assert done.run.seconds == pytest.approx(calm.run.seconds, abs=1e-6), "nobody called meanwhile"
    late = virtually(job, workers=1, faults="crash(server=0, at=0.55, restart=0.5)")
    # It called at 0.6 in vain and again, a probe later, at 1.6, when the server was back.
    assert late.run.seconds == pytest.approx(calm.run.seconds + 1, abs=1e-3)
    assert late.run.parameters_digest == done.run.parameters_digest == calm.run.parameters_digest


def test_a_cut_link_holds_up_those_it_joined_and_heals(virtually) -> None:
    job = a_job(size=120, global_batch=4, epochs=1)
    places = ProcessHosts.host_each(4, 2, Link(1e6, 1e-3))
    faults = 'cut(a="worker-0", b="server-1", start=0.5, stop=4.0)'
    done = virtually(job, Asynchronous(servers=2), places=places, faults=faults)
    assert done.world.versions == (120, 120)
    assert accounting(done.run.trace).repeated == 0
    by_worker = {p.name: p.totals.samples for p in done.run.trace.workers}
    assert by_worker["worker-0"] < min(by_worker[f"worker-{rank}"] for rank in (1, 2, 3)) - 20
    assert 4 < done.run.seconds < 6, "the run ends when the cut has healed"


def test_a_cut_between_push_and_answer_applies_the_update_once(virtually) -> None:
    # The push is delivered at 0.4 and its answer under way until 0.5, when the cut begins.
    places = ProcessHosts.host_each(1, 1, Link(1e9, 0.1))
    job = a_job(size=10, global_batch=1, epochs=1)
    faults = 'cut(a="worker-0", b="server-0", start=0.45, stop=0.6)'
    done = virtually(job, places=places, faults=faults)
    assert done.world.versions == (10,)
    calm = virtually(job, places=places)
    assert done.run.parameters_digest == calm.run.parameters_digest
    # Noticed at 0.5, asked again at 1.5, answered at 1.7 instead of 0.5.
    assert done.run.seconds == pytest.approx(calm.run.seconds + 1.2, abs=1e-3)


def test_a_paused_worker_keeps_its_samples_and_goes_on(virtually) -> None:
    job = a_job(epochs=1)
    calm = virtually(job)
    done = virtually(job, faults="pause(worker=1, at=0.35, seconds=20)", detection=1.0)
    assert accounting(done.run.trace).repeated == 0
    # 0.05 s of its batch were left when it stopped.
    assert done.run.seconds == pytest.approx(20.4, abs=0.01)
    assert done.run.samples == calm.run.samples
    assert done.events("lost") == []


def test_a_cut_between_peers_holds_up_both(virtually) -> None:
    job = a_job(size=120, global_batch=4, epochs=1)
    places = ProcessHosts.host_each(2, 0, Link(1e6, 1e-3))
    cut = 'cut(a="worker-{}", b="worker-{}", start=0.5, stop=4.0)'
    calm = virtually(job, Gossip(), places=places)
    for faults in (cut.format(0, 1), cut.format(1, 0)):
        done = virtually(job, Gossip(), places=places, faults=faults)
        assert done.run.seconds > 3.4 + calm.run.seconds
        assert done.run.parameters_digest == calm.run.parameters_digest


def test_a_worker_s_own_server_stands_still_with_it(virtually) -> None:
    job = a_job(size=120, global_batch=4, epochs=1)
    faults = "pause(worker=1, at=0.5, seconds=3)"
    done = virtually(job, Gossip(order="asynchronous"), workers=2, faults=faults)
    busy = [s.start for s in done.run.trace.workers[0].spans if s.kind == "compute"]
    assert not [begun for begun in busy if 0.75 < begun < 3.5], "it meets worker 1 after each step"


def test_pauses_that_overlap_are_one(virtually) -> None:
    job = a_job(size=1, global_batch=1, epochs=1)
    faults = "[pause(worker=0, at=0.05, seconds=1), pause(worker=0, at=0.55, seconds=1)]"
    done = virtually(job, workers=1, faults=faults)
    assert done.run.seconds == pytest.approx(0.1 + 1.5, abs=1e-3)


def test_a_paused_server_keeps_everybody_waiting(virtually) -> None:
    job = a_job(epochs=1)
    done = virtually(job, faults="pause(server=0, at=0.25, seconds=3)")
    assert done.run.seconds == pytest.approx(virtually(job).run.seconds + 2.95, abs=0.01)
    assert done.world.versions == (40,)


def test_a_fault_of_a_dead_process_has_no_effect(virtually) -> None:
    faults = (
        "[crash(worker=1, at=0.1), crash(worker=1, at=0.2, restart=1), pause(worker=1, at=0.3)]"
    )
    done = virtually(faults=faults)
    assert len(done.events("fault")) == 1
    assert done.events("restart") == []


def test_a_fault_of_a_process_that_the_run_lacks_is_refused(virtually) -> None:
    with pytest.raises(ValueError, match="names worker-9, and the run has 4 workers"):
        virtually(faults="crash(worker=9, at=1)")
    with pytest.raises(ValueError, match="names server-1, and the run has 1 servers"):
        virtually(faults='cut(a="worker-0", b="server-1", start=1, stop=2)')
    with pytest.raises(ValueError, match="names two workers, which exchange no messages"):
        virtually(faults='cut(a="worker-0", b="worker-1", start=1, stop=2)')
    with pytest.raises(ValueError, match="names server-0, and the run has 0 servers"):
        virtually(protocol=Gossip(), faults="pause(server=0, at=1)")


@dataclass(frozen=True, repr=False)
class Stubborn(Asynchronous):
    """A protocol that tries to have the last word: everything it does when it is dropped."""

    name: ClassVar[str] = "stubborn"
    said: list[str] = field(default_factory=list, compare=False)

    async def worker(self, replica: Replica, endpoint: Endpoint) -> None:
        """Work; and, whatever happens, push, commit and pull once more."""
        read = await self.refresh(replica, endpoint)
        held = None
        try:
            async for batch in replica.batches():
                held = batch
                await self.turn(replica, endpoint, batch, read)
                held = None
        finally:
            self.said.append(f"{endpoint.name} at {endpoint.clock():.2f}")
            if held is not None:
                endpoint.post("server-0", Pull(), payload=torch.ones(40, dtype=torch.uint8))
                replica.commit(held)
                await endpoint.receive("server-0")
                self.said.append("received")

    async def turn(self, replica, endpoint, batch, read) -> None:
        """One batch, as the parent protocol does it."""
        from manyhands.endpoint import Push
        from manyhands.protocols.parts.pull_and_rest import answer

        def push(server: int) -> None:
            message = Push(read[server], batch.samples)
            into = replica.parameters(server)
            endpoint.post(replica.servers[server], message, replica.update(server), into)

        await replica.gradient(batch, ready=push)
        for server, name in enumerate(replica.servers):
            read[server] = (await answer(endpoint, name)).version
        replica.commit(batch)


@pytest.mark.parametrize("at", [0.0, 0.05, 0.15, 0.21])
def test_after_a_crash_not_even_a_finally_has_an_effect(virtually, at: float) -> None:
    stubborn = Stubborn()
    places = ProcessHosts.host_each(3, 1, Link(1e5, 0.02))
    faults = f"crash(worker=1, at={at})"
    done = virtually(a_job(epochs=1), stubborn, places=places, faults=faults)
    plain = virtually(a_job(epochs=1), Asynchronous(), places=places, faults=faults)
    assert done.run.parameters_digest == plain.run.parameters_digest
    assert done.world.versions == plain.world.versions
    assert accounting(done.run.trace) == accounting(plain.run.trace)
    assert done.run.seconds == plain.run.seconds
    assert "received" not in stubborn.said
    # No finally ran before the run was over.
    end = f"at {_until_the_end(plain):.2f}"
    assert all(words.endswith(end) for words in stubborn.said)


def test_an_error_of_the_user_s_ends_the_run_as_it_is(virtually, tmp_path: Path) -> None:
    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError("in the loss")

    with pytest.raises(ZeroDivisionError, match="in the loss"):
        virtually(a_job(loss=loss))
    run = Run(tmp_path / "run-1")
    assert run.status == "failed"
    assert "failed: in the loss" in run.summary()


@pytest.mark.parametrize(
    "seed", [*range(20), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(20, 40))]
)
def test_any_schedule_of_faults_ends_with_every_sample_trained(virtually, seed: int) -> None:
    servers = 1 + seed % 2
    faults = Faults.draw(seed, workers=5, servers=servers, horizon=3.0)
    places = ProcessHosts.host_each(5, servers, Link(2e4, 5e-3))
    job = a_job(size=150, global_batch=10, epochs=2, seed=seed)

    def run():
        return virtually(
            job,
            Asynchronous(servers=servers),
            places=places,
            seconds="lognormal(0.1, cv=0.6)",
            faults=faults,
            detection=1.0,
        )

    words = f"seed {seed}: {faults}"
    done = run()
    kept = accounting(done.run.trace)
    assert (kept.seen, kept.lost) == (300, 0), words
    updates = 300 // 2
    worker_deaths = sum(isinstance(f, Crash) and f.worker is not None for f in faults.faults)
    for version in done.world.versions:
        if worker_deaths:
            assert updates <= version <= updates + worker_deaths, words
        else:
            assert version == updates, words
    assert kept.repeated is not None
    assert kept.repeated <= 2 * worker_deaths, words
    assert done.digest == run().digest, words
