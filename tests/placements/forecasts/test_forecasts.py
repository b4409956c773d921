"""What is forecast is what torch asks for, to the byte, and what the kernel sends."""

from collections import Counter

import pytest

from manyhands.costs import LayerSize, TensorSize
from manyhands.placements import ALL
from manyhands.strategies import strategy

SCRIPT = """
    import json, sys
    import forked
    from manyhands.strategies import strategy

    STEPS = 4
    job = forked.gpt_job(2 * STEPS)

    def work(store, rank, size):
        given = {}
        for how in json.loads(sys.argv[2]):
            noted, sent = forked.exchanged(job, how, store, rank, size, after=STEPS)
            each = len(noted) // STEPS
            assert noted == noted[:each] * STEPS
            forecast = strategy(how).forecast_job(job, size)
            mine = forecast.by_worker[rank] if forecast.by_worker else forecast.step
            step = [(one.kind, one.size, one.workers or size) for one in mine]
            given[how] = [noted[:each], step, sent, forecast.sent_per_step(size)]
        return given

    if __name__ == "__main__":
        forked.run(work, int(sys.argv[1]))
"""

# Where stages begin is measured, and what a worker sends depends on it, unless it is said.
PIPED, MESHES = (
    [
        f'hybrid({axes}, pipeline=2, microbatches=4, split_points=["block2.before_attention"])'
        for axes in several
    ]
    for several in (
        ("data=2", "tensor=2", "shard=2", "tensor=2, schedule=zero_bubble"),
        ("data=2, tensor=2", "shard=2, tensor=2", "data=2, shard=2"),
    )
)
STRATEGIES = {
    2: [
        "fully_sharded()",
        "fully_sharded(reshard_after_forward=false)",
        "zero(stage=2)",
        "zero()",
        "tensor(ways=2)",
        "tensor(ways=2, samples=own)",
        "context(ways=2)",
        "offload()",
        'place(modules=["embedding on 0", "block2 on 1", "head on 0"])',
        "hybrid(data=2)",
    ],
    4: [
        "fully_sharded()",
        "zero()",
        "tensor(ways=2)",
        "context(ways=2)",
        "hybrid(data=2, shard=2)",
        "hybrid(shard=2, tensor=2)",
        *PIPED,
    ],
    8: MESHES,
}
# What DDP asks for from within is held to the forecast by its buckets, in the contract's test.
ON_DDP = ("zero()", "context(ways=2)", "tensor(ways=2, samples=own)")
# What split layers exchange and what shards exchange is listed apart, and happens interleaved.
INTERLEAVED = ("tensor(ways=2)", "hybrid(shard=2, tensor=2)", *PIPED, *MESHES)
ELSEWHERE = {"single", "allreduce", "pipeline"}
"""Held to their forecasts in `placements/test_contract.py`, bucket by bucket, and in
`placements/pipelines/test_pipelines.py`, message by message."""


def test_the_forecast_of_every_placement_is_held_against_what_happens():
    held = {strategy(text).name for text in STRATEGIES[2]} | ELSEWHERE
    assert {placement.name for placement in ALL} == held


@pytest.mark.parametrize(
    "workers", [2, *(pytest.param(several, marks=pytest.mark.slow) for several in (4, 8))]
)
def test_forecast_equals_what_happens(fork, workers):
    everybody = fork(SCRIPT, workers, STRATEGIES[workers])
    for how in STRATEGIES[workers]:
        for given in everybody:
            noted, told, _, _ = given[how]
            if how in ON_DDP:
                told = _without_buckets(noted, told)
            if how in INTERLEAVED:
                assert Counter(map(tuple, noted)) == Counter(map(tuple, told)), how
            else:
                assert noted == told, how
        sent = sum(given[how][2] for given in everybody) / workers
        told, expected = everybody[0][how][1], everybody[0][how][3]
        # Gloo adds headers to its chunks, a few hundred bytes per collective and peer; a busy
        # kernel sends some segments again.
        assert expected <= sent <= 1.05 * expected + 300 * workers * len(told), how


def _without_buckets(noted, told):
    buckets = len(told) - len(noted)
    averaged = [one for one in told if one[0] == "allreduce"][-buckets:]
    return [one for one in told if one not in averaged]


def test_stages_that_are_divided_send_what_their_layers_do():
    stage = [LayerSize("0", "stage", 0, 80), LayerSize("0", "stage", 0, 120)]
    split = [
        LayerSize("up", "column", 80, 320, learns=False),
        LayerSize("down", "row", 320, 80),
        LayerSize("head", "logits", 80, 50, 5, learns=False),
    ]
    parameters = [
        TensorSize("up.weight", 640, rows=8, unit="0"),
        TensorSize("down.weight", 640, rows=2, unit="0"),
        TensorSize("head.weight", 50, rows=5, unit="1"),
        TensorSize("norm.weight", 8, rows=2, unit="1"),
    ]
    hybrid = strategy("hybrid(data=2, tensor=2, pipeline=2, microbatches=2)")
    forecast = hybrid.forecast(parameters, 8, [*stage, *split])

    def does(worker):
        return Counter((one.kind, one.size, one.workers) for one in forecast.by_worker[worker])

    # The first stage is given no gradient of its inputs; what it has is halved evenly.
    first = Counter({("send", 80, 2): 1, ("send", 120, 2): 1, ("allreduce", 80, 2): 1})
    first += Counter({("allreduce", 640, 2): 1})
    # A later one always is, and sends the loss with its weight; of five rows one worker has three.
    later = Counter({("send", 80, 2): 1, ("send", 120, 2): 1, ("send", 16, 2): 1})
    later += Counter({("all_gather", 60, 2): 1, ("allreduce", 80, 2): 1})
    assert [does(worker) for worker in (0, 1, 4, 5)] == [first] * 4
    assert [does(worker) for worker in (2, 6)] == [later + Counter({("allreduce", 38, 2): 1})] * 2
    assert [does(worker) for worker in (3, 7)] == [later + Counter({("allreduce", 28, 2): 1})] * 2
    assert forecast.step == forecast.by_worker[0]
    assert forecast.sent_by(0) == 200 + 80 + 640
    assert forecast.sent_per_step(8) == sum(map(forecast.sent_by, range(8))) / 8
    assert forecast.memory == 2 * 640


def test_a_forecast_without_the_layers_that_matter_says_what_to_give():
    asked = [("tensor()", 2), ("context()", 2), ('place(["a on 0"])', 1)]
    for how, workers in (*asked, ("hybrid(tensor=2, pipeline=2)", 4)):
        with pytest.raises(ValueError, match=r"needs layers of the role .*: use forecast_job"):
            strategy(how).forecast([TensorSize("a.weight", 64, rows=4)], workers)
