"""A replica whose gradients are averaged after the backward pass gives what DDP gives."""

import pytest

COMPARE = """
    import json, sys
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    import forked
    from manyhands.placements.worker.averaged_replica import AveragedReplica
    from manyhands.transport.waits import Waits

    class Mixed(nn.Module):
        '''Two types of parameters, one of them not contiguous, one shared, one frozen.'''

        def __init__(self, seed):
            super().__init__()
            torch.manual_seed(seed)
            self.first = nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last)
            self.second = nn.Linear(3 * 4 * 4, 5).double()
            self.third = nn.Linear(5, 5).double()
            self.third.weight = nn.Parameter(torch.randn(5, 5).double().t())
            self.frozen = nn.Parameter(torch.ones(5).double(), requires_grad=False)
            self.register_buffer("seen", torch.full((2,), float(seed)))

        def forward(self, inputs):
            hidden = self.second(self.first(inputs).flatten(1).double())
            return self.third(self.third(hidden)) * self.frozen

    def gradients(module, inputs, group, kind, waits):
        if kind == "ddp":
            wrapped = DistributedDataParallel(module, process_group=group.handle)
            with wrapped.no_sync():
                wrapped(inputs[:2]).sum().backward()
            wrapped(inputs[2:]).square().sum().backward()
        else:
            shared = group.shared_sum(1 << 12)
            spare = int(sys.argv[2])
            wrapped = AveragedReplica(module, shared, group, waits, equal=False, spare=spare)
            with wrapped.reducing():
                wrapped(inputs[:2]).sum().backward()
                wrapped(inputs[2:]).square().sum().backward()
            assert wrapped.take_finite() and not wrapped.take_finite()
            held = {one.grad.untyped_storage().data_ptr() for one in trained(module)}
            assert len(held) == 2, "one vector of each type"
        return [one.grad for one in trained(module)]

    def trained(module):
        return [one for one in module.parameters() if one.requires_grad]

    def work(store, rank, size):
        group = forked.group_of(store, rank, size)
        waits = Waits(lambda: 0.0, lambda _: None)
        torch.manual_seed(100 + rank)
        inputs = torch.randn(5, 2, 6, 6)
        found = []
        for kind in ("ddp", "ours"):
            module = Mixed(rank)
            found.append(gradients(module, inputs, group, kind, waits))
            assert module.seen.tolist() == [0.0, 0.0], "buffers are those of the first worker"
            for one in trained(module):
                assert one.grad.stride() == one.stride()
        difference = max(float((a - b).abs().max() / a.abs().max()) for a, b in zip(*found))
        payload = waits.payload
        expected = 2 * sum(one.nbytes for one in trained(module)) * (size - 1) / size
        group.close()
        return [difference, payload, expected]

    if __name__ == "__main__":
        forked.run(work, int(sys.argv[1]))
"""

UNUSED = """
    import sys
    import torch
    from torch import nn
    import forked
    from manyhands.placements.worker.averaged_replica import AveragedReplica
    from manyhands.transport.waits import Waits

    def work(store, rank, size):
        group = forked.group_of(store, rank, size)
        module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        wrapped = AveragedReplica(
            module, group.shared_sum(64), group, Waits(lambda: 0.0, lambda _: None), equal=True
        )
        said = ""
        try:
            with wrapped.reducing():
                module[0](torch.ones(1, 2)).sum().backward()
        except ValueError as error:
            said = str(error)
        group.close()
        return said

    if __name__ == "__main__":
        forked.run(work, int(sys.argv[1]))
"""


@pytest.mark.parametrize(("workers", "small"), [(2, 1 << 20), (3, 0)])
def test_gradients_are_those_of_ddp(fork, workers, small):
    for difference, payload, expected in fork(COMPARE, workers, small):
        assert difference < 1e-6
        assert payload == pytest.approx(expected)


def test_a_parameter_without_a_gradient_is_named(fork):
    for said in fork(UNUSED, 2):
        assert "the loss does not depend on 2 parameters: 1.weight, 1.bias" in said
        assert "allreduce(find_unused=true)" in said
