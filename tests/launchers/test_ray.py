"""The same job from a Ray driver gives the same parameters; here on a real Ray of two nodes."""

import importlib.util
import shutil
import signal
import sys
import tempfile

import pytest

from manyhands.launchers.ray import divide
from manyhands.reports import Run
from support import wait_for

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed"
)
MANYHANDS = (sys.executable, "-m", "manyhands")
JOB = """
    import sys
    import torch
    import torch.nn.functional as F
    import manyhands as mh

    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(2048, 20, generator=generator)
    data = torch.utils.data.TensorDataset(inputs, inputs[:, :5].argmax(1))
    job = mh.Job(
        model=lambda: torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.Linear(32, 5)),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        loss=F.cross_entropy,
        data=data,
        validation=data,
        global_batch=64,
        epochs=4,
    )

    if __name__ == "__main__" and "on_ray" in sys.argv:
        from manyhands.launchers.ray import on_ray

        with on_ray(workers=2):
            mh.train(job, "allreduce()", output="python")
    elif __name__ == "__main__":
        mh.train(job, "allreduce()")
"""
CLUSTER = """
    import signal, threading
    from ray.cluster_utils import Cluster

    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    size = {"num_cpus": 1, "object_store_memory": 80_000_000, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=size)
    cluster.add_node(**size)
    print("address", cluster.address, flush=True)
    over.wait()
    cluster.shutdown()
"""


def test_workers_are_divided_among_nodes():
    assert divide([(8, 0), (8, 0)], None) == ([8, 8], False)
    assert divide([(8, 0), (8, 0)], 5) == ([3, 2], False)
    assert divide([(1, 0), (8, 0)], 5) == ([1, 4], False)
    assert divide([(8, 0), (8, 0)], 1) == ([1], False)
    assert divide([(64, 0), (64, 8), (64, 8)], None) == ([8, 8], True)
    assert divide([(64, 0), (64, 8), (64, 8)], 3) == ([2, 1], True)
    with pytest.raises(ValueError, match=r"has 2 CPUs on 2 nodes, and 3 workers need one each"):
        divide([(1, 0), (1, 0)], 3)
    with pytest.raises(ValueError, match="has 0 CPUs on 0 nodes"):
        divide([], None)


@pytest.fixture
def cluster(run_script):
    """The address of a Ray cluster of two nodes with one CPU each, on this machine."""
    # Ray's sockets are in it, and their paths must be short.
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    settings = {"TMPDIR": folder, "RAY_USAGE_STATS_ENABLED": "0"}
    held = run_script(CLUSTER, name="cluster.py", **settings)
    try:
        wait_for(lambda: "address " in held.text() or held.process.poll() is not None, 120, "Ray")
        assert "address " in held.text(), held.text()
        yield held.text().split("address ")[1].split()[0]
    finally:
        held.tree()
        held.process.send_signal(signal.SIGTERM)
        try:
            held.finish(60)
            wait_for(lambda: not held.tree(), 20, "Ray's processes to end")
        finally:
            held.end()
            shutil.rmtree(folder, ignore_errors=True)


@needs_ray
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_from_a_ray_driver_has_the_same_parameters_or_says_why_not(
    cluster, start, run_script, tmp_path
):
    alone = run_script(JOB, name="job.py")
    assert alone.finish(120) == 0, alone.text()
    (plain,) = (tmp_path / "runs").iterdir()
    expected = Run(plain).parameters_digest
    assert expected is not None
    command = (*MANYHANDS, "train", "job.py", "--hosts", "ray", "--output", "ray")
    told = start(*command, RAY_ADDRESS=cluster)
    assert told.finish(300) == 0, told.text()
    driver = start(sys.executable, "job.py", "on_ray", RAY_ADDRESS=cluster)
    assert driver.finish(300) == 0, driver.text()
    for folder in ("ray", "python"):
        run = Run(tmp_path / folder)
        assert run.parameters_digest == expected
        assert {worker.header.host for worker in run.trace.workers} == {"node-0", "node-1"}
    # Resources are given back, and a run that needs more than there are is refused.
    small = start(*command, "--workers", "3", RAY_ADDRESS=cluster)
    assert small.finish(100) == 2, small.text()
    assert "2 CPUs on 2 nodes" in small.text()
    # On the nodes the script is executed by processes of Ray's, with their environment.
    text = "import os\nif 'DRIVER' not in os.environ: raise RuntimeError('no driver here')\n"
    path = tmp_path / "job.py"
    path.write_text(text + path.read_text())
    failed = start(*command[:-1], "failed", RAY_ADDRESS=cluster, DRIVER="1")
    assert failed.finish(300) == 1, failed.text()
    assert "could not join" in failed.text()
    assert "no driver here" in failed.text()


@needs_ray
@pytest.mark.slow
@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("127.0.0.1:1", "there is no Ray cluster at 127.0.0.1:1"),
        ("auto", "start one with `ray start --head`"),
        ("ray://127.0.0.1:10001", "run it on the cluster, with `ray job submit`"),
    ],
)
def test_without_a_cluster_it_says_how_to_start_one(start, tmp_path, address, words):
    (tmp_path / "job.py").write_text("")
    refused = start(*MANYHANDS, "train", "job.py", "--hosts", "ray", RAY_ADDRESS=address)
    assert refused.finish(100) == 2, refused.text()
    assert words in refused.text()
