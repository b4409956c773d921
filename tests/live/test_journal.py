"""A server's successor continues exactly where its predecessor was, in the middle of a round."""

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import nn
from torch.utils.data import TensorDataset

from manyhands import rates
from manyhands.batches import BatchSizes
from manyhands.endpoint import Push
from manyhands.job import Job
from manyhands.live.journal import Journal
from manyhands.parameters import Holder
from manyhands.protocols import Call, Synchronous, Terms, carry_out

JOB = Job(
    model=lambda: nn.Linear(3, 2),
    optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=0.1),
    loss=F.cross_entropy,
    data=TensorDataset(torch.zeros(100, 3), torch.zeros(100, dtype=torch.int64)),
    global_batch={0: 10, 1: 40},
    rate=rates.linear(3),
    clip=0.1,
    epochs=3,
)


def test_it_keeps_what_the_rate_and_the_weight_depend_on(tmp_path):
    protocol = Synchronous()
    first = protocol.begin(Terms(JOB.batch_sizes, 2))
    holder = Holder(JOB, 0, 1, clip=JOB.clip)
    journal = Journal(tmp_path, "server-0", holder.shard.nbytes)
    update = torch.randn(8, generator=torch.Generator().manual_seed(1)).view(torch.uint8)
    calls = [Call(f"worker-{n % 2}", n // 2 + 1, Push(n // 2, 20, 120 + n // 2)) for n in range(6)]
    state = first
    for number, call in enumerate(calls):
        if number == 3:
            journal.snapshot(holder, state, {}, [])
        journal.append(call, update.numpy().data)
        state, actions = protocol.on_message(state, call)
        for action in actions:
            carry_out(holder, action, update)
    journal.close()

    successor = Holder(JOB, 0, 1, clip=JOB.clip)
    reader = Journal(tmp_path, "server-0", holder.shard.nbytes)
    again, _, _ = reader.recover(successor, first)
    assert again.terms.global_batch == BatchSizes(((0, 10), (100, 40)))
    assert (again.weight, again.dealt) == (0.5, 121)
    heard = list(reader.heard())
    reader.close()
    assert [one.call for one in heard] == calls[3:]
    for one in heard:
        again, actions = protocol.on_message(again, one.call)
        for action in actions:
            carry_out(successor, action, one.payload)
    assert again == state
    assert torch.equal(successor.bytes, holder.bytes)
