"""A pipeline of real processes: in lockstep it is one worker; else it is late by the book."""

import time
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest
import torch
from forks import forked
from torch import nn
from torch.func import functional_call
from torch.nn import functional

import manyhands as mh
from manyhands.engine.tensors import gathered
from manyhands.parameters.scheduled_step import weighted_step
from manyhands.placements.pipelines.stages import by_hand, find_pieces
from manyhands.splitting import Unsplittable
from manyhands.strategies import strategy
from manyhands.transport.waits import Waits

# Torch's part is loaded once, here, and the forks have it.
pytest.importorskip("manyhands.engine.pipelines")

BATCH = 16
SIZES = (16, 16, 16, 5, 1, 16)
"""Of the batches: some are too short for the microbatches."""


@pytest.fixture(autouse=True)
def _double():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def gpt_job():
    tokens = torch.randint(0, 65, (200, 25), generator=torch.Generator().manual_seed(7))
    return mh.Job(
        model=lambda: mh.models.GPT(length=24, width=16, layers=3, heads=2),
        optimizer=lambda model: torch.optim.AdamW(
            [
                {"params": model.block1.parameters(), "lr": 3e-3, "weight_decay": 0.1},
                {"params": [p for n, p in model.named_parameters() if "block1" not in n]},
            ],
            lr=1e-2,
        ),
        loss=functional.cross_entropy,
        data=torch.utils.data.TensorDataset(tokens[:, :-1], tokens[:, 1:]),
        global_batch=BATCH,
        epochs=1,
        seed=3,
    )


def batches(job):
    begin = 0
    for size in SIZES:
        yield size, *(tensor[begin : begin + size] for tensor in job.data.tensors)
        begin += size


def questions(job):
    return job.data.tensors[0][-13:]


def alone(job):
    """The same training by hand: losses, the model, its answers."""
    torch.manual_seed(job.seed)
    model, losses = job.model(), []
    optimizer = job.optimizer(model)
    for size, inputs, targets in batches(job):
        loss = job.loss(model(inputs), targets)
        loss.backward()
        weighted_step(optimizer, size / BATCH)
        optimizer.zero_grad()
        losses.append(loss.detach())
    model.eval()
    return torch.stack(losses), model.state_dict(), model(questions(job)).detach()


def piped(job, text):
    """What a worker of a pipeline does."""

    def work(group):
        torch.manual_seed(job.seed)
        waits = Waits(time.monotonic, lambda _: None)
        bound = strategy(text).bind(job, group, torch.device("cpu"), waits)
        losses, late = [], []
        for size, inputs, targets in batches(job):
            bound.counts = size / BATCH
            losses.append(bound.gradient(inputs, targets, 1.0, len(inputs)))
            bound.step(bound.counts)
        bound.average_buffers()
        late += bound.applied()
        bound.model.eval()
        with torch.no_grad():
            answers = bound.outputs(questions(job))
        state = dict(bound.state().fetch())
        made = {"losses": torch.stack(losses), "late": torch.tensor(late)}
        if bound.speaks:
            made["answers"] = answers
        return made | ({f"state.{k}": v for k, v in state.items()} if group.rank == 0 else {})

    return work


def state_of(made):
    return {k.removeprefix("state."): v for k, v in made.items() if k.startswith("state.")}


@pytest.mark.parametrize(
    ("text", "workers"),
    [
        ("pipeline(microbatches=4, schedule=gpipe)", 2),
        ("pipeline(microbatches=4, schedule=one_f_one_b)", 4),
        ("pipeline(microbatches=6, schedule=interleaved)", 2),
        ("pipeline(microbatches=4, schedule=zero_bubble)", 3),
        ("pipeline(microbatches=4, stages=4, schedule=zero_bubble)", 2),
        ("pipeline(microbatches=4)", 1),
    ],
)
def test_in_lockstep_it_equals_one_worker_also_for_short_batches(tmp_path, text, workers):
    job = gpt_job()
    losses, state, answers = alone(job)
    made = forked(tmp_path, workers, piped(job, text))
    for each in made:
        torch.testing.assert_close(each["losses"], losses, rtol=1e-9, atol=0)
        assert not len(each["late"])
    torch.testing.assert_close(made[-1]["answers"], answers, rtol=1e-9, atol=1e-12)
    stored = state_of(made[0])
    assert stored.keys() == state.keys()
    for name, tensor in state.items():
        torch.testing.assert_close(stored[name], tensor, rtol=1e-9, atol=1e-10)


def layers_job(kind):
    generator = torch.Generator().manual_seed(5)
    kinds = {
        "momentum": lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        "adam": lambda model: torch.optim.Adam(model.parameters(), lr=0.01),
    }
    return mh.Job(
        model=lambda: nn.Sequential(
            nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 3)
        ),
        optimizer=kinds[kind],
        loss=functional.mse_loss,
        data=torch.utils.data.TensorDataset(
            torch.randn(200, 6, generator=generator), torch.randn(200, 3, generator=generator)
        ),
        global_batch=BATCH,
        epochs=1,
        metrics=(),
    )


STAGE = {"0": 0, "2": 1, "4": 2}
"""Where the layers of that model are, if it is split at 2 and 4."""


def late_updates(job, microbatches):
    """Delayed updates in one process, by their definition.

    Microbatch k is computed with the parameters that each stage s of p had p − 1 − s updates
    before; its gradient is applied to the newest.
    """
    torch.manual_seed(job.seed)
    model = job.model()
    optimizer = job.optimizer(model)
    versions = [{name: p.detach().clone() for name, p in model.named_parameters()}]
    for _, inputs, targets in batches(job):
        parts = min(microbatches, len(inputs))
        pairs = zip(inputs.tensor_split(parts), targets.tensor_split(parts), strict=True)
        for given, wanted in pairs:
            read = {}
            for name in versions[0]:
                behind = 2 - STAGE[name[0]]
                of = versions[max(0, len(versions) - 1 - behind)][name]
                read[name] = of.clone().requires_grad_()
            loss = job.loss(functional_call(model, read, (given,)), wanted)
            loss.backward()
            for name, parameter in model.named_parameters():
                parameter.grad = read[name].grad
            weighted_step(optimizer, len(given) / BATCH)
            versions.append({name: p.detach().clone() for name, p in model.named_parameters()})
    return versions[-1], len(versions) - 1


@pytest.mark.parametrize("kind", ["momentum", "adam"])
def test_pipedream_equals_an_oracle_of_delayed_updates(tmp_path, kind):
    job = layers_job(kind)
    wanted, updates = late_updates(job, 4)
    text = 'pipeline(microbatches=4, schedule=pipedream, split_points=["2", "4"])'
    made = forked(tmp_path, 3, piped(job, text))
    stored = state_of(made[0])
    assert stored.keys() == wanted.keys()
    for name, tensor in wanted.items():
        torch.testing.assert_close(stored[name], tensor, rtol=1e-12, atol=1e-12)
    # Stage s of p is p − 1 − s updates late, as soon as there were so many.
    for stage, each in enumerate(made):
        late = 2 - stage
        expected = Counter({late: updates - late}) + Counter(range(late))
        assert Counter(each["late"].tolist()) == expected
    torch.manual_seed(job.seed)
    model = job.model()
    model.load_state_dict(wanted)
    torch.testing.assert_close(made[-1]["answers"], model(questions(job)).detach())
    # The last stage knows the losses at once, an earlier one those that have come back.
    assert torch.equal(made[0]["losses"][2], made[2]["losses"][1])


@pytest.mark.parametrize(
    ("text", "workers"),
    [
        ("pipeline(microbatches=4, schedule=one_f_one_b)", 3),
        ("pipeline(microbatches=6, schedule=interleaved)", 2),
        ("pipeline(microbatches=4, schedule=zero_bubble)", 2),
        ("pipeline(microbatches=4, schedule=pipedream)", 2),
    ],
)
def test_it_sends_what_was_forecast_to_the_byte(tmp_path, text, workers):
    job, steps = gpt_job(), 3

    def work(group):
        torch.manual_seed(job.seed)
        waits = Waits(time.monotonic, lambda _: None)
        bound = strategy(text).bind(job, group, torch.device("cpu"), waits)
        inputs, targets = (tensor[:BATCH] for tensor in job.data.tensors)
        bound.gradient(inputs, targets, 1.0, len(inputs))
        bound.average_buffers()
        group.sum(torch.zeros(1))
        before = sum(group.traffic()[0].values())
        waits.noted = []
        for _ in range(steps):
            bound.gradient(inputs, targets, 1.0, len(inputs))
        bound.average_buffers()
        sent = [one.size for one in waits.noted if one.kind == "send"]
        group.sum(torch.zeros(1))
        wire = sum(group.traffic()[0].values()) - before
        return {"sent": torch.tensor(sent), "wire": torch.tensor(wire)}

    forecast = strategy(text).forecast_job(job, workers)
    expected = sorted(steps * [one.size for one in forecast.step])
    made = forked(tmp_path, workers, work)
    assert sorted(size for each in made for size in each["sent"].tolist()) == expected
    assert forecast.sent_per_step(workers) * workers * steps == pytest.approx(sum(expected))
    # Gloo adds a few words to every tensor, and on a busy machine the kernel sends some again.
    wire = sum(int(each["wire"]) for each in made)
    assert sum(expected) < wire < 1.5 * sum(expected)


@pytest.mark.parametrize(
    ("text", "workers"),
    [
        ("pipeline(microbatches=4)", 3),
        ("hybrid(tensor=2, pipeline=2, microbatches=4)", 4),
        pytest.param("hybrid(shard=2, pipeline=2)", 4, marks=pytest.mark.slow),
        pytest.param("hybrid(shard=2, tensor=2, pipeline=2)", 8, marks=pytest.mark.slow),
    ],
)
def test_clipping_is_of_the_whole_models_norm(tmp_path, text, workers):
    job, limit = gpt_job(), 0.05
    torch.manual_seed(job.seed)
    model = job.model()
    inputs, targets = (tensor[:BATCH] for tensor in job.data.tensors)
    job.loss(model(inputs), targets).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), limit)
    assert norm > 2 * limit

    def work(group):
        torch.manual_seed(job.seed)
        waits = Waits(time.monotonic, lambda _: None)
        bound = strategy(text).bind(job, group, torch.device("cpu"), waits)
        own = [tensor.chunk(bound.replicas)[bound.replica] for tensor in (inputs, targets)]
        bound.gradient(*own, 1.0, len(own[0]))
        bound.clip(limit)
        sections = bound.model.named_parameters()
        return {name.split(".", 1)[1]: gathered(tensor.grad) for name, tensor in sections}

    made = forked(tmp_path, workers, work)
    assert {*chain.from_iterable(made)} == {name for name, _ in model.named_parameters()}
    for each in made:
        for name, grad in each.items():
            expected = model.get_parameter(name).grad
            torch.testing.assert_close(grad, expected, rtol=1e-9, atol=1e-12)


class Scaled(nn.Module):
    """Uses a parameter that belongs to no layer."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 12))
        self.layers = nn.Sequential(*(nn.Linear(12, 12) for _ in range(4)))

    def forward(self, inputs):
        return self.layers(inputs * self.scale)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "workers"),
    [
        ("hybrid(shard=2, pipeline=2, microbatches=4)", 4),
        ("hybrid(data=2, shard=2, pipeline=2, microbatches=4, schedule=interleaved)", 8),
    ],
)
def test_a_parameter_of_no_layer_is_not_sharded_and_learns_all_the_same(tmp_path, text, workers):
    inputs, targets = torch.randn(2, BATCH, 12, generator=torch.Generator().manual_seed(1))
    job = mh.Job(
        model=Scaled,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.5),
        loss=functional.mse_loss,
        data=torch.utils.data.TensorDataset(inputs, targets),
        global_batch=BATCH,
        epochs=1,
        metrics=(),
    )
    torch.manual_seed(job.seed)
    model = job.model()
    optimizer = job.optimizer(model)
    for _ in range(3):
        optimizer.zero_grad()
        job.loss(model(inputs), targets).backward()
        optimizer.step()

    def work(group):
        torch.manual_seed(job.seed)
        waits = Waits(time.monotonic, lambda _: None)
        bound = strategy(text).bind(job, group, torch.device("cpu"), waits)
        own = [tensor.chunk(bound.replicas)[bound.replica] for tensor in (inputs, targets)]
        for _ in range(3):
            bound.gradient(*own, 1.0, len(own[0]))
            bound.step(1.0)
        return dict(bound.state().fetch())

    stored = forked(tmp_path, workers, work)[0]
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(stored[name], tensor, rtol=1e-9, atol=1e-12)


def memory(what):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(what))


def wide_job(wide):
    return mh.Job(
        model=lambda: nn.Sequential(*(nn.Linear(wide, wide) for _ in range(12))),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.01),
        loss=functional.mse_loss,
        data=torch.utils.data.TensorDataset(torch.randn(8, wide), torch.randn(8, wide)),
        global_batch=8,
        epochs=1,
        metrics=(),
        seed=3,
    )


@pytest.mark.slow
def test_no_worker_ever_holds_the_whole_model(tmp_path):
    # Each layer has 40 MB: what the allocator gives back to the kernel at once.
    job = wide_job(2240)

    def work(group):
        waits = Waits(time.monotonic, lambda _: None)
        pipeline = strategy("pipeline(microbatches=4)")
        # Once with a small model, so that all code is here.
        pipeline.bind(wide_job(8), group, torch.device("cpu"), waits)
        torch.manual_seed(job.seed)
        # From here on the kernel tells the most that is held.
        Path("/proc/self/clear_refs").write_text("5")
        before = memory("VmRSS")
        bound = pipeline.bind(job, group, torch.device("cpu"), waits)
        grown = torch.tensor(memory("VmHWM") - before)
        own = bound.model.named_parameters()
        return {"grown": grown} | {name.split(".", 1)[1]: one.detach() for name, one in own}

    torch.manual_seed(job.seed)
    whole = job.model().state_dict()
    made = forked(tmp_path, 4, work)
    size = sum(tensor.nbytes for tensor in whole.values())
    assert max(int(each["grown"]) for each in made) < 0.75 * size
    for name, tensor in whole.items():
        assert torch.equal(next(each[name] for each in made if name in each), tensor)


@pytest.mark.parametrize(
    ("text", "workers", "fix"),
    [
        ("pipeline(stages=4)", 2, "need 4 workers"),
        ("pipeline(schedule=interleaved, microbatches=9)", 4, "use 8 or 12 microbatches"),
        ("pipeline(schedule=interleaved, stages=6)", 4, "use 8 stages"),
        ('pipeline(split_points=["block1", "block2"])', 2, "need 3 workers"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(text, workers, fix):
    with pytest.raises(ValueError, match=fix):
        strategy(text).check(workers)


@pytest.mark.parametrize(
    "text",
    [
        "pipeline(microbatches=0)",
        "pipeline(stages=0)",
        'pipeline(stages=4, split_points=["block1"])',
    ],
)
def test_values_that_mean_nothing_are_refused(text):
    with pytest.raises(ValueError, match=r"must be from 1|leave out one"):
        strategy(text)


@pytest.mark.parametrize(
    ("text", "workers", "error", "fix"),
    [
        ("pipeline()", 30, Unsplittable, "use at most 9 stages"),
        ("pipeline(microbatches=20)", 2, ValueError, "use microbatches=16 or fewer"),
        ('pipeline(split_points=["block7"])', 2, Unsplittable, "use one of block1"),
    ],
)
def test_a_job_that_does_not_fit_is_refused_before_it_is_made(text, workers, error, fix):
    with pytest.raises(error, match=fix):
        strategy(text).check_job(gpt_job(), workers)


def test_a_stage_begins_at_a_module_also_where_it_is_in_several_pieces():
    model = mh.models.GPT(vocabulary=20, width=32, layers=4, heads=4, length=16)
    tokens = torch.zeros(2, 16, dtype=torch.int64)
    for stages, names in ((2, ["block2"]), (4, ["block1", "block2", "block3"])):
        pieces = find_pieces(model, tokens, stages, names)
        begins = [pieces.names[place] for place in by_hand(pieces, names)[1:]]
        assert [name.partition(".")[0] for name in begins] == names
    assert begins[0] == "block1.before_attention"


def test_a_run_that_cannot_be_is_refused_before_a_process_starts(run_script):
    script = """
        import torch
        import manyhands as mh

        job = mh.Job(
            model=lambda: torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)),
            optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
            loss=torch.nn.functional.mse_loss,
            data=torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randn(64, 2)),
            global_batch=16,
            epochs=1,
            metrics=(),
        )

        if __name__ == "__main__":
            mh.train(job, "pipeline(microbatches=4)", workers=3)
    """
    started = run_script(script)
    assert started.finish() != 0
    assert "can be split into at most 2 stages (0, 1), got 3" in started.text()
    assert "use at most 2 stages" in started.text()
    assert not (started.folder / "runs").exists()
