import sys

import pytest

from manyhands.reports.render.tensorboard import write_scalars


def scalars(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return {tag: found.Scalars(tag) for tag in found.Tags()["scalars"]}


def test_scalars_that_tensorboard_reads(finished, tmp_path) -> None:
    trace = finished.trace()
    path = write_scalars(trace, tmp_path)
    assert path.parent == tmp_path
    found = scalars(tmp_path)
    assert set(found) == {
        "accuracy/validation",
        "loss/training",
        "loss/validation",
        "samples per second",
    }
    accuracy = found["accuracy/validation"]
    assert [(each.step, each.value) for each in accuracy] == [
        (1000, pytest.approx(0.9)),
        (2000, pytest.approx(0.89)),
    ]
    # The run's start is its clock's 0, and training began 2 s later.
    assert [each.wall_time for each in accuracy] == [1e9 + 12.0, 1e9 + 22.0]
    assert found["loss/training"][0].value == pytest.approx(2.0)
    assert found["loss/training"][-1].step == 2000
    assert [each.value for each in found["samples per second"]] == pytest.approx([100.0] * 20)


def test_written_again_it_is_there_once(finished, tmp_path) -> None:
    other = tmp_path / "events.out.tfevents.0.mine"
    other.write_bytes(b"")
    write_scalars(finished.trace(), tmp_path)
    write_scalars(finished.trace(), tmp_path)
    assert other.exists()
    assert len(scalars(tmp_path)["accuracy/validation"]) == 2


def test_without_tensorboard_it_says_what_to_install(finished, tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'manyhands\[tensorboard\]'"):
        write_scalars(finished.trace(), tmp_path)
