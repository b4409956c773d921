"""What cannot be is refused before a process starts, with words that name the way out."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from manyhands.job import Job
from manyhands.models import GPT, LeNet, ResidualNetwork
from manyhands.notation import NotationError
from manyhands.placements import Place
from manyhands.placements.forecasts.dry_run import dry_run
from manyhands.placements.model.mesh_layout import inseparable
from manyhands.placements.model.tensor_plan import find_plan, given_plan
from manyhands.strategies import strategy

JOB = Job(
    model=lambda: GPT(width=32, layers=2, heads=4, length=24),
    optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    loss=functional.cross_entropy,
    data=[(torch.zeros(24, dtype=torch.int64), torch.zeros(24, dtype=torch.int64))] * 8,
    global_batch=4,
    epochs=1,
)
DENSE = replace(
    JOB,
    model=lambda: torch.nn.Sequential(
        torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8)
    ),
    data=[(torch.zeros(8), torch.zeros(8))] * 8,
)
IMAGES = replace(JOB, data=[(torch.zeros(3, 32, 32), 0)] * 8, model=ResidualNetwork)


@pytest.mark.parametrize(
    ("text", "workers", "words"),
    [
        ("hybrid(data=2, shard=2, tensor=2)", 6, "a mesh of 8 workers, got 6: use 8 workers"),
        ("hybrid(shard=2, tensor=2)", 8, "use 4 workers, or data=2"),
        ("hybrid(tensor=2, pipeline=2)", 6, "a mesh of 4 workers, got 6: use 4 workers"),
        ("hybrid(tensor=2, pipeline=2)", 8, "use 4 workers, or data=2"),
        ("hybrid(data=2, together=2, outer=diloco())", 12, "use 4 workers, or data=6"),
        ("tensor(ways=4)", 6, "a multiple of ways=4, got 6: use 8"),
        ("context(ways=2)", 3, "a multiple of ways=2, got 3: use 4"),
        ('place(["a on 0", "b on 2"])', 3, "does not fit 3 workers: worker 1 has nothing to do"),
        ('place(["a on 0", "b on 2, 1"])', 2, "does not fit 2 workers: use 3 workers"),
        ("place()", 2, "names no modules"),
    ],
)
def test_a_mesh_that_does_not_fit_the_workers(text, workers, words):
    with pytest.raises(ValueError, match=words.replace("(", r"\(").replace(")", r"\)")):
        strategy(text).check(workers)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tensor(ways=1)", "ways must be at least 2, got 1: for 1 use allreduce"),
        ("context(ways=1)", "for 1 use allreduce"),
        ("zero(stage=4)", "stage must be 1, 2 or 3, got 4"),
        ("hybrid(data=0)", "data must be at least 1, got 0"),
        (
            "hybrid(tensor=2, pipeline=2, schedule=pipedream)",
            "pipedream updates after every microbatch",
        ),
        ("hybrid(data=2, outer=allreduce())", "in every step: leave out outer"),
        ("hybrid(data=2, outer=synchronous())", "in every step: leave out outer"),
        *(
            (f"hybrid(data=2, outer={name}())", rf"by collectives.*every=….* or {name}\(\) alone")
            for name in ("asynchronous", "ssp", "softsync", "hogwild")
        ),
        *(
            (f"hybrid(data=2, outer={name}())", rf"in pairs.* or {name}\(\) alone")
            for name in ("gossip", "push_sum")
        ),
        ("hybrid(data=2, outer=broadcast())", r"every step.* or broadcast\(.*\) alone"),
        ("hybrid(data=2, outer=easgd())", r"servers that hold the centre: use diloco\(every=…\)"),
        ("hybrid(data=2, outer=ensemble())", "never synchronise, which are separate runs"),
        (
            "hybrid(data=2, outer=hierarchical(outer=averaging(every=4)))",
            r"replicas are islands already: use its outer=averaging\(every=4\)",
        ),
        ("hybrid(data=2, outer=fully_sharded())", "which the axes of hybrid\\(\\) do"),
        ("hybrid(data=2, outer=diloco(servers=2))", "without servers: leave out servers"),
        ("hybrid(data=2, outer=diloco(fragments=2))", "leave out fragments, overlap and wait_for"),
        ("hierarchical(outer=diloco(overlap=2))", "leave out fragments, overlap and wait_for"),
        ("diloco(every=4, fragments=5)", "between 1 and every=4 and at most 1024, got 5"),
        ("diloco(every=4, overlap=4)", "overlap must be at least 0 and below every=4, got 4"),
        ("diloco(wait_for=0)", "wait_for must be 1 or more, got 0"),
        ("diloco(wait_for=2, servers=2)", "fragments and wait_for need servers=1, got servers=2"),
        ("diloco(fragments=2, servers=2)", "use more fragments"),
        ("hybrid(data=2, together=3)", "leave out together, and use data=6"),
        ("hybrid(data=2, together=0, outer=diloco())", "together must be at least 1, got 0"),
        (
            "hierarchical(inner=allreduce(), outer=averaging(every=4), islands=3)",
            r"use hybrid\(data=3, together=N, outer=averaging\(every=4\)\)",
        ),
        ('place(["a at 0"])', "expected text such as 'encoder on 0, 1', got 'a at 0'"),
        ('place(["a on 0", "a.b on 1"])', "a.b is a part of a, which is placed as a whole"),
        ('place(["a on 0", "a on 1"])', "names a module or a worker twice"),
        (
            "fully_sharded(codec=topk(0.01))",
            r"FSDP2 reduces .*: use fully_sharded\(codec=bfloat16\(\)\) .* or allreduce\(",
        ),
        (
            "fully_sharded(codec=powersgd())",
            r"or allreduce\(codec=powersgd\(\)\) if the model fits",
        ),
        ("fully_sharded(codec=half(feedback=true))", "there is no error feedback"),
        ("hybrid(shard=2, codec=int8())", r"use hybrid\(codec=bfloat16\(\)\)"),
        ("hybrid(tensor=2, codec=half())", "has nothing to reduce .*: leave it out"),
        ("hybrid(data=2, pipeline=2, codec=half())", "stages sum their gradients as they are"),
        ("zero(codec=half())", "zero has no field 'codec'"),
        ("allreduce(codec=powersgd(0))", "rank must be at least 1, got 0"),
        ("allreduce(codec=sparse_sum(1.5))", "fraction must be above 0 and at most 1, got 1.5"),
        ("allreduce(codec=gzip())", "there is no codec or reducer 'gzip'"),
        (
            "allreduce(codec=topk(0.01), find_unused=true)",
            "what topk.* sends for them by error feedback would be lost",
        ),
    ],
)
def test_values_that_mean_nothing(text, words):
    with pytest.raises(NotationError, match=words):
        strategy(text)


@pytest.mark.parametrize("codec", ["int8()", "powersgd()", "factors()"])
def test_codecs_that_encode_in_the_hosts_memory_are_refused_on_gpus(codec):
    with pytest.raises(ValueError, match=r"they are on cuda:0: use codec=bfloat16\(\)"):
        strategy(f"allreduce(codec={codec})").check_places(["here"], ["cuda:0"])
    strategy(f"allreduce(codec={codec})").check_places(["here"], ["cpu"])
    strategy("allreduce(codec=half())").check_places(["here"], ["cuda:0"])


@pytest.mark.parametrize(
    ("codec", "words"),
    [
        ("factors()", "on the rows that each layer computes"),
        ("sparse_sum(0.01)", "on how far the largest entries of all workers coincide"),
        ("chain(int8(), deflate())", "on the gradients and are not forecast: train a few steps"),
    ],
)
def test_bytes_that_depend_on_gradients_are_not_forecast(codec, words):
    with pytest.raises(ValueError, match=words):
        strategy(f"allreduce(codec={codec})").forecast_job(DENSE, 2)
    with pytest.raises(ValueError, match=words):
        dry_run(strategy(f"allreduce(codec={codec})"), DENSE, 2)


@pytest.mark.parametrize(
    ("text", "job", "words"),
    [
        (
            "tensor(ways=2)",
            IMAGES,
            r"tensor\(\) found no layers to split in ResidualNetwork: .*no other linear layer",
        ),
        ("tensor(ways=5)", JOB, "32 outputs are not divisible by 5 workers"),
        (
            'tensor(plan=["*.nothing row"])',
            JOB,
            "does not match GPT: write the name of a layer",
        ),
        (
            "hybrid(tensor=2, pipeline=2, microbatches=4)",
            IMAGES,
            "found no layers to split in ResidualNetwork",
        ),
        (
            "hybrid(tensor=2, pipeline=2, microbatches=4)",
            DENSE,
            r"got 2 \(0, 2 are split together and stay together\): use at most 1",
        ),
        (
            "hybrid(shard=2, pipeline=2)",
            JOB,
            "cannot be split into 8 microbatches: use microbatches=4",
        ),
        ("context(ways=5)", JOB, r"got inputs of shape \(1, 24\): choose another length"),
        ("context(ways=2)", replace(IMAGES, data=[(torch.zeros(4, 3, 32), 0)]), "never calls it"),
        (
            'place(["body on 0"])',
            JOB,
            "GPT has no module 'body': its modules are embedding",
        ),
    ],
)
def test_a_job_that_cannot_be_divided_so(text, job, words):
    chosen = strategy(text)
    if text.startswith("context(ways=2)"):
        job = replace(job, model=lambda: torch.nn.Linear(32, 2))
    with pytest.raises(ValueError, match=words):
        chosen.check_job(job, getattr(chosen, "ways", 2))


@pytest.mark.parametrize(
    "text", ["tensor()", "context()", "hybrid(shard=2)", "fully_sharded()", "zero()", "offload()"]
)
def test_a_job_that_can_is_not_refused(text):
    chosen = strategy(text)
    chosen.check(2)
    chosen.check_job(JOB, 2)


@pytest.mark.parametrize("schedule", ["gpipe", "one_f_one_b", "interleaved", "zero_bubble"])
def test_stages_that_are_divided_are_not_refused(schedule):
    chosen = strategy(
        f"hybrid(data=2, shard=2, tensor=2, pipeline=2, microbatches=4, schedule={schedule})"
    )
    chosen.check(16)
    chosen.check_job(JOB, 16)


def test_places_are_written_as_a_mapping_in_python():
    place = Place({"encoder": (0, 1), "merge": 2})
    assert str(place) == 'place(modules=["encoder on 0, 1", "merge on 2"])'
    assert strategy(str(place)) == place


def test_a_plan_by_hand_names_layers_by_patterns():
    plan = given_plan(GPT(layers=2), ["*.mlp.up column", "*.mlp.down row", "embedding.token row"])
    assert [pair.columns or pair.row for pair in plan.pairs] == [
        ("block1.mlp.up",),
        ("block2.mlp.up",),
        "block1.mlp.down",
        "block2.mlp.down",
    ]
    assert plan.embeddings == ("embedding.token",)
    with pytest.raises(
        TypeError, match=r"block1.mlp is a FeedForward: a plan splits linear layers"
    ):
        given_plan(GPT(), ["block1.mlp row"])


def test_columns_of_a_plan_by_hand_stay_with_the_next_row():
    plan = given_plan(GPT(layers=1), ["*.query column", "*.value column", "*.out row"])
    assert inseparable(GPT(layers=1), plan) == [
        ("block1.attention.query", "block1.attention.value", "block1.attention.out")
    ]


def test_a_network_of_convolutions_has_its_dense_layers_split():
    assert [pair.row for pair in find_plan(LeNet(), 2).pairs] == ["classifier.3"]
