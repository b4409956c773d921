"""Messages, payloads and operations of a protocol of one's own, live and virtual."""

from __future__ import annotations

import msgspec
import pytest
import torch

import manyhands as mh
from manyhands.endpoint import Custom
from manyhands.parameters import Holder
from manyhands.protocols import Add, Call, Push, carry_out
from manyhands.wire.envelope import Offer, open_call, seal
from manyhands.wire.message import WireError

OWN = """
    import sys
    from dataclasses import dataclass
    from typing import ClassVar

    import torch
    import manyhands as mh
    from manyhands.protocols import Answer, Custom, Parameters, ServerBased, ShardOperation

    @dataclass(frozen=True)
    class Scatter(ShardOperation):
        '''Move the largest entries of the parameters by what came.'''

        def apply(self, shard, payload):
            count = self.call.message.values["count"]
            places = payload[: 8 * count].view(torch.int64)
            values = payload[8 * count :].view(torch.float32)
            shard.vector.index_add_(0, places, values, alpha=-0.1)
            shard.own_vector("seen").index_add_(0, places, torch.ones_like(values))

    @dataclass(frozen=True)
    class Largest(Answer):
        '''Answer with the two largest numbers of the shard, and how often each place was moved.'''

        def payload(self, shard):
            return torch.cat([shard.vector.topk(2).values, shard.own_vector("seen")])

    @mh.register
    @dataclass(frozen=True, repr=False)
    class Sparse(ServerBased):
        '''Send the largest entries of every gradient; pull the parameters after each.'''

        name: ClassVar[str] = "sparse"
        servers: ClassVar[int] = 1
        count: int = 3

        def payload_limit(self, shard_bytes):
            return 12 * self.count

        async def worker(self, replica, endpoint):
            await self.refresh(replica, endpoint)
            seen = torch.zeros(2 + len(replica.parameter_vector(0)) + 5)
            async for batch in replica.batches():
                await replica.gradient(batch)
                update = replica.update_vector(0)
                places = update.abs().topk(self.count).indices
                payload = torch.cat([places.view(torch.uint8), update[places].view(torch.uint8)])
                message = Custom("sparse", {"count": self.count, "of": (replica.rank, "x")})
                endpoint.post("server-0", message, payload, into=seen)
                answer = await endpoint.receive("server-0")
                assert answer == Custom("largest", {"version": answer.values["version"]}), answer
                assert seen[2:].sum() >= self.count, seen
                assert not seen[-5:].any(), "the answer is shorter than its buffer"
                replica.commit(batch)
                await self.refresh(replica, endpoint)

        def on_message(self, state, call):
            match call.message:
                case Custom(kind="sparse"):
                    from dataclasses import replace
                    state = replace(state, version=state.version + 1)
                    said = Custom("largest", {"version": state.version})
                    return state, [Scatter(call, staleness=0), Largest(call, said)]
                case _:
                    return state, [Answer(call, Parameters(state.version))]

        def on_repeat(self, state, call):
            if isinstance(call.message, Custom):
                return Largest(call, Custom("largest", {"version": state.version}))
            return super().on_repeat(state, call)

    torch.manual_seed(0)
    inputs = torch.randn(96, 5)
    data = torch.utils.data.TensorDataset(inputs, inputs @ torch.ones(5, 1))
    job = mh.Job(
        model=lambda: torch.nn.Linear(5, 1),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=torch.nn.functional.mse_loss,
        data=data,
        validation=data,
        global_batch=8,
        epochs=8,
    )
    if __name__ == "__main__":
        if sys.argv[1] == "live":
            run = mh.train(job, "sparse()", workers=2, output="run")
        else:
            run = mh.simulate(job, "sparse()", workers=2, output="run", faults=sys.argv[2])
        print(run.summary())
        print("LOSS", run.metrics["loss"])
"""


def test_a_custom_message_passes_the_wire_and_stays_small() -> None:
    message = Custom("vote", {"round": 3, "name": "a", "share": 0.5, "ranks": (1, 2), "x": None})
    offer = Offer(1, 0, 0, 0, message)
    assert open_call(seal(offer)) == offer
    state = Call("worker-0", 1, message)
    assert msgspec.convert(msgspec.to_builtins(state), Call) == state
    with pytest.raises(ValueError, match="send large values as a payload"):
        Custom("vote", {"ranks": tuple(range(1000))})


def test_a_hostile_custom_message_is_refused() -> None:
    frame = seal(Offer(1, 0, 0, 0, Custom("vote", {"x": 1})))
    large = msgspec.msgpack.decode(frame)
    large[5] = {"type": "Custom", "kind": "vote", "values": {"x": "y" * 1000}}
    with pytest.raises(WireError):
        open_call(msgspec.msgpack.encode(large))
    nested = msgspec.msgpack.decode(frame)
    nested[5] = {"type": "Custom", "kind": "vote", "values": {"x": {"y": 1}}}
    with pytest.raises(WireError):
        open_call(msgspec.msgpack.encode(nested))


def test_a_built_in_action_refuses_a_payload_of_another_size() -> None:
    job = mh.Job(
        model=lambda: torch.nn.Linear(3, 1),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=torch.nn.functional.mse_loss,
        data=torch.utils.data.TensorDataset(torch.zeros(2, 3), torch.zeros(2, 1)),
        global_batch=2,
        epochs=1,
    )
    holder = Holder(job, 0, 1)
    call = Call("worker-0", 1, Push(0, 1))
    with pytest.raises(ValueError, match="needs a ShardOperation"):
        carry_out(holder, Add(call, 1.0), torch.zeros(4, dtype=torch.uint8))


def loss_of(text: str) -> float:
    return float(text.partition("LOSS")[2].split()[0])


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "how",
    [("live",), ("virtual", "[]"), ("virtual", "[crash(server=0, at=1.0, restart=0.5)]")],
    ids=lambda how: " ".join(how)[:9],
)
def test_payloads_and_answers_of_any_size(run_script, how: tuple[str, ...]) -> None:
    started = run_script(OWN, *how)
    assert started.finish(150) == 0, started.text()
    assert loss_of(started.text()) < 0.1, started.text()
