"""Synchronous data parallelism on PyTorch's DistributedDataParallel."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from manyhands.codecs import BFloat16, Codec, Half
from manyhands.codecs.reducers import Factors, Reducer
from manyhands.collectives import ALLREDUCE, AllreduceAlgorithm
from manyhands.costs import Collective, Forecast
from manyhands.placements.compression.payload import bucket_collectives, kept_bytes
from manyhands.placements.placement import Placement, refuse_codec
from manyhands.protocols import AllreduceMessages

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    from manyhands.costs import TensorSize
    from manyhands.job import Job
    from manyhands.placements.bound import Bound
    from manyhands.runtime_needs import Option
    from manyhands.transport.collectives import Group
    from manyhands.transport.shared.sums import SharedSum
    from manyhands.transport.waits import Waits

MEBIBYTE = 1024 * 1024


@dataclass(frozen=True, repr=False)
class AllReduce(Placement):
    """Average every gradient over all workers in every step (synchronous SGD).

    W ← W − λ·(1/B) Σ_n Σ_{i in n's part} ΔW_i: each worker holds the whole model and a part of
    the global batch of B samples, and the replicas stay identical. Gradients are reduced in
    buckets while the backward pass still computes the earlier layers.

    Use it with workers of equal speed and a network that is fast for the size of the model: a step
    takes as long as its slowest worker, and each worker sends 2·m·(N − 1)/N bytes per step for m
    bytes of gradients and N workers.

    Example: `allreduce(bucket_mb=10)`

    Paper: Li et al., PyTorch Distributed: Experiences on Accelerating Data Parallel Training,
    VLDB 2020.
    """

    name: ClassVar[str] = "allreduce"
    obstacles: ClassVar[dict[str, str]] = {}
    lacks: ClassVar[dict[str, str]] = {
        "aggregate": "a collective returns sums, and no worker has the gradients of the others; "
        "use synchronous()"
    }
    gradient_norms: ClassVar[bool] = True
    alternates: ClassVar[bool] = True
    support: ClassVar[Literal["stable"]] = "stable"
    needs_less: ClassVar[str] = (
        "fully_sharded(), where each of N workers holds 1/N of the model, or zero(stage=1), "
        "where it holds 1/N of the optimizer's state"
    )

    bucket_mb: float = 25.0
    """Size of gradient buckets in MiB. Small buckets start earlier, large buckets spend less time
    on latency."""
    find_unused: bool = False
    """Search for parameters without a gradient in every step, as DDP's `find_unused_parameters`.
    Needed by models that use only a part of their parameters in a step; costs a traversal of the
    autograd graph."""
    codec: Codec | Reducer | None = None
    """How gradients are sent, as fewer bytes. By default they are sent as they are."""
    compare_every: int = 100
    """Steps between two comparisons of the replicas, by a hash of their parameters, which must be
    equal to the bit; 0 for none. A replica that differs ends the run, and its worker is named."""
    algorithm: AllreduceAlgorithm = "ring"
    """The messages by which gradients are summed on a virtual clock. In a live run the engine
    chooses: Gloo's algorithm is the ring, and a run that asks for another one says so."""

    shared_memory: bool = True
    """Sum gradients of workers on one host in memory that they share, which takes less time than
    connections, and sums in the same order in every run. Hosts with the same number of workers,
    more than one, then sum with each other what each has summed. False for connections of all
    workers, as DDP does."""
    shares: Literal["even", "by_speed"] = "even"
    """How the global batch is divided among workers: evenly, or `by_speed`, so that a worker which
    computes more slowly has fewer samples and all are ready at the same time. Speeds are measured
    in every step, and shares follow them within about ten."""

    def __post_init__(self) -> None:
        if self.shares not in ("even", "by_speed"):
            raise ValueError(f"shares must be even or by_speed, got {self.shares!r}")
        if not 0 < self.bucket_mb <= 1024:
            raise ValueError(f"bucket_mb must be above 0 and at most 1024, got {self.bucket_mb}")
        if self.compare_every < 0:
            raise ValueError(f"compare_every must be 0 or more steps, got {self.compare_every}")
        if self.algorithm not in ALLREDUCE:
            raise ValueError(f"algorithm must be {', '.join(ALLREDUCE)}, got {self.algorithm!r}")
        if self.find_unused and self.codec is not None and self.codec.feeds_back:
            raise ValueError(
                "find_unused=true leaves out gradients of parameters that no worker used in a "
                f"step, and what {self.codec} sends for them by error feedback would be lost: use "
                f"a codec with feedback=false, or freeze the unused parameters"
            )

    def obstacle(self, option: Option) -> str:
        """As in `Placement`; some codecs do not go with some options."""
        if option == "compile" and isinstance(self.codec, Factors):
            return (
                f"{self.codec} computes in the place of linear layers, and torch.compile compiles "
                "a whole model: leave it out, or use another codec"
            )
        if option == "sparse_gradients" and self.codec is not None:
            return f"{self.codec} encodes dense gradients: use sparse=False, or leave out codec"
        if option == "float16" and self.codec is not None and self.codec.feeds_back:
            return (
                f"{self.codec} keeps what it did not send for later steps, whose gradients have "
                'another scale: use autocast="bfloat16", or a codec with feedback=false'
            )
        return super().obstacle(option)

    def check_places(self, hosts: Collection[str], devices: Collection[str]) -> None:  # noqa: ARG002 - the contract
        """Raise ValueError if a codec would have to encode on a GPU."""
        if self.codec is None or isinstance(self.codec, Half | BFloat16):
            return
        elsewhere = [device for device in devices if not device.startswith("cpu")]
        if elsewhere:
            raise ValueError(
                f"{self.codec} encodes gradients in the host's memory, and they are on "
                f"{elsewhere[0]}: use codec=bfloat16() or codec=half(), which GPUs sum themselves, "
                "or train on the CPU"
            )

    def check_virtual(self, *, numbers: bool = True) -> None:
        """Raise ValueError for a codec."""
        del numbers
        refuse_codec(self, self.codec)

    @property
    def preloads(self) -> tuple[str, ...]:
        """As in `Placement`; sums in shared memory do without DDP."""
        plain = self.shared_memory and self.codec is None and not self.find_unused
        return () if plain else super().preloads

    @property
    def deals_by_speed(self) -> bool:
        """Whether workers that compute faster get more samples."""
        return self.shares == "by_speed"

    def check_job(self, job: Job, workers: int) -> None:
        """As in `Placement`; the parts of a stream are equal."""
        if self.deals_by_speed and job.streams:
            raise ValueError(
                f"{self} needs data with a length, and {type(job.data).__name__} is a stream, "
                "whose batches are divided evenly: leave out shares"
            )
        super().check_job(job, workers)

    def virtual_form(self) -> AllreduceMessages:
        """The algorithm's messages between workers, with the sums of what they carry."""
        return AllreduceMessages(
            bucket_mb=self.bucket_mb,
            find_unused=self.find_unused,
            algorithm=self.algorithm,
            hosts_first=self.shared_memory,
            shares=self.shares,
        )

    def bind(self, job: Job, group: Group, device: torch.device, waits: Waits) -> Bound:
        """A replica whose gradients the group averages: in shared memory, or by DDP."""
        from manyhands.placements.worker.whole_model import WholeModel  # noqa: PLC0415 - torch is lazy

        wrap = self.wrapper(group, waits, job.seed, between_hosts=True, at_end=True)
        bound = WholeModel(job, group, device, waits, wrap, self.compare_every)
        bound.words = self.engine_words(device.type, bound.sums)
        return bound

    def engine_words(self, device: str, sums: str = "") -> tuple[str, ...]:
        """What a live run says of how it sums gradients, unless it is as DDP does.

        >>> AllReduce(algorithm="tree").engine_words("cpu")
        ("algorithm: Gloo's ring sums gradients in a live run; tree is for the virtual clock",)
        """
        words = (f"sums: {sums}",) if sums else ()
        if self.algorithm == "ring":
            return words
        engine = "what NCCL chooses" if device == "cuda" else "Gloo's ring"
        engine = "shared memory" if sums else engine
        asked = f"{self.algorithm} is for the virtual clock"
        return (*words, f"algorithm: {engine} sums gradients in a live run; {asked}")

    def rigidity(self, job: Job) -> str:
        """Every worker has the whole state; some options do not go with another group."""
        if isinstance(self.codec, Factors):
            return f"{self.codec} computes in the place of linear layers, for one group"
        if job.objective_names:
            return "a batch gives several steps, and an interrupted one cannot be repeated"
        if job.streams:
            return "a stream is read by each worker, and cannot be divided again"
        if job.compile:
            return "Job(compile=True) compiles the model for its first group"
        return ""

    def regroup(self, bound: Bound, group: Group, waits: Waits, seed: int) -> None:
        """Wrap the replica anew, over another group. Residuals have to be carried over."""
        from manyhands.placements.worker.whole_model import WholeModel  # noqa: PLC0415 - torch is lazy

        if not isinstance(bound, WholeModel):
            raise TypeError(f"{type(bound).__name__} is no replica of {self}")
        wrap = self.wrapper(group, waits, seed, equal=True, between_hosts=True, at_end=True)
        bound.regroup(group, waits, wrap)
        bound.words = self.engine_words(group.device.type, bound.sums)

    def wrapper(
        self,
        group: Group,
        waits: Waits,
        seed: int = 0,
        *,
        equal: bool = False,
        between_hosts: bool = False,
        at_end: bool = False,
    ) -> Callable[[nn.Module], nn.Module]:
        """A function that wraps a module, in DDP by default, so that its gradients are averaged.

        Modules of all workers get the values of the first one's, unless they are `equal` already.
        Workers of one host sum in memory that they share; with `between_hosts` also if there are
        several hosts, which then sum with each other. With `at_end` sums in shared memory may wait
        for the end of the module's `reducing`, which its caller enters around backward passes.

        Buffers are not broadcast in every step, which is DDP's default: batch-norm reads them only
        in evaluation, and the trainer averages them there (docs/meanings.md).
        """
        from torch.nn.parallel import DistributedDataParallel  # noqa: PLC0415 - torch is lazy

        from manyhands.engine.fake_tensors import is_fake  # noqa: PLC0415

        if is_fake():
            from manyhands.engine.fake_ddp import FakeDDP  # noqa: PLC0415
            from manyhands.placements.compression.dry_run import FakeReduction  # noqa: PLC0415

            return partial(
                FakeDDP,
                cap=int(self.bucket_mb * MEBIBYTE),
                note=FakeReduction(self.codec, group.size, waits),
                find_unused=self.find_unused,
            )

        def wrap(module: nn.Module) -> nn.Module:
            if group.size == 1:
                return module
            options: dict[str, Any] = {
                "bucket_cap_mb": self.bucket_mb,
                "forward_sync_buffers": False,
                "gradient_as_bucket_view": True,
                "find_unused_parameters": self.find_unused,
                "init_sync": not equal,
            }
            if self.codec is None:
                shared = self._shared_sum(module, group, between_hosts=between_hosts)
                if shared and at_end and not shared.between and not self.find_unused:
                    from manyhands.placements.worker.averaged_replica import AveragedReplica  # noqa: PLC0415

                    trained = (one.nbytes for one in module.parameters() if one.requires_grad)
                    spare = self._held_twice(sum(trained), group.size)
                    return AveragedReplica(module, shared, group, waits, equal=equal, spare=spare)
                if shared is not None:
                    from manyhands.placements.worker.shared_ddp import SharedDDP  # noqa: PLC0415

                    return SharedDDP(module, shared, group, waits, **options)
                made = DistributedDataParallel(module, process_group=group.handle, **options)
            else:
                from manyhands.placements.compression import module as compressed  # noqa: PLC0415

                if not isinstance(self.codec, Factors):
                    return compressed.CompressedDDP(
                        module, self.codec, group, waits, seed, **options
                    )
                made = compressed.FactoredDDP(module, self.codec, group, waits, **options)
            _count_payload(made, group.size, waits)
            return made

        return wrap

    def _shared_sum(
        self, module: nn.Module, group: Group, *, between_hosts: bool
    ) -> SharedSum | None:
        """Sums in memory that workers share, if it is asked for and their hosts allow it."""
        from manyhands.placements.worker.shared_ddp import summable  # noqa: PLC0415 - torch is lazy

        if not self.shared_memory or not summable(module):
            return None
        chunk = self._chunk(group.size)
        return group.shared_sum(chunk, between_hosts=between_hosts)

    def forecast(self, parameters: Sequence[TensorSize], workers: int) -> Forecast:
        """A broadcast of the model at the start, and one allreduce per bucket in every step.

        DDP fills buckets in the order in which gradients arrive, last layer first. With
        `find_unused` it keeps buckets in the order of the model's parameters.
        """
        self.check(workers)
        trained = [tensor for tensor in parameters if tensor.trained]
        everything = sum(tensor.size for tensor in parameters)
        cap = int(self.bucket_mb * MEBIBYTE)
        buckets = _fill(trained, cap)[::-1] if self.find_unused else _fill(reversed(trained), cap)
        reduced = [bucket_collectives(self.codec, bucket, workers) for bucket in buckets]
        kept = sum(kept_bytes(self.codec, bucket, workers) for bucket in buckets)
        return Forecast(
            start=(Collective("broadcast", everything),),
            step=tuple(one for some in reduced for one in some),
            memory=everything + sum(tensor.size for tensor in trained) + kept,
            shared=self._shared_bytes(buckets, workers),
        )

    def shared_bytes(self, job: Job, workers: int) -> int:
        """As in `Placement`, by the sizes of the job's parameters."""
        return self.forecast_job(job, workers).shared

    def _shared_bytes(self, buckets: Sequence[Sequence[TensorSize]], workers: int) -> int:
        """Memory in which workers of one host sum gradients: of two chunks for each of them.

        With what gradients take that are held twice for a moment it is at most two buckets.
        """
        from manyhands.transport.shared.layout import room  # noqa: PLC0415 - torch is lazy

        if not self.shared_memory or self.codec is not None or workers == 1:
            return 0
        largest = max((sum(tensor.size for tensor in bucket) for bucket in buckets), default=0)
        twice = self._held_twice(
            sum(tensor.size for bucket in buckets for tensor in bucket), workers
        )
        return room(min(self._chunk(workers), largest), workers) + workers * twice

    def _held_twice(self, size: int, workers: int) -> int:
        """Bytes of a worker's gradients that it holds twice for a moment: all of them, or none."""
        from manyhands.transport.shared.layout import room  # noqa: PLC0415 - torch is lazy

        taken = room(min(self._chunk(workers), size), workers) + workers * size
        fits = taken <= 2 * self.bucket_mb * MEBIBYTE
        return size if fits and not self.find_unused else 0

    def _chunk(self, workers: int) -> int:
        """Bytes that are summed at once: the memory of all chunks is that of two buckets."""
        return int(self.bucket_mb * MEBIBYTE / workers)


def _count_payload(module: DistributedDataParallel, workers: int, waits: Waits) -> None:
    """Count the payload of every backward pass that DDP reduces: all gradients, in buckets."""
    import torch  # noqa: PLC0415 - torch is lazy

    reduced = sum(
        parameter.nbytes
        for name, parameter in module.module.named_parameters()
        if parameter.requires_grad and name not in module.parameters_to_ignore
    )

    def count(wrapped: DistributedDataParallel, *_: object) -> None:
        # Within `no_sync` gradients are accumulated, and not reduced.
        if torch.is_grad_enabled() and wrapped.require_backward_grad_sync:
            waits.tally("allreduce", reduced, workers)

    module.register_forward_hook(count)


def _fill(tensors: Iterable[TensorSize], cap: int) -> list[list[TensorSize]]:
    """The tensors of each bucket; the one with which it reaches the cap closes it."""
    buckets: list[list[TensorSize]] = []
    filled = cap
    for tensor in tensors:
        if filled >= cap:
            buckets.append([])
            filled = 0
        buckets[-1].append(tensor)
        filled += tensor.size
    return buckets
