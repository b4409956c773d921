"""What codecs had not sent, at the end and with lost workers."""

from collections.abc import Callable

import pytest

from manyhands.reports import summary
from manyhands.reports.figures.residuals import residuals


def test_what_was_not_sent_at_the_end_and_with_a_lost_worker(make_stage: Callable) -> None:
    stage = make_stage()
    coordinator = stage.process("coordinator")
    for rank, norm in ((0, 3.0), (1, 4.0)):
        worker = stage.process("worker", rank)
        worker.recorder.point("residual", 7.0, samples=10)
        worker.clock.now = 1.0
        worker.recorder.point("residual/end", norm, samples=20)
    first, second = stage.process("worker", 2), stage.process("worker", 2)
    for at, norm in ((0.5, 1.0), (0.9, 2.0)):
        first.clock.now = at
        first.recorder.point("residual", norm, samples=5)
    second.recorder.point("residual/end", 12.0, samples=20)
    coordinator.recorder.event("lost", {"member": "worker-2", "words": "worker 2 died"})
    found = residuals(stage.trace())
    assert found is not None
    assert found.at_end == pytest.approx(13.0)
    assert found.lost == {2: 2.0}
    text = summary(stage.trace())
    assert "residual     norm 13 not sent at the end; lost with worker 2: norm 2" in text


def test_a_run_that_goes_on_has_lost_nothing(make_stage: Callable) -> None:
    stage = make_stage()
    stage.process("worker").recorder.point("residual", 7.0, samples=10)
    assert residuals(stage.trace()) is None
    assert "residual" not in summary(stage.trace())
