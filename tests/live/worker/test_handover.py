"""The state that one worker sends to the others of its group."""

SCRIPT = """
    import torch
    import forked
    from manyhands.failure import PeerLost
    from manyhands.live.worker.lockstep.handover import hand_over

    def state():
        made = torch.Generator().manual_seed(3)
        parameter = torch.nn.Parameter(torch.randn(700, 900, generator=made, dtype=torch.float64))
        optimizer = torch.optim.AdamW([parameter], lr=0.1, betas=(0.8, 0.9))
        parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        return {
            "values": [parameter, torch.tensor(True), torch.zeros(0, 3), torch.tensor([1, 2])],
            "large": torch.arange(5_000_000, dtype=torch.float32).view(1000, -1).t(),
            "optimizer": optimizer.state_dict(),
            7: (None, 1.5, "text", float("inf"), (True, [])),
        }

    def work(store, rank, size):
        group = forked.group_of(store, rank, size)
        taken, _ = hand_over(group, 1, state if rank == 1 else None, 1 << 30)
        expected = state()
        same = taken.keys() == expected.keys() and taken[7] == expected[7]
        for one, other in zip(taken["values"], expected["values"], strict=True):
            same = same and one.dtype == other.dtype and torch.equal(one, other)
        same = same and torch.equal(taken["large"], expected["large"])
        fresh = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(700, 900).double())], lr=0.5)
        fresh.load_state_dict(taken["optimizer"])
        same = same and fresh.param_groups[0]["betas"] == (0.8, 0.9)
        moments = fresh.state_dict()["state"][0]
        same = same and all(
            torch.equal(moments[key], value)
            for key, value in expected["optimizer"]["state"][0].items()
        )
        refused = []
        small = {"values": [torch.zeros(100)]}
        try:
            hand_over(group, 0, (lambda: small) if rank == 0 else None, 399)
        except ValueError as error:
            refused.append(str(error))
        except PeerLost:
            refused.append("the others have ended")
        return [same, refused]

    if __name__ == "__main__":
        forked.run(work, 3)
"""


def test_values_arrive_as_they_are_and_too_large_ones_are_refused_before_memory_is_taken(fork):
    given = fork(SCRIPT, 3)
    assert [same for same, _ in given] == [True, True, True]
    for _, refused in given[1:]:
        assert refused == ["the state of a worker has 400 bytes, expected at most 399"]


UNSENDABLE = """
    import torch
    import forked
    from manyhands.live.worker.lockstep.handover import hand_over

    def work(store, rank, size):
        try:
            hand_over(forked.group_of(store, rank, size), 0, lambda: {"a": object()}, 100)
        except TypeError as error:
            return str(error)

    if __name__ == "__main__":
        forked.run(work, 1)
"""


def test_an_object_that_is_no_number_text_or_tensor_is_refused_by_its_type(fork):
    assert "holds a object" in fork(UNSENDABLE, 1)[0]
