import io

import pytest

from manyhands.trace import Header, Recorder, digest, merge


def run(
    *,
    pid: int = 1,
    host: str = "a",
    boot: str = "b",
    wall: float = 1e9,
    loss: float = 0.5,
    sender: str = "worker-1",
) -> str:
    parts: list[bytes] = []
    header = Header(
        role="worker", host=host, pid=pid, boot=boot, clock=3.0, wall=wall, kind="virtual"
    )
    recorder = Recorder(header, parts.append, lambda: 5.0)
    recorder.span("compute", 4.0, 1.0, 0)
    recorder.point("loss", loss, samples=8, weight=8)
    for peer in sorted({"worker-2", "worker-1"}, key=lambda _: pid):
        recorder.count(sent={peer: 8})
    recorder.staleness(1, sender)
    recorder.flush()
    return digest(merge([("worker-0", io.BytesIO(b"".join(parts)))]))


@pytest.mark.parametrize("change", [{"pid": 2}, {"host": "z"}, {"boot": "z"}, {"wall": 2e9}])
def test_who_where_and_when_do_not_matter(change: dict[str, object]) -> None:
    assert run(**change) == run()


def test_what_was_done_matters() -> None:
    assert run(loss=0.25) != run()
    assert run(sender="worker-2") != run()
    assert len(run()) == 64
