"""A real run and its virtual twin: the same staleness per worker, and the same speed.

Bound by computing, every protocol: the functions are those of `python -m benchmarks.twins`.

Where the server's port is the bottleneck, it is a real one: all bytes between the workers and the
server pass a relay of limited bandwidth in each direction, which the connections share chunk by
chunk, as flows share a network card. The workers are told that they share no memory with the
server, as between hosts; beyond that nobody knows of it.

A pair that disagrees is made once more: other processes on a busy machine are not what is measured.
"""

import json
import textwrap

import pytest

from benchmarks import twins
from manyhands.protocols import ALL
from manyhands.reports import Run, breakdown
from manyhands.strategies import strategy as read_strategy


@pytest.mark.timed
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("strategy", twins.STRATEGIES)
def test_bound_by_computing_they_agree(launch, tmp_path, strategy: str) -> None:
    found = twins.measure(strategy, tmp_path, launch=launch)
    print(found)
    assert found.updates >= 4000
    assert found.agree, found


def test_every_protocol_has_a_twin() -> None:
    assert {read_strategy(text).name for text in twins.STRATEGIES} == {cls.name for cls in ALL}
    assert twins.PACE.updates >= 4000
    assert twins.PACE.cv >= 0.2
    assert (twins.FAR, twins.APART) == (0.05, 0.1)


def test_the_distance_of_histograms_is_that_of_their_distributions() -> None:
    assert twins.distance({0: 1, 1: 1}, {0: 10, 1: 10}) == 0
    assert twins.distance({0: 1}, {5: 3}) == 1
    assert twins.distance({0: 3, 2: 1}, {0: 1, 1: 1, 2: 2}) == pytest.approx(0.5)


SCRIPT = '''
    import dataclasses, json, math, sys, time
    from pathlib import Path

    import torch
    from torch import nn

    import manyhands as mh

    WORKERS = 4
    given = json.loads(sys.argv[1])
    role, number = sys.orig_argv[2].rpartition(".")[2], sys.orig_argv[-1]
    # Worker 3 takes longer, so that the workers' staleness differs.
    mean = given["mean"] * (1.5 if number == "3" else 1.0)
    variance = math.log1p(0.5**2)
    draw = torch.Generator().manual_seed(100 + ord(number[-1]))
    begun = False

    def meet():
        """Wait for all others: how long processes take to start is not what is compared."""
        Path(f"{given['live']}-{number}").touch()
        while len(list(Path().glob(f"{given['live']}-*"))) < WORKERS:
            time.sleep(0.01)

    def paced(outputs, targets):
        global begun
        if not begun:
            meet()
            begun = True
        seconds = torch.empty(()).log_normal_(
            math.log(mean) - variance / 2, math.sqrt(variance), generator=draw
        )
        time.sleep(seconds.item())
        return nn.functional.mse_loss(outputs, targets)

    inputs = torch.randn(1000, given["width"], generator=torch.Generator().manual_seed(7))
    job = mh.Job(
        model=lambda: nn.Linear(given["width"], 4),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.01 / given["width"]),
        loss=paced,
        data=torch.utils.data.TensorDataset(inputs, inputs[:, :4].clone()),
        global_batch=WORKERS,  # one sample an update
        samples=given["updates"],
        metrics=(),
    )

    if role in ("server", "worker"):
        import port

        port.shape(role, Path(sys.orig_argv[-2]).parent / "server-0", given["bandwidth"])

    if __name__ == "__main__":
        live = mh.train(job, "asynchronous()", workers=WORKERS, output=given["live"])
        print(live.summary())
        server = next(p for p in live.trace.processes if p.name == "server-0")
        unpaced = dataclasses.replace(job, loss=nn.functional.mse_loss, samples=20_000)
        virtual = mh.simulate(
            unpaced,
            "asynchronous()",
            workers=WORKERS,
            times=f'measured("{given["live"]}")',
            service=server.totals.seconds["compute"] / given["updates"],
            bandwidth=given["bandwidth"],
            latency=0.0,
            output=given["virtual"],
        )
        print(virtual.summary())
'''

PORT = '''
    """A real port of limited bandwidth, in front of a server's socket."""

    import select, socket, threading, time

    from manyhands.transport import memory

    CHUNK = 8192

    class Port:
        """One direction: so many bytes per second, shared by all connections."""

        def __init__(self, bandwidth):
            self.bandwidth = bandwidth
            self.free = 0.0
            self.lock = threading.Lock()

        def due(self, ready, nbytes):
            """When so many bytes are through that were ready then."""
            with self.lock:
                self.free = max(self.free, ready) + nbytes / self.bandwidth
                return self.free

    def pump(source, sink, port):
        due = 0.0
        while True:
            # What waits already was ready when the chunk before it was through, however late
            # this thread woke up: the bandwidth is exact.
            waits, _, _ = select.select([source], [], [], 0)
            ready = due if waits else None
            data = source.recv(CHUNK)
            if not data:
                sink.close()
                return
            due = port.due(time.monotonic() if ready is None else ready, len(data))
            time.sleep(max(0.0, due - time.monotonic()))
            sink.sendall(data)

    def relay(path, bandwidth):
        while not path.exists():
            time.sleep(0.001)
        inner = path.with_name("inner")
        path.rename(inner)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen()
        path.with_name("shaped").touch()
        into, out = Port(bandwidth), Port(bandwidth)
        while True:
            worker, _ = listener.accept()
            server = socket.socket(socket.AF_UNIX)
            server.connect(str(inner))
            for way in ((worker, server, into), (server, worker, out)):
                threading.Thread(target=pump, args=way, daemon=True).start()

    def shape(role, path, bandwidth):
        """In the server's process: limit its port. In a worker's: use it, once that is done."""
        if role == "server":
            threading.Thread(target=relay, args=(path, bandwidth), daemon=True).start()
            return
        memory.can_share = lambda: False
        while not path.with_name("shaped").exists():
            time.sleep(0.01)
'''


@pytest.fixture
def pair(run_script, tmp_path):
    """Train for real and virtually behind a port, once more if the two are too far apart."""
    (tmp_path / "port.py").write_text(textwrap.dedent(PORT), encoding="utf-8")

    def once(number: int, **given: float) -> tuple[Run, twins.Twins]:
        names = {"live": f"live-{number}", "virtual": f"virtual-{number}"}
        started = run_script(SCRIPT, json.dumps(given | names))
        assert started.finish(280) == 0, started.text()
        live, virtual = (Run(tmp_path / name) for name in names.values())
        made = twins.compare("asynchronous()", live, virtual)
        print(started.text(), made)
        return live, made

    def run(**given: float) -> tuple[Run, twins.Twins]:
        live, made = once(1, **given)
        return (live, made) if made.agree else once(2, **given)

    return run


@pytest.mark.timed
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_bound_by_the_servers_port_they_agree(pair) -> None:
    # An update is 160 kB: 16 ms at each direction of the port, about as long as a batch takes.
    live, made = pair(mean=0.016, updates=4000, width=10_000, bandwidth=1e7)
    assert made.updates == 4000
    assert breakdown(live.trace).overall.communication > 0.6, "the port is the bottleneck"
    assert made.agree, made
