"""State of a virtual run: start, crash and return of its processes, and its end."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import torch

from manyhands.failure import RunFailed
from manyhands.faults import Crash, Cut, Fault, Isolate, Lose, Pause
from manyhands.files.checkpoint import member_file, save_model
from manyhands.parameters import Holder, UpdateCounts, lerp
from manyhands.parameters.weights.loss_weight import counting_among
from manyhands.protocols import Terms
from manyhands.protocols.compression.making import with_codecs
from manyhands.protocols.compression.shard import CodedShard
from manyhands.protocols.compression.worker import CodedEndpoint
from manyhands.protocols.parts.push import only_reads
from manyhands.sampling.permutation import member_seed, mix
from manyhands.virtual.coordinator import LeaseChannel, VirtualCoordinator
from manyhands.virtual.peers import Peers, server_of
from manyhands.virtual.server import Server
from manyhands.virtual.simulator.cores import Cores
from manyhands.virtual.simulator.member import VirtualProcess
from manyhands.virtual.simulator.network import Network
from manyhands.virtual.worker.coding_time import CodingTime
from manyhands.virtual.worker.endpoint import VirtualEndpoint
from manyhands.virtual.worker.evaluation import evaluate
from manyhands.virtual.worker.measures import ReplicaMeasures
from manyhands.virtual.worker.record import WorkerRecord
from manyhands.virtual.worker.replica import VirtualReplica
from manyhands.virtual.worker.shared_model import Replication, SharedModel

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torch import nn

    from manyhands.endpoint import Endpoint
    from manyhands.job import Job
    from manyhands.protocols import StrategyProtocol
    from manyhands.virtual.conditions.process_hosts import ProcessHosts
    from manyhands.virtual.conditions.run_conditions import Conditions
    from manyhands.virtual.log import Logs, WorkerLog
    from manyhands.virtual.simulator.kernel import Kernel

_RNG, _TIMES, _SHARES = 2, 3, 4
"""Purposes for `mix`: a worker's random generator, its compute times, its shares of links."""
_ENDED_WITHIN = 1.0
"""Seconds until a lost worker that reappears is ended: the heartbeat of its agent."""


class World:
    """The processes of one virtual run, and the faults that hit them.

    Args:
        job: the job to train.
        protocol: the strategy.
        places: the host of each process.
        conditions: times and rates.
        kernel: the clock.
        logs: the traces.
        shared_model: computes gradients; by default the job's model.
    """

    adopts_payloads: ClassVar[bool] = True
    server_class: ClassVar[type[Server]] = Server
    replica_class: ClassVar[type[VirtualReplica]] = VirtualReplica
    coded_shard_class: ClassVar[type[CodedShard]] = CodedShard
    coded_endpoint_class: ClassVar[type[CodedEndpoint]] = CodedEndpoint
    coordinator_class: ClassVar[type[VirtualCoordinator]] = VirtualCoordinator

    def __init__(
        self,
        job: Job,
        protocol: StrategyProtocol,
        places: ProcessHosts,
        conditions: Conditions,
        kernel: Kernel,
        logs: Logs,
        shared_model: SharedModel | None = None,
    ) -> None:
        self._job = job
        self._protocol = protocol
        self._needs = needs = protocol.needs(len(places.workers))
        self._conditions, self._kernel, self._logs = conditions, kernel, logs
        self._network = Network(
            kernel,
            places.cluster,
            conditions.copy_rate,
            conditions.handover,
            conditions.sharing,
            mix(job.seed, _SHARES),
            starts_free=conditions.starts_free,
        )
        self._cores = {host.name: Cores(kernel, host.cores) for host in places.cluster.hosts}
        self._shared_model = shared_model or self._new_model(len(places.workers))
        about = (job.batch_sizes, len(places.workers), self._shared_model.rate)
        self._terms = Terms(*about, objectives=len(job.one_by_one))
        self._servers = {
            f"server-{number}": self._server(number, host)
            for number, host in enumerate(places.workers if needs.peer_servers else places.servers)
        }
        self._server_names = tuple(self._servers)
        self._common = self._share()
        writes = torch.zeros(len(places.workers), dtype=torch.int64)
        are_shared = needs.shared_memory and needs.local_optimizer
        self._writes = UpdateCounts(writes) if are_shared else None
        self._workers = [
            WorkerRecord(
                VirtualProcess(f"worker-{rank}", host),
                random.Random(mix(job.seed, _TIMES, rank)),  # noqa: S311 - no secrets
                partial(conditions.seconds, rank),
            )
            for rank, host in enumerate(places.workers)
        ]
        self.coordinator = self.coordinator_class(
            job,
            len(self._workers),
            kernel,
            logs,
            self._evaluate,
            lockstep=needs.lockstep,
            by_rank=needs.by_rank,
            by_speed=needs.by_speed,
            early=needs.early,
            rounds=needs.rounds,
        )
        self._peers = Peers(self._servers if needs.peer_servers else {}, self._workers)
        self.coordinator.on_arrival = self._peers.join
        self._measures = ReplicaMeasures(job, logs.coordinator, self._shared_model, self._living)
        self._losses: list[tuple[str, int]] = []
        """Lost workers, each with its first incarnation that has not ended."""
        self._working = self._returning = 0

    def _new_model(self, workers: int) -> SharedModel:
        """The model that computes the gradients of so many workers."""
        needs, job = self._needs, counting_among(self._job, self._protocol, workers)
        clip = job.clip if needs.clips == "workers" else None
        return SharedModel(job, needs.shards, clip, lockstep=needs.lockstep, workers=workers)

    def _server(self, number: int, host: str) -> Server:
        member = VirtualProcess(f"server-{number}", host)
        holder = self._holder(number)
        server = self.server_class(
            member,
            holder,
            self._protocol,
            replace(self._terms, number=number),
            self._kernel,
            self._network,
            self._cores[host],
            self._conditions.service,
            self._logs.server(member, number),
        )
        server.use_codecs(self._coded(number, holder), self._conditions.coding)
        return server

    def _coded(self, number: int, holder: Holder) -> CodedShard | None:
        about = (self._protocol, number, self._terms.workers, holder, self._job.seed)
        return self.coded_shard_class.of(*about)

    def _holder(self, number: int, room: torch.Tensor | None = None) -> Holder:
        if not self._needs.peer_servers:
            clip = self._job.clip if self._needs.clips == "servers" else None
            shards = self._needs.shards
            return Holder(self._job, number % shards, shards, clip=clip, room=room)
        seed = self._job.seed
        if self._needs.ensemble:
            seed = member_seed(seed, number)
        return Holder(replace(self._job, seed=seed), 0, 1)

    def _share(self) -> list[torch.Tensor] | None:
        """The parameters in shared memory, if the protocol uses it."""
        if not self._needs.shared_memory:
            return None
        held = [server.holder.bytes for server in self._servers.values()]
        return held or self._shared_model.first_parameters()

    def begin(self) -> None:
        """Start all processes."""
        for server in self._servers.values():
            self._start_server(server)
        for rank in range(len(self._workers)):
            self._start_worker(rank)

    def shared(self) -> nn.Module:
        """The shared model; the mean of the servers' replicas, if each has a whole one.

        For an ensemble, the model of the first member.
        """
        servers, first = list(self._servers.values()), self._workers[0].replication
        if self._common is not None:
            return self._shared_model.shared(self._common, first)
        if not self._needs.peer_servers:
            centre = self._protocol.shared_by(len(self._workers))
            held = [servers[number].holder.bytes for number in centre]
            return self._shared_model.shared(held, first)
        if self._needs.ensemble and first is not None:
            return self._shared_model.shared([first.parameters[0].clone()], first)
        # At the end of the run, the workers that were alive until then have been released.
        now = self._kernel.now
        present = [server for server in servers if server.name in self._peers.present]
        living = [one for one in present if one.member.died(one.member.life) >= now]
        living = living or servers[:1]
        mean = living[0].holder.bytes.clone()
        for count, server in enumerate(living[1:], start=2):
            lerp(server.holder.shard, mean, server.holder.bytes, 1 / count)
        mass = sum(self._protocol.mass(server.state) for server in living) / len(living)
        for flat in living[0].holder.shard.flat_by_dtype:
            flat.view(mean).div_(mass)
        return self._shared_model.shared([mean], first)

    def members(self) -> Iterator[tuple[int, nn.Module]]:
        """The replica of every live worker, one at a time, loaded into one model."""
        for rank, worker in enumerate(self._workers):
            if worker.member.alive and worker.replication is not None:
                own = worker.replication
                yield rank, self._shared_model.shared([own.parameters[0].clone()], own)

    def store(self, folder: Path) -> None:
        """Write the shared model to the run's folder; for an ensemble, all of its members, too."""
        self._shared_model.divergence.finally_(self._logs.coordinator)
        sha256 = save_model(self.shared(), folder / member_file(0))
        self._logs.coordinator.event("parameters", {"sha256": sha256})
        if self._needs.ensemble:
            for rank, model in self.members():
                save_model(model, folder / member_file(rank))

    @property
    def committed(self) -> int:
        """Samples trained on so far."""
        return self.coordinator.leases.committed

    @property
    def versions(self) -> tuple[int, ...]:
        """Number of updates that each server has applied."""
        return tuple(server.state.version for server in self._servers.values())

    @property
    def parts(self) -> tuple[dict[str, Server], list[WorkerRecord], SharedModel]:
        """The servers by name, the workers by rank, and the model that computes gradients."""
        return self._servers, self._workers, self._shared_model

    def _living(self) -> list[Replication]:
        """The state of every live worker."""
        kept = (worker.replication for worker in self._workers if worker.member.alive)
        return [one for one in kept if one is not None]

    def _evaluate(self) -> dict[str, float] | None:
        """The metrics; None for an ensemble whose workers are all dead, if nobody knows it yet."""
        living, shared_model = self._living(), self._shared_model
        if self._needs.ensemble and not living:
            return None
        self._measures.record(self.committed)
        if self._needs.ensemble:
            members = [one.parameters[0].clone() for one in living]
            values = evaluate(shared_model.job, shared_model.ensemble(members))
        else:
            values = evaluate(shared_model.job, self.shared())
            shared_model.adopt_shared_buffers(living)
        where = f"after {self.committed:,} samples"
        record = self._logs.coordinator
        shared_model.divergence.check(record, values["loss"], "validation", where)
        shared_model.observe(values, living)
        return values

    def _start_server(self, server: Server) -> None:
        """Start a server; after a restart it processes the losses of workers since its crash."""
        server.member.begin()
        for worker, least in self._losses[server.told :]:
            server.fence(worker, least)
        self._kernel.start(server.member, server.serve(), lambda: None)

    def _start_worker(self, rank: int) -> None:
        worker = self._workers[rank]
        member = worker.member
        life = member.begin()
        rng = random.Random(mix(self._job.seed, _RNG, rank, life))  # noqa: S311 - no secrets
        log = self._logs.worker(member, rank)
        own = server_of(member.name) if self._needs.peer_servers else ""
        endpoint = VirtualEndpoint(
            member, self._servers, self._kernel, self._network, rng, log, own
        )
        worker.endpoint = endpoint
        if own:
            self._servers[own].count_in(log)
        if self._needs.peer_servers and life > 1:
            self._bring_back(rank)
            self._peers.acquaint(endpoint)
        local, keeps = self._needs.local_optimizer, self._needs.own_parameters
        worker.replication = Replication(
            self._shared_model, rank, local=local, beside=keeps, common=self._common
        )
        worker.channel = self.coordinator.begin(member)
        replica = self.replica_class(
            member,
            rank,
            self._server_names,
            self._terms,
            worker.replication,
            self._shared_model,
            worker.channel,
            self._cores[member.host],
            worker.seconds,
            self._kernel,
            log,
            self._writes,
        )
        replica.saving, replica.by_speed = self._conditions.saving, self._needs.by_speed
        used = self._with_codecs(endpoint, rank, log)
        replica.refresh = partial(self._protocol.refresh, replica, used)
        replica.stand_by = partial(self._protocol.stand_by, replica, used)
        replica.evaluators = self._needs.evaluating
        replica.enter = endpoint.enter
        if self.adopts_payloads and used is endpoint and only_reads(self._protocol):
            endpoint.adopt = replica.taking_over()
        work = self._protocol.worker(replica, used)
        worker.works = True
        self._working += 1
        self._kernel.start(member, work, partial(self._end_worker, worker))

    def _with_codecs(self, endpoint: VirtualEndpoint, rank: int, log: WorkerLog) -> Endpoint:
        """The endpoint of a protocol's worker, which encodes and decodes if there are codecs."""
        about = (self._protocol, rank, self._terms.workers, self._shared_model.layout)
        times = (endpoint, self._cores[endpoint.member.host], self._kernel, log)
        effort, kind = CodingTime.at(self._conditions.coding, *times), self.coded_endpoint_class
        coded = with_codecs(endpoint, *about, self._job.seed, effort=effort, kind=kind)
        if coded is None:
            return endpoint
        endpoint.on_loss = coded.lose
        self._workers[rank].coded = coded
        self._logs.follow_residual(rank, coded.residuals)
        return coded

    def _end_worker(self, worker: WorkerRecord) -> None:
        self._working -= worker.works
        worker.works = False
        self._logs.end(self._workers.index(worker))
        self._check_end()

    def _check_end(self) -> None:
        if self._working or (self._returning and not self.coordinator.is_over):
            return
        if self.coordinator.is_over or any(worker.member.alive for worker in self._workers):
            self._kernel.finish()
        else:
            self._kernel.fail(RunFailed(f"all workers were lost after {self._kernel.now:g} s"))

    def expect(self, fault: Fault) -> None:
        """Schedule a fault."""
        match fault:
            case Crash(worker=int(rank), at=at, restart=restart):
                self._kernel.after(at, partial(self._crash_worker, rank, restart, fault))
            case Crash(server=int(number), at=at, restart=restart) if restart is not None:
                self._servers[f"server-{number}"].expect_crash()
                self._kernel.after(at, partial(self._crash_server, number, restart, fault))
            case Pause(at=at, seconds=seconds) if seconds is not None:
                self._kernel.after(at, partial(self._pause, seconds, fault))
            case Isolate(at=at):
                self._kernel.after(at, partial(self._isolate, fault))
            case Lose(a=one, b=other, at=at):
                self._kernel.after(at, partial(self._network.lose_next, one, other))
                self._kernel.after(at, partial(self._note, fault))
            case Cut(a=one, b=other, start=start, stop=stop):
                if fault.is_between_peers:
                    self._network.cut(one, server_of(other), start, stop)
                    self._network.cut(server_of(one), other, start, stop)
                else:
                    self._network.cut(one, other, start, stop)
                self._kernel.after(start, partial(self._note, fault))
            case _:
                self.coordinator.expect(fault)

    def _crash_worker(self, rank: int, restart: float | None, fault: Fault) -> None:
        worker = self._workers[rank]
        if not worker.member.alive:
            return
        self._note(fault)
        self._kill(worker.member)
        if self._needs.peer_servers:
            own = self._servers[server_of(worker.member.name)]
            self._kill(own.member)
            own.crash()
        self._logs.close(rank)
        self._working -= worker.works
        worker.works = False
        life = worker.member.life
        self._kernel.after(self._conditions.detection, partial(self._lose, worker, life))
        if restart is not None:
            self._returning += 1
            self._kernel.after(restart, partial(self._return, rank))
        self._check_end()

    def _lose(self, worker: WorkerRecord, life: int) -> None:
        """Handle the detection of a dead worker."""
        if life not in worker.missed:
            self._record_death("lost", worker.member)
            self._declare_lost(worker, life)

    def _record_death(self, what: str, member: VirtualProcess) -> None:
        words = f"{member.name} died after {member.deaths[-1]:g} s"
        self._logs.coordinator.event(what, {"member": member.name, "words": words})

    def _declare_lost(self, worker: WorkerRecord, life: int) -> None:
        """Lease a dead worker's samples again and fence its late calls, once."""
        if life in worker.missed:
            return
        worker.missed.add(life)
        name = worker.member.name
        self._losses.append((name, life + 1))
        for server in self._servers.values():
            if server.member.alive:
                server.fence(name, life + 1)
        self._peers.lose(name)
        self.coordinator.lose(name)

    def _isolate(self, fault: Isolate) -> None:
        """Cut the links of a worker to all servers and to the coordinator."""
        worker = self._workers[fault.worker]
        member, channel = worker.member, worker.channel
        now, life = self._kernel.now, member.life
        if not member.alive or channel is None or channel.is_cut_off or life in worker.missed:
            return
        self._note(fault)
        for server in self._servers:
            self._network.cut(member.name, server, now, now + fault.seconds)
        channel.is_cut_off = True
        judge = partial(self._declare_isolated_lost, worker, life, fault)
        self.coordinator.judge_after(self._conditions.detection, judge)
        self._kernel.after(fault.seconds, partial(self._heal, worker, life, channel, fault))

    def _declare_isolated_lost(self, worker: WorkerRecord, life: int, fault: Isolate) -> None:
        """Handle the detection of an isolated worker: the run continues without it."""
        cut_off = worker.channel is not None and worker.channel.is_cut_off
        if not (cut_off and worker.member.is_in(life)) or life in worker.missed:
            return
        words = f"no heartbeat from {worker.member.name} for {self._conditions.detection:g} s"
        self._logs.coordinator.event("lost", {"member": worker.member.name, "words": words})
        self._working -= worker.works
        worker.works = False
        self._returning += fault.restart is not None
        worker.isolated.add(life)
        self._declare_lost(worker, life)
        self._check_end()

    def _heal(self, worker: WorkerRecord, life: int, channel: LeaseChannel, fault: Isolate) -> None:
        """Restore the link of an isolated worker; if it was declared lost, end its process."""
        channel.heal()
        if life in worker.isolated:
            self._kernel.after(_ENDED_WITHIN, partial(self._end_isolated, worker, life, fault))

    def _end_isolated(self, worker: WorkerRecord, life: int, fault: Isolate) -> None:
        if not worker.member.is_in(life):
            # It has died meanwhile; the fault that killed it decides on its restart.
            self._returning -= fault.restart is not None
            self._check_end()
            return
        self._kill(worker.member)
        self._logs.close(fault.worker)
        if fault.restart is not None:
            self._kernel.after(fault.restart, partial(self._return, fault.worker))
        self._check_end()

    def _bring_back(self, rank: int) -> None:
        """Restart a worker's own server together with it."""
        own = self._servers[f"server-{rank}"]
        holder = self._holder(rank)
        own.begin_anew(holder, self._losses)
        own.coded = self._coded(rank, holder)
        self._start_server(own)

    def _return(self, rank: int) -> None:
        worker = self._workers[rank]
        self._returning -= 1
        self._record_death("restart", worker.member)
        self._declare_lost(worker, worker.member.life)
        self._start_worker(rank)

    def _crash_server(self, number: int, restart: float, fault: Fault) -> None:
        server = self._servers[f"server-{number}"]
        if not server.member.alive:
            return
        self._note(fault)
        self._kill(server.member)
        server.crash()
        self._record_death("restart", server.member)
        self._kernel.after(restart, partial(self._restart_server, number, server))

    def _restart_server(self, number: int, server: Server) -> None:
        if server.is_restored:
            holder = self._holder(number, self._common[number] if self._common else None)
            server.recover(holder, self._coded(number, holder))
        self._start_server(server)

    def _pause(self, seconds: float, fault: Fault) -> None:
        (name,) = fault.members()
        role, _, number = name.partition("-")
        paused = self._workers[int(number)] if role == "worker" else self._servers[name]
        member = paused.member
        if not member.alive:
            return
        self._note(fault)
        member.pause(self._kernel.now, seconds)
        if self._needs.peer_servers:
            # The server that a worker hosts is in its process, and pauses with it.
            self._servers[server_of(name)].member.pause(self._kernel.now, seconds)

    def _kill(self, member: VirtualProcess) -> None:
        member.end(self._kernel.now)
        self._kernel.drop(member)
        self._network.drop(member)
        self._cores[member.host].drop(member)

    def _note(self, fault: Fault) -> None:
        self._logs.coordinator.event("fault", {"what": str(fault)})
