"""Process groups outside torch's global registry, and what DDP does with one at its start.

`torch.distributed.init_process_group` creates one default group per process and hides its sockets.
An elastic run needs a group per membership epoch, so groups are constructed from their parts here.
The parts are those that `torch.distributed._dist2` uses in torch 2.13.
"""

from datetime import timedelta
from typing import Any

import torch
from torch import nn
from torch._C._distributed_c10d import Backend, ProcessGroup, Store
from torch.distributed import ProcessGroupGloo
from torch.distributed.utils import _sync_module_states, _verify_param_shape_across_processes
from torch.nn.parallel import DistributedDataParallel

_BROADCAST = 250 * 1024 * 1024
"""Bytes of parameters that are sent at once at the start, as DDP sends them."""


def gloo_group(
    store: Store, rank: int, size: int, *, timeout: timedelta, address: str
) -> ProcessGroup:
    """A Gloo group whose listening socket is bound to `address` alone."""
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # missing in the stubs
    options._devices = [ProcessGroupGloo.create_device(hostname=address)]
    options._timeout = timeout
    options._threads = 2
    backend = ProcessGroupGloo(store, rank, size, options)
    return _group(store, rank, size, backend, ProcessGroup.BackendType.GLOO, "cpu")


def nccl_group(
    store: Store, rank: int, size: int, *, timeout: timedelta, device: torch.device
) -> ProcessGroup:
    """An NCCL group for CUDA devices. Not exercised on machines without one."""
    # Absent from builds without CUDA, so it cannot be imported above.
    from torch.distributed import ProcessGroupNCCL  # noqa: PLC0415

    options = ProcessGroupNCCL.Options()
    options._timeout = timeout
    backend = ProcessGroupNCCL(store, rank, size, options)
    backend.eager_connect_single_device(device)
    return _group(store, rank, size, backend, ProcessGroup.BackendType.NCCL, "cuda")


def _group(
    store: Store,
    rank: int,
    size: int,
    backend: Backend,
    kind: ProcessGroup.BackendType,
    device: str,
) -> ProcessGroup:
    backend._set_sequence_number_for_group()
    group = ProcessGroup(store, rank, size)
    group._set_default_backend(kind)
    group._register_backend(torch.device(device), kind, backend)
    return group


def begin_alike(module: nn.Module, group: ProcessGroup, *, equal: bool) -> None:
    """Do what DDP does first: compare shapes, and send the first worker's parameters and buffers.

    Args:
        module: the replica of this worker.
        group: the workers.
        equal: whether the replicas have the same values already.
    """
    trained: list[torch.Tensor] = [one for one in module.parameters() if one.requires_grad]
    _verify_param_shape_across_processes(group, trained)
    if not equal:
        _sync_module_states(module, group, _BROADCAST, 0, ())


def set_timeout(group: ProcessGroup, timeout: timedelta) -> None:
    """Set how long a collective of a group may take from now on."""
    for device in group._device_types:
        group._get_backend(device)._set_default_timeout(timeout)


def fake_group(rank: int, size: int) -> ProcessGroup:
    """A fake process group for dry runs: its collectives return at once."""
    # Absent from builds without distributed testing parts, so it is not imported above.
    from torch._C._distributed_c10d import FakeProcessGroup, HashStore  # noqa: PLC0415

    options: Any = FakeProcessGroup.Options
    create: Any = FakeProcessGroup._create_internal
    backend = create(rank, size, options())
    group = ProcessGroup(HashStore(), rank, size)
    group._set_default_backend(ProcessGroup.BackendType.CUSTOM)
    group._register_backend(torch.device("cpu"), ProcessGroup.BackendType.CUSTOM, backend)
    return group


def rebind(module: DistributedDataParallel, group: ProcessGroup) -> None:
    """Move a DDP module to another process group, after its old one was freed.

    Only between steps: an interrupted step leaves buckets partly reduced, and its gradients must be
    discarded before the next one.
    """
    module._update_process_group(group)  # type: ignore[no-untyped-call]  # torch's
