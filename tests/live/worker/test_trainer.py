"""What a trainer asks of its loop and promises in return, in one process; two runs with more."""

import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import msgspec
import psutil
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from manyhands.files.checkpoint import load_state
from manyhands.job import Job
from manyhands.live.member.progress import Progress
from manyhands.live.worker.trainer import Trainer
from manyhands.metrics import F1, Accuracy
from manyhands.parameters.scheduled_step import weighted_step
from manyhands.sampling.permutation import permutation
from manyhands.strategies import strategy
from manyhands.trace import Event, Header, Record, Recorder
from manyhands.transport.collectives import Group, serve_store

HEADER = Header(role="worker", rank=0, host="a", pid=1, boot="b", clock=0.0, wall=1e9)
INPUTS = torch.randn(50, 3, generator=torch.Generator().manual_seed(1))
TARGETS = torch.randint(0, 4, (50,), generator=torch.Generator().manual_seed(2))


class Rows:
    """A map-style dataset of single samples, with nothing that makes it fast."""

    def __init__(self, inputs: torch.Tensor = INPUTS, targets: torch.Tensor = TARGETS) -> None:
        self.inputs, self.targets = inputs, targets

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inputs[index], self.targets[index]


class Taking(Rows):
    """The same, which gives batches at once and remembers that it was asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.taken = 0

    def take(self, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.taken += 1
        return self.inputs[indices], self.targets[indices]


class Ticking:
    """A clock that moves by a thousandth whenever it is looked at."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


JOB = Job(
    model=lambda: nn.Linear(3, 4),
    optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5),
    loss=functional.cross_entropy,
    data=TensorDataset(INPUTS, TARGETS),
    global_batch=8,
    epochs=2,
)


@pytest.fixture(scope="module")
def group() -> Iterator[Group]:
    store, _ = serve_store()
    group = Group(store, 0, 1, epoch=1, device=torch.device("cpu"))
    yield group
    group.close()


@pytest.fixture
def make(group: Group) -> Callable[..., Trainer]:
    """A trainer of the job, changed; what it records is in `trainer.written`."""

    def build(
        how: str = "single()", clock: Callable[[], float] = time.monotonic, **changes: Any
    ) -> Trainer:
        written: list[bytes] = []
        recorder = Recorder(HEADER, written.append, clock)
        trainer = Trainer(
            replace(JOB, **changes),
            strategy(how),
            group,
            torch.device("cpu"),
            recorder,
            Progress(),
            clock,
        )
        trainer.written = written
        return trainer

    return build


def run(trainer: Trainer) -> Trainer:
    for batch in trainer.batches():
        trainer.step(batch)
    trainer.finish()
    trainer._recorder.flush()
    return trainer


def events(trainer: Trainer, what: str) -> list[dict[str, str]]:
    decoder = msgspec.json.Decoder(Record)
    lines = b"".join(trainer.written).splitlines()
    records = [decoder.decode(line) for line in lines if line]
    return [one.detail for one in records if isinstance(one, Event) and one.what == what]


def parameters(trainer: Trainer) -> torch.Tensor:
    return torch.cat([one.detach().flatten() for one in trainer.model.parameters()])


def test_a_batch_may_be_stepped_once_only(make) -> None:
    trainer = make()
    batch = next(trainer.batches())
    trainer.step(batch)
    before = parameters(trainer).clone()
    with pytest.raises(RuntimeError, match="batch 0 is not the current batch; step each batch"):
        trainer.step(batch)
    assert torch.equal(parameters(trainer), before), "nothing was learnt from it twice"


def test_an_earlier_batch_and_a_copy_are_not_the_one_that_is_due(make) -> None:
    trainer = make()
    batches = trainer.batches()
    first = next(batches)
    trainer.step(first)
    second = next(batches)
    with pytest.raises(RuntimeError, match="batch 0 is not the current batch"):
        trainer.step(first)
    with pytest.raises(RuntimeError, match="batch 1 is not the current batch"):
        trainer.step(replace(second))
    trainer.step(second)


def test_a_batch_that_is_skipped_is_missed_at_the_next(make) -> None:
    trainer = make()
    batches = trainer.batches()
    trainer.step(next(batches))
    next(batches)
    words = r"batch 1 was not stepped: call trainer\.step\(batch\) once for every batch"
    with pytest.raises(RuntimeError, match=words):
        next(batches)


def test_the_last_batch_must_be_stepped_too(make) -> None:
    trainer = make(samples=8, epochs=None)
    with pytest.raises(RuntimeError, match="batch 0 was not stepped"):
        list(trainer.batches())


def test_a_loop_per_epoch_is_refused_because_one_loop_has_them_all(make) -> None:
    trainer = run(make())
    with pytest.raises(RuntimeError, match=r"trainer.batches\(\) was called twice"):
        next(trainer.batches())


def test_batches_tell_their_epoch_and_step_and_the_progress_counts_them(make) -> None:
    trainer = make()
    seen = []
    for batch in trainer.batches():
        loss = trainer.step(batch)
        assert not loss.requires_grad
        seen.append((batch.epoch, batch.step, len(batch.inputs)))
    assert seen == [(step // 7, step, 2 if step % 7 == 6 else 8) for step in range(14)]
    assert trainer._progress.samples == 100
    assert trainer._progress.step == 14
    drained = trainer._progress.drain_losses()
    assert drained is not None
    assert drained[1] == 100


def test_a_step_gives_the_loss_before_it_and_moves_by_the_weighted_rate(make) -> None:
    trainer = make(samples=10, epochs=None)
    model = JOB.model()
    model.load_state_dict(trainer.model.state_dict())
    optimizer = JOB.optimizer(model)
    order = permutation(50, 0, 0)
    for number, batch in enumerate(trainer.batches()):
        indices = order[8 * number : 8 * number + 8][: 2 if number else 8]
        loss = functional.cross_entropy(model(INPUTS[indices]), TARGETS[indices])
        optimizer.zero_grad()
        loss.backward()
        optimizer.param_groups[0]["lr"] = 0.5 * len(indices) / 8
        optimizer.step()
        assert trainer.step(batch).item() == pytest.approx(loss.item(), abs=1e-6)
    assert number == 1
    for ours, theirs in zip(trainer.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert all(one.grad is None for one in trainer.model.parameters()), "gradients are dropped"


@pytest.mark.parametrize("weight", [0.25, 1.0])
def test_a_weighted_step_scales_the_rate_of_every_group_and_restores_it(weight: float) -> None:
    first, second = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([{"params": [first], "lr": 0.1}, {"params": [second], "lr": 0.3}])
    first.grad, second.grad = torch.ones(2), torch.ones(2)
    weighted_step(optimizer, weight)
    torch.testing.assert_close(first.detach(), torch.full((2,), 1 - 0.1 * weight))
    torch.testing.assert_close(second.detach(), torch.full((2,), 1 - 0.3 * weight))
    assert [one["lr"] for one in optimizer.param_groups] == [0.1, 0.3]


def test_a_weighted_step_acts_under_adam_which_ignores_the_size_of_gradients() -> None:
    moved = []
    for weight in (1.0, 0.5):
        parameter = nn.Parameter(torch.zeros(3))
        parameter.grad = torch.tensor([1.0, -2.0, 3.0])
        weighted_step(torch.optim.Adam([parameter], lr=0.01), weight)
        moved.append(parameter.detach())
    torch.testing.assert_close(moved[1], moved[0] / 2)


def test_the_rate_is_restored_when_the_optimizer_raises() -> None:
    class Broken(torch.optim.SGD):
        def step(self) -> None:
            assert self.param_groups[0]["lr"] == 0.2
            raise OSError("broken on purpose")

    optimizer = Broken([nn.Parameter(torch.ones(2))], lr=0.4)
    with pytest.raises(OSError, match="on purpose"):
        weighted_step(optimizer, 0.5)
    assert optimizer.param_groups[0]["lr"] == 0.4


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (
            lambda outputs, targets: functional.cross_entropy(outputs, targets, reduction="none"),
            r"the loss must be a scalar tensor, .*, got torch.Size\(\[8\]\)",
        ),
        (lambda *_: 0.5, "got float"),
        (lambda *_: nn.CrossEntropyLoss(), "got CrossEntropyLoss"),
    ],
    ids=["per sample", "a float", "a loss that was not called"],
)
def test_a_loss_that_is_not_one_number_is_refused(make, loss: Any, words: str) -> None:
    trainer = make(loss=loss)
    with pytest.raises(TypeError, match=words):
        trainer.step(next(trainer.batches()))


def test_a_loss_of_one_number_in_a_dimension_of_its_own_trains_and_evaluates(make) -> None:
    plain = run(make(validation=JOB.data))
    boxed = run(
        make(validation=JOB.data, loss=lambda *pair: functional.cross_entropy(*pair).reshape(1))
    )
    assert boxed.values == plain.values
    assert torch.equal(parameters(boxed), parameters(plain))


@pytest.mark.parametrize(
    "data", [torch.arange(50), list(zip(INPUTS, INPUTS, TARGETS, strict=True))]
)
def test_samples_that_are_no_pairs_are_refused(make, data: Any) -> None:
    trainer = make(data=data)
    with pytest.raises(TypeError, match=r"must be a pair \(input, target\)"):
        next(trainer.batches())


def test_seconds_end_the_run_at_about_that_time(make) -> None:
    clock = Ticking()
    trainer = make(clock=clock, epochs=None, seconds=3.0)
    begun = clock.now
    run(trainer)
    # It looks at the clock four times a second.
    assert 3.0 <= clock.now - begun < 3.5
    assert trainer._progress.samples > 50


def test_seconds_end_the_run_on_a_real_clock_too(make) -> None:
    begun = time.monotonic()
    trainer = make(epochs=None, seconds=0.3)
    run(trainer)
    assert 0.3 <= time.monotonic() - begun < 3.0


def test_a_run_that_seconds_end_in_mid_epoch_is_measured_all_the_same(make) -> None:
    trainer = make(clock=Ticking(), epochs=None, seconds=0.8, validation=JOB.data)
    run(trainer)
    assert trainer._progress.samples % 50, "in mid-epoch"
    assert set(trainer.values) >= {"loss"}


def test_a_budget_that_is_used_up_first_ends_a_run_with_seconds(make) -> None:
    assert run(make(epochs=1, seconds=600.0))._progress.samples == 50


def test_a_target_ends_the_run_after_the_epoch_that_reached_it(make) -> None:
    losses: list[float] = []
    watched = make(validation=JOB.data, epochs=10)
    for batch in watched.batches():
        if batch.share.step % 7 == 0 and batch.share.step:
            losses.append(watched.values["loss"])
        watched.step(batch)
    goal = losses[3]
    assert min(losses[:3]) > goal, "the fourth evaluation is the first that is as good"
    trainer = run(make(validation=JOB.data, epochs=10, target=f"loss <= {goal!r}"))
    assert trainer._progress.samples == 200
    assert trainer.values["loss"] == goal
    assert events(trainer, "target") == [{"target": f"loss <= {goal:g}", "samples": "200"}]


def test_a_target_that_is_not_reached_leaves_the_end_to_the_budget(make) -> None:
    trainer = run(make(validation=JOB.data, target="loss <= 0.0"))
    assert trainer._progress.samples == 100
    assert events(trainer, "target") == []


@pytest.mark.parametrize("validation", [TensorDataset, Rows], ids=["tensors", "rows"])
@pytest.mark.parametrize("batch", [1, 7, 64])
def test_an_evaluation_equals_a_computation_on_the_whole_set(make, batch: int, validation) -> None:
    trainer = make(
        global_batch=batch,
        validation=validation(INPUTS[:31], TARGETS[:31]),
        metrics=["accuracy", "f1"],
        model=lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=True)),
    )
    trainer.model[1].running_mean.fill_(0.25)
    values = trainer.evaluate()
    assert trainer.model.training, "training goes on as before"
    trainer.model.eval()
    with torch.no_grad():
        outputs = trainer.model(INPUTS[:31])
    expected = {
        "loss": functional.cross_entropy(outputs, TARGETS[:31]).item(),
        "accuracy": Accuracy().value(Accuracy().statistics(outputs, TARGETS[:31])),
        "f1": F1().value(F1().statistics(outputs, TARGETS[:31])),
    }
    assert values == pytest.approx(expected, abs=1e-6)
    assert trainer.values == values
    assert torch.equal(trainer.model[1].running_mean, torch.full((4,), 0.25))


def test_an_evaluation_without_data_says_so(make) -> None:
    with pytest.raises(ValueError, match="no validation data to evaluate on"):
        make().evaluate()
    with pytest.raises(ValueError, match="the validation data is empty"):
        make(validation=[]).evaluate()


@pytest.mark.parametrize("loaders", [0, 2])
def test_rows_through_a_data_loader_train_as_tensors_do(make, loaders: int) -> None:
    plain = run(make(validation=JOB.data))
    rows = run(make(data=Rows(), validation=Rows(), num_workers=loaders))
    assert torch.equal(parameters(rows), parameters(plain))
    assert rows.values == plain.values


def test_data_that_gives_batches_at_once_is_asked_for_them(make) -> None:
    plain, data = run(make()), Taking()
    assert torch.equal(parameters(run(make(data=data))), parameters(plain))
    assert data.taken == 14


@pytest.mark.parametrize("data", [JOB.data, Rows(), Taking()], ids=["tensors", "rows", "taking"])
def test_collate_is_honoured_whatever_the_data(make, data: Any) -> None:
    def doubled(samples: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, targets = zip(*samples, strict=True)
        return 2 * torch.stack(inputs), torch.stack(targets)

    twice = TensorDataset(2 * INPUTS, TARGETS)
    plain = run(make(data=twice, validation=twice))
    collated = run(make(data=data, validation=data, collate_fn=doubled))
    assert torch.equal(parameters(collated), parameters(plain))
    assert collated.values == plain.values


def test_a_run_that_ends_early_ends_its_loaders(make) -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    trainer = make(data=Rows(), num_workers=2, epochs=None, seconds=0.01)
    batches = trainer.batches()
    trainer.step(next(batches))
    started = [child for child in psutil.Process().children() if child.pid not in before]
    assert len(started) == 2
    for batch in batches:
        trainer.step(batch)
    _, alive = psutil.wait_procs(started, timeout=10)
    assert alive == []


def test_the_same_seed_trains_the_same_parameters_and_another_does_not(make) -> None:
    once, again, other = (parameters(run(make(seed=seed))) for seed in (5, 5, 6))
    assert torch.equal(once, again)
    assert not torch.equal(once, other)


def test_allreduce_with_one_worker_equals_single(make) -> None:
    assert torch.equal(parameters(run(make("allreduce()"))), parameters(run(make())))


def test_one_worker_bears_a_parameter_that_the_loss_does_not_use(make) -> None:
    class Spare(nn.Linear):
        def __init__(self) -> None:
            super().__init__(3, 4)
            self.spare = nn.Parameter(torch.ones(2))

    trainer = run(make(model=Spare))
    assert torch.equal(trainer.model.spare.detach(), torch.ones(2))


BATCH_NORM = """
    import json
    import torch, torch.nn.functional as F
    from torch import nn
    import manyhands as mh

    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(14, 2, 3, 3, generator=generator)
    targets = torch.randint(0, 4, (14,), generator=generator)
    data = torch.utils.data.TensorDataset(inputs, targets)

    def buffers(model):
        return {name: buffer.tolist() for name, buffer in model.named_buffers()}

    def loop(trainer):
        steps = []
        for batch in trainer.batches():
            before = buffers(trainer.model)
            trainer.step(batch)
            steps.append([batch.share.samples, before, buffers(trainer.model)])
        state = {name: value.tolist() for name, value in trainer.model.state_dict().items()}
        with open(f"worker-{trainer.rank}.json", "w") as file:
            json.dump([steps, state], file)

    job = mh.Job(
        model=lambda: nn.Sequential(
            nn.Conv2d(2, 4, 1), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(36, 4)
        ),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=F.cross_entropy,
        data=data,
        validation=data,
        global_batch=6,
        epochs=2,
    )

    if __name__ == "__main__":
        mh.train(job, "allreduce()", workers=3, loop=loop, output="run")
"""


def numbers(value: Any) -> list[float]:
    """All numbers in nested lists."""
    return [one for part in value for one in numbers(part)] if isinstance(value, list) else [value]


def test_batch_norm_on_workers_that_run_empty_ends_alike_and_learns_only_its_own(run_script):
    # 14 = 6 + 6 + 2: the last batch of each epoch leaves worker 2 empty.
    started = run_script(BATCH_NORM)
    assert started.finish() == 0, started.text()
    told = [
        json.loads((started.folder / f"worker-{rank}.json").read_text(encoding="utf-8"))
        for rank in range(3)
    ]
    counts = [[samples for samples, _, _ in steps] for steps, _ in told]
    assert counts == [[2, 2, 1, 2, 2, 1], [2, 2, 1, 2, 2, 1], [2, 2, 0, 2, 2, 0]]
    for steps, _ in told:
        for samples, before, after in steps:
            assert (before == after) == (samples == 0), "only counted samples are learnt from"
    state = told[0][1]
    assert told[1][1] == told[2][1] == state, "parameters and buffers are the same everywhere"
    assert all(math.isfinite(one) for one in numbers([*state.values()]))
    for name in ("1.running_mean", "1.running_var"):
        last = torch.tensor([steps[-1][2][name] for steps, _ in told], dtype=torch.float64)
        assert not torch.equal(last[0], last[1]), "before the evaluation each had its own"
        torch.testing.assert_close(torch.tensor(state[name]), last.mean(0).float())
    assert state["1.num_batches_tracked"] == 6
    stored = load_state(started.folder / "run" / "model.safetensors")
    for name, value in state.items():
        torch.testing.assert_close(stored[name], torch.tensor(value, dtype=stored[name].dtype))


UNUSED = """
    import torch, torch.nn.functional as F
    from torch import nn
    import manyhands as mh

    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0
            self.first, self.second = nn.Linear(3, 4), nn.Linear(3, 4)

        def forward(self, inputs):
            self.calls += 1
            return (self.first if self.calls % 2 else self.second)(inputs)

    job = mh.Job(
        model=Branching,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=F.cross_entropy,
        data=torch.utils.data.TensorDataset(torch.randn(40, 3), torch.randint(0, 4, (40,))),
        global_batch=8,
        epochs=1,
    )

    if __name__ == "__main__":
        print("SAMPLES", mh.train(job, "allreduce(find_unused=true)", workers=2).samples)
        mh.train(job, "allreduce()", workers=2)
"""


def test_an_unused_parameter_under_allreduce_is_named_with_a_way_out_that_works(run_script):
    started = run_script(UNUSED)
    assert started.finish() != 0
    text = started.text()
    assert "SAMPLES 40" in text, text
    words = "the loss does not depend on 2 parameters: second.weight, second.bias; freeze them"
    assert words in text
    assert "allreduce(find_unused=true)" in text.split(words)[1]
