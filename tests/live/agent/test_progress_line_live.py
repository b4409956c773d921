"""Where a worker stands, as its second thread reads it."""

import inspect
import math
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from manyhands.live.member.progress import Progress
from manyhands.transport.control import Line

HERE = Path(__file__)


@pytest.fixture
def often() -> Iterator[None]:
    """Let threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def from_another_thread(read: Callable[[], str], stand: Callable[[threading.Event], None]) -> str:
    """What `read` says on a second thread while this one stands in `stand`.

    `stand` gets an event that is set when the reading is done.
    """
    lines: list[str] = []
    done = threading.Event()

    def look() -> None:
        # The main thread must have arrived: it stands when two looks agree.
        while len(lines) < 2 or lines[-1] != lines[-2]:
            lines.append(read())
            threading.Event().wait(0.05)
        done.set()

    reader = threading.Thread(target=look)
    reader.start()
    try:
        stand(done)
    finally:
        reader.join()
    return lines[-1]


def test_the_users_line_is_named_with_its_file_and_function() -> None:
    def wait_here(done: threading.Event) -> None:
        assert done.wait(10)

    lines, first = inspect.getsourcelines(wait_here)
    number = first + next(at for at, text in enumerate(lines) if "done.wait" in text)
    told = from_another_thread(Progress().line, wait_here)
    assert told == f"{HERE}:{number} in wait_here"


def test_a_line_of_ours_is_named_behind_the_users_that_led_to_it(tmp_path: Path) -> None:
    with Line(f"ipc://{tmp_path}/hub", "worker-0") as line:

        def receive(done: threading.Event) -> None:
            while not done.is_set():
                line.receive(0.2)

        told = from_another_thread(Progress().line, receive)
    user, ours = told.removesuffix(")").split(" (")
    assert user.startswith(f"{HERE}:")
    assert user.endswith(" in receive")
    assert ours.startswith("manyhands/transport/control.py:")
    assert ours.endswith(" in receive")


def test_torchs_own_lines_are_passed_over_for_the_users() -> None:
    class Slow(torch.nn.Module):
        def forward(self, done: threading.Event) -> None:
            done.wait(10)

    told = from_another_thread(Progress().line, torch.nn.Sequential(Slow()))
    assert told.startswith(f"{HERE}:")
    assert told.endswith(" in forward")


def test_the_main_thread_is_read_from_any_thread() -> None:
    made: list[Progress] = []
    maker = threading.Thread(target=lambda: made.append(Progress()))
    maker.start()
    maker.join()

    def stand(done: threading.Event) -> None:
        done.wait(10)

    assert from_another_thread(made[0].line, stand).endswith(" in stand")


def test_a_thread_that_is_gone_stands_at_an_unknown_line() -> None:
    progress = Progress()
    progress._main = None
    assert progress.line() == "an unknown line"


def test_draining_gives_the_mean_weighted_by_samples_and_begins_anew() -> None:
    progress = Progress()
    assert progress.drain_losses() is None
    progress.losses += [(torch.tensor(1.0), 30), (torch.tensor(4.0), 10)]
    assert progress.drain_losses() == (1.75, 40)
    assert progress.drain_losses() is None
    progress.losses.append((torch.tensor(2.0), 5))
    assert progress.drain_losses() == (2.0, 5)


def test_losses_without_samples_are_none() -> None:
    progress = Progress()
    progress.losses.append((torch.tensor(9.0), 0))
    assert progress.drain_losses() is None


def test_a_loss_that_is_not_a_number_shows_in_the_mean() -> None:
    progress = Progress()
    progress.losses += [(torch.tensor(1.0), 1), (torch.tensor(float("nan")), 1)]
    drained = progress.drain_losses()
    assert drained is not None
    assert math.isnan(drained[0])


def test_a_loss_is_kept_that_is_appended_to_the_list_of_before_the_draining() -> None:
    progress = Progress()
    append = progress.losses.append
    append((torch.tensor(1.0), 1))
    assert progress.drain_losses() == (1.0, 1)
    append((torch.tensor(2.0), 1))
    assert progress.drain_losses() == (2.0, 1)


def test_no_loss_is_lost_between_the_thread_that_appends_and_the_one_that_drains(often) -> None:
    progress, one, count = Progress(), torch.tensor(1.0), 100_000
    drained: list[tuple[float, int]] = []
    done = threading.Event()

    def drain() -> None:
        while not done.is_set():
            taken = progress.drain_losses()
            if taken is not None:
                drained.append(taken)

    drainer = threading.Thread(target=drain)
    drainer.start()
    try:
        for _ in range(count):
            progress.losses.append((one, 1))
    finally:
        done.set()
        drainer.join()
    last = progress.drain_losses()
    assert sum(samples for _, samples in [*drained, last or (0.0, 0)]) == count
    assert {loss for loss, _ in drained} == {1.0}
