"""When workers of a pipeline begin to receive."""

import pytest
from torch.distributed.pipelining import schedules as torch_schedules

from manyhands.engine.pipelines import received_ahead
from manyhands.placements.pipeline import Pipeline

RECEIVES = (torch_schedules.RECV_F, torch_schedules.RECV_B)
USES = {
    torch_schedules.RECV_F: (torch_schedules.FORWARD,),
    torch_schedules.RECV_B: (torch_schedules.FULL_BACKWARD, torch_schedules.BACKWARD_INPUT),
}


def with_transfers(table):
    """The actions of all ranks, as torch orders them."""
    actions = {
        rank: [torch_schedules._Action.from_str(str(one)) for one in own]
        for rank, own in enumerate(table.ranks)
    }
    return torch_schedules._add_send_recv(actions, table.rank_of, table.stages)


def computations_before(actions, receive):
    """How many computations are between a receive and the one that waits for it."""
    between = 0
    for one in actions[actions.index(receive) :]:
        about = (one.stage_index, one.microbatch_index)
        uses = one.computation_type in USES[receive.computation_type]
        if uses and about == (receive.stage_index, receive.microbatch_index):
            return between
        between += one.is_compute_op
    raise AssertionError(f"{receive} is not used")


def select(actions, are_receives):
    """The receives among some actions, or all others."""
    return [one for one in actions if (one.computation_type in RECEIVES) == are_receives]


@pytest.mark.parametrize("schedule", ["gpipe", "one_f_one_b", "interleaved", "zero_bubble"])
@pytest.mark.parametrize(("workers", "microbatches"), [(2, 2), (3, 4), (4, 8), (4, 16)])
def test_receives_begin_earlier_and_in_the_same_order(schedule, workers, microbatches):
    try:
        table = Pipeline(schedule=schedule, microbatches=microbatches).table(workers, microbatches)
    except ValueError as refused:
        pytest.skip(str(refused))
    earlier = 0
    for own in with_transfers(table).values():
        found = received_ahead(own, by=2)
        assert sorted(map(str, found)) == sorted(map(str, own))
        for kinds in (RECEIVES, tuple(set(torch_schedules._ComputationType) - {*RECEIVES})):
            order = [
                [one for one in each if one.computation_type in kinds] for each in (found, own)
            ]
            assert order[0] == order[1]
        for one in found:
            if one.computation_type in RECEIVES:
                ahead = computations_before(found, one)
                assert computations_before(own, one) <= ahead
                earlier += ahead > computations_before(own, one)
    assert earlier > 0
