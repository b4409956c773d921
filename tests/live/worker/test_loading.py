"""Batches are the same however they are loaded, and loaders are started once."""

import dataclasses
import os
import signal
from pathlib import Path

import psutil
import pytest
import torch
from torch import nn
from torch.nn import functional

import manyhands as mh
from manyhands.live.worker.leased_batches import LeasedBatches, LeaseQueue
from manyhands.live.worker.loading import Loading
from manyhands.wire.leasing import Ask, Granted, Nothing, Over


class Rows(torch.utils.data.Dataset):
    """Samples one by one; a loader has to collate them."""

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((3,), float(index)), index


def job(num_workers: int) -> mh.Job:
    return mh.Job(
        model=lambda: nn.Linear(3, 4),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=functional.cross_entropy,
        data=Rows(),
        validation=Rows(),
        global_batch=8,
        epochs=2,
        num_workers=num_workers,
    )


def leases() -> list[Granted]:
    return [
        Granted(number, number // 12, start := 8 * (number % 12), start + 8, 8)
        for number in range(24)
    ]


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


def test_leases_are_loaded_by_processes_that_are_started_once() -> None:
    before, seen = children(), set()
    batches, alone = LeasedBatches(job(num_workers=2)), LeasedBatches(job(num_workers=0))
    given = leases()
    for at, lease in enumerate(given):
        inputs, targets = batches.take(lease)
        for granted in given[at + 1 : at + 3]:
            batches.ask(granted)
        expected = alone.take(lease)
        assert torch.equal(inputs, expected[0])
        assert torch.equal(targets, expected[1])
        seen |= children() - before
    batches.close()
    assert len(seen) == 2
    psutil.wait_procs([psutil.Process(pid) for pid in seen if psutil.pid_exists(pid)], timeout=10)
    assert not children() & seen


def test_loading_leaves_the_workers_random_state_as_it_is() -> None:
    drawn = []
    for loaders in (0, 2):
        torch.manual_seed(3)
        batches = LeasedBatches(job(loaders))
        for lease in leases()[:4]:
            batches.take(lease)
        drawn.append(torch.rand(2))
        batches.close()
    assert torch.equal(*drawn)


def test_passes_over_one_data_set_use_the_same_processes() -> None:
    before, seen = children(), set()
    one = job(num_workers=2)
    loading = Loading(one)
    for _ in range(3):
        wanted = [(0, indices) for indices in torch.arange(96).split(8)]
        for (_, indices), (inputs, targets) in zip(
            wanted, loading.batches(one.data, wanted), strict=True
        ):
            assert torch.equal(targets, indices)
            assert torch.equal(inputs[:, 0], indices.float())
            seen |= children() - before
    loading.close()
    assert len(seen) == 2


def test_data_that_fails_in_a_loader_fails_in_the_worker() -> None:
    class Broken(Rows):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            raise OSError(f"sample {index} cannot be read")

    loading = Loading(job(num_workers=1))
    with pytest.raises(OSError, match="sample 0 cannot be read"):
        next(loading.batches(Broken(), [(0, torch.arange(4))]))


class Line:
    """The lease service's end of a line: what was asked, and what it answers next."""

    def __init__(self) -> None:
        self.asked = 0
        self.answers: list[object] = []
        self.late: list[object] = []
        """Answers that come only while the worker waits."""

    def send(self, message: object) -> None:
        assert isinstance(message, Ask)
        self.asked += 1

    def receive(self, timeout: float) -> list[object]:
        if timeout and not self.answers:
            self.answers, self.late = self.late, []
        answers, self.answers = self.answers, []
        return answers


def test_a_worker_holds_as_many_leases_as_it_may_and_asks_once_at_a_time() -> None:
    line, given = Line(), leases()
    queue = LeaseQueue(line, ahead=3)
    queue.ask()
    queue.ask()
    assert line.asked == 1, "it is not answered yet"
    for number in range(3):
        line.answers = [given[number]]
        assert queue.granted() == given[: number + 1]
        assert line.asked == min(number + 2, 3), "three leases are enough"
    assert queue.take() == given[0]
    queue.ask()
    assert line.asked == 4
    line.answers = [Nothing()]
    assert queue.granted() == given[1:3]
    assert line.asked == 4, "Nothing is no answer"
    line.answers = [Over(stores=False)]
    assert queue.granted() == given[1:3]
    assert line.asked == 4, "the run is over"


class Distant:
    """A line on which answers are under way for a while, and a clock that only waiting moves."""

    def __init__(self, seconds: float) -> None:
        self.now = self.waited = 0.0
        self._seconds = seconds
        self._coming: list[tuple[float, Granted]] = []
        self._number = 0

    def send(self, message: object) -> None:
        assert isinstance(message, Ask)
        for _ in range(message.leases):
            self._coming.append((self.now + self._seconds, Granted(self._number, 0, 0, 8, 8)))
            self._number += 1

    def receive(self, timeout: float) -> list[object]:
        if timeout and self._coming and self._coming[0][0] > self.now:
            self.waited += self._coming[0][0] - self.now
            self.now = self._coming[0][0]
        here = [granted for at, granted in self._coming if at <= self.now]
        del self._coming[: len(here)]
        return list(here)

    def work(self, queue: LeaseQueue, batches: int, seconds: float) -> list[int]:
        """Take leases and compute; their numbers."""
        taken = []
        for _ in range(batches):
            message = queue.take()
            assert isinstance(message, Granted)
            taken.append(message.number)
            queue.ask()
            self.now += seconds
        return taken


@pytest.mark.parametrize("seconds", [0.02, 0.07, 0.2, 0.35])
def test_a_worker_far_from_the_lease_service_waits_for_few_leases(seconds: float) -> None:
    line = Distant(seconds)
    queue = LeaseQueue(line, 1, lambda: line.now)
    queue.ask()
    line.work(queue, 20, 0.05)
    waited = line.waited
    assert line.work(queue, 500, 0.05) == [*range(20, 520)]
    assert line.waited - waited <= 0.02 * 500 * 0.05
    assert queue.ahead <= 1 + 2 * seconds / 0.05, "as many as needed, and no more"


def test_leases_that_others_held_do_not_make_a_worker_hold_more() -> None:
    line = Line()
    now = iter(range(1000))
    queue = LeaseQueue(line, 1, lambda: 0.1 * next(now))
    for number in range(20):
        queue.ask()
        line.late = [Granted(number, 0, 0, 8, 8, 0, delayed=True)]
        assert queue.take() == Granted(number, 0, 0, 8, 8, 0, delayed=True)
    assert queue.ahead == 1


SCRIPT = """
import os, sys, torch, torch.nn.functional as F
import manyhands as mh

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        made = torch.Generator().manual_seed(index)
        values = torch.randn(4, generator=made)
        return values, int(values.sum() > 0)

def model():
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 2))

def note(samples):
    if __name__ != "__main__":  # the job is tried there
        with open(os.environ["NOTES"], "a") as file:
            file.write(f"{os.getpid()}\\n")
    return torch.utils.data.default_collate(samples)

job = mh.Job(
    model=model,
    optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    loss=F.cross_entropy, data=Rows(), global_batch=8, epochs=3, collate_fn=note,
    num_workers=int(os.environ["LOADERS"]),
)
if __name__ == "__main__":
    mh.train(job, "synchronous()", workers=1, output="out-" + os.environ["LOADERS"])
"""


@pytest.mark.slow
def test_a_protocol_trains_alike_with_loaders_and_starts_them_once(run_script, tmp_path) -> None:
    found = {}
    for loaders in ("0", "2"):
        notes = tmp_path / f"notes-{loaders}"
        run = run_script(SCRIPT, NOTES=str(notes), LOADERS=loaders)
        assert run.finish() == 0, run.text()
        found[loaders] = {*notes.read_text().split()}
    assert len(found["2"]) == 2, "24 leases, two processes"
    one, other = (mh.Run(tmp_path / f"out-{n}").state_dict() for n in (0, 2))
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name])


class LeavingRows(Rows):
    """Loading one of the samples ends the process with code 0, the first time or each time."""

    def __init__(self, file: Path | None) -> None:
        self._file = file

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index == 40 and (self._file is None or not self._file.exists()):
            if self._file is not None:
                self._file.touch()
            os._exit(0)
        return super().__getitem__(index)


def taken(batches: LeasedBatches, *, kill_at: int | None = None) -> list[torch.Tensor]:
    before, found, given = children(), [], leases()
    for at, lease in enumerate(given):
        if at == kill_at:
            os.kill(min(children() - before), signal.SIGKILL)
        for granted in given[at : at + 3]:
            batches.ask(granted)
        found.append(batches.take(lease)[0])
    batches.close()
    return found


def test_a_loader_process_that_is_killed_is_replaced_and_its_batches_are_loaded_again() -> None:
    expected = taken(LeasedBatches(job(num_workers=0)))
    with pytest.warns(RuntimeWarning, match="restarted, and load their batches again"):
        found = taken(LeasedBatches(job(num_workers=2)), kill_at=9)
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


def test_a_loader_process_that_leaves_is_replaced(tmp_path: Path) -> None:
    expected = taken(LeasedBatches(job(num_workers=0)))
    leaving = dataclasses.replace(job(num_workers=2), data=LeavingRows(tmp_path / "left"))
    with pytest.warns(RuntimeWarning, match="restarted, and load their batches again"):
        found = taken(LeasedBatches(leaving))
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


@pytest.mark.slow
def test_a_sample_that_ends_its_process_each_time_fails_the_run() -> None:
    always = dataclasses.replace(job(num_workers=1), data=LeavingRows(None))
    with (
        pytest.warns(RuntimeWarning, match="restarted"),
        pytest.raises((RuntimeError, OSError)),
    ):
        taken(LeasedBatches(always))
