"""DiLoCo: local steps, and an outer optimizer with Nesterov momentum on their mean."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from manyhands.endpoint import Push
from manyhands.protocols.actions import Action, Descend
from manyhands.protocols.averaging import LocalSteps
from manyhands.protocols.parts.streaming import Streamer

if TYPE_CHECKING:
    from manyhands.endpoint import Endpoint, Replica
    from manyhands.protocols.actions import Call
    from manyhands.protocols.compression.coding import Coding
    from manyhands.protocols.parts.rounds import Round
    from manyhands.runtime_needs import RuntimeNeeds


@dataclass(frozen=True, repr=False)
class DiLoCo(LocalSteps):
    """Take many local steps, then one outer step with Nesterov momentum on their mean change.

    Δ = θ − mean(θ_n), the mean change of the workers in `every` inner steps, is the gradient of an
    outer step: v ← μ·v + Δ, θ ← θ − η·(Δ + μ·v). The inner optimizer is the job's own, and every
    worker keeps its own optimizer state.

    Use it between sites or over the internet: with every=500 it moves 500 times fewer bytes than
    synchronous training. With every=1, outer_lr=1 and outer_momentum=0 it is `averaging(1)`. If a
    worker is lost, at most one round of its work is lost.

    With `fragments`, the parameters are divided into parts with a server each, and one part is
    synchronised every `every`/`fragments` steps: the largest transfer is that much smaller. With
    `overlap`, workers continue to compute during an exchange, and merge its result that many steps
    later, half and half: θ_n ← ½·θ_n + ½·θ. With `wait_for`, an outer step waits for that many
    workers; the change of a late worker counts in the next outer step, by its samples.

    Example: `diloco(every=500)`

    Papers: Douillard et al., DiLoCo: Distributed Low-Communication Training of Language Models,
    2023; Douillard et al., Streaming DiLoCo with Overlapping Communication, 2025 (fragments,
    overlap).
    """

    name: ClassVar[str] = "diloco"
    support: ClassVar[Literal["beta"]] = "beta"

    every: int = 50
    """Inner steps of each worker between two outer steps."""
    outer_lr: float = 0.7
    """η: the learning rate of the outer step."""
    outer_momentum: float = 0.9
    """μ: the momentum of the outer step."""
    servers: int = 1
    """Number of server processes; each holds an equal shard of the parameters."""
    fragments: int = 1
    """Parts of the parameters that are synchronised one after the other; each has a server."""
    overlap: int = 0
    """Inner steps between sending a part and merging the result; 0 waits for it."""
    wait_for: int | None = None
    """Workers that complete a round; none waits for all that are present."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.outer_lr <= 0 or not 0 <= self.outer_momentum < 1:
            raise ValueError(
                f"outer_lr must be above 0, and outer_momentum at least 0 and below 1, got "
                f"outer_lr={self.outer_lr}, outer_momentum={self.outer_momentum}"
            )
        if not 1 <= self.fragments <= min(self.every, 1024):
            raise ValueError(
                f"fragments must be between 1 and every={self.every} and at most 1024, got "
                f"{self.fragments}: each is synchronised once in an interval, and has a server"
            )
        if not 0 <= self.overlap < self.every:
            raise ValueError(
                f"overlap must be at least 0 and below every={self.every}, got {self.overlap}: a "
                "result is merged before the same part is sent again"
            )
        if self.wait_for is not None and self.wait_for < 1:
            raise ValueError(f"wait_for must be 1 or more, got {self.wait_for}")
        if self.shares == "by_speed" and self.wait_for is not None:
            raise ValueError(
                "with wait_for an outer step does not wait for slow workers, and a faster worker "
                "takes more samples: leave out shares, or wait_for"
            )
        if self.servers > 1 and (self.fragments > 1 or self.wait_for is not None):
            raise ValueError(
                f"fragments and wait_for need servers=1, got servers={self.servers}: two servers "
                "of one fragment may complete a round with different workers; use more fragments, "
                "each of which has a server"
            )

    def check(self, workers: int) -> None:
        """Raise ValueError if a round needs more workers than there are."""
        super().check(workers)
        if self.wait_for is not None and self.wait_for > workers:
            raise ValueError(
                f"wait_for={self.wait_for} needs at least {self.wait_for} workers, got {workers}"
            )

    @property
    def streams(self) -> bool:
        """Whether workers synchronise in parts, while they compute, or without some of them."""
        return self.fragments > 1 or self.overlap > 0 or self.wait_for is not None

    @property
    def shards(self) -> int:
        """Every fragment has a server of its own."""
        return max(self.servers, self.fragments)

    def count_servers(self, workers: int) -> int:
        """One for each shard."""
        del workers
        return self.shards

    def needs(self, workers: int) -> RuntimeNeeds:
        """Workers that stream keep what is under way in a second buffer."""
        return replace(super().needs(workers), own_parameters=self.streams)

    @property
    def needed(self) -> int | None:
        """As `wait_for`."""
        return self.wait_for

    @property
    def counts_empty_rounds(self) -> bool:
        """Workers that stream contribute to rounds in the order of their numbers."""
        return self.streams

    def by_rank(self, workers: int) -> bool:
        """Only if a round waits for all workers; otherwise fast workers get more samples."""
        return self.wait_for is None or self.wait_for >= workers

    def is_late(self, state: Round, call: Call) -> bool:
        """With `wait_for`, if the round was completed without the worker."""
        late = isinstance(call.message, Push) and call.message.version < state.version
        return self.wait_for is not None and late

    def coding_of(self, server: int, workers: int) -> Coding | None:
        """With `wait_for`, changes are sent: the server need not know what they are changes of."""
        if self.wait_for is None:
            return super().coding_of(server, workers)
        return self.coding("updates")

    async def worker(self, replica: Replica, endpoint: Endpoint) -> None:
        """Take local steps; synchronise everything at once, or one fragment after the other."""
        if not self.streams:
            await super().worker(replica, endpoint)
            return
        streamer = Streamer(
            replica,
            endpoint,
            every=self.every,
            fragments=self.fragments,
            overlap=self.overlap,
            changes=self.wait_for is not None,
        )
        await streamer.run(self)

    def conclude(self, state: Round) -> list[Action]:
        """Take one outer step with the mean change."""
        if not state.samples:
            return []
        changes = self.wait_for is not None
        return [Descend(state.shares, self.outer_lr, self.outer_momentum, changes)]
