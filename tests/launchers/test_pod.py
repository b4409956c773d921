"""A pod finds its place by its environment, and the pods of a Job train together."""

import os
import sys

import pytest

from manyhands.lab.networks.namespaces import NotPermitted, network
from manyhands.launchers.pod import Pod, key_of_pod
from manyhands.reports import Run
from manyhands.transport.security import JobKey
from support import ROOT, wait_for

OURS = {"MANYHANDS_JOB": "lenet", "MANYHANDS_SUBDOMAIN": "pods", "MANYHANDS_PODS": "2"}
MANYHANDS = (sys.executable, "-m", "manyhands")


def test_the_variables_of_an_indexed_job_are_read():
    pod = Pod.read(
        {
            **OURS,
            "JOB_COMPLETION_INDEX": "1",
            "MANYHANDS_WORKERS_PER_POD": "4",
            "MANYHANDS_JOB_PORT": "4000",
            "POD_IP": "fd00::2",
        }
    )
    assert pod == Pod(1, 2, "lenet", "lenet-0.pods", 4, 4000, "fd00::2")
    assert (pod.hosts, pod.first) == ("lenet-0:4, lenet-1:4", "lenet-0.pods:4000")
    assert pod.listen == "[fd00::2]:4000"


def test_the_variables_of_a_trainjob_are_read():
    pod = Pod.read(
        {
            "PET_NNODES": "3",
            "PET_NODE_RANK": "2",
            "PET_NPROC_PER_NODE": "2",
            "PET_MASTER_ADDR": "gpt-node-0-0.gpt",
            "PET_MASTER_PORT": "29400",
            "JOB_COMPLETION_INDEX": "2",
        }
    )
    assert pod == Pod(2, 3, "gpt-node-0", "gpt-node-0-0.gpt", 2, 29400)
    assert (pod.name, pod.first) == ("gpt-node-0-2", "gpt-node-0-0.gpt:29400")


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({}, "MANYHANDS_JOB is not set: --hosts kubernetes is for the pods of an indexed Job"),
        (OURS, "JOB_COMPLETION_INDEX is not set"),
        ({**OURS, "JOB_COMPLETION_INDEX": "2"}, "numbered from 0: completions of the Job must"),
        ({**OURS, "JOB_COMPLETION_INDEX": "x"}, "must be a number of at least 0, got 'x'"),
        ({**OURS, "JOB_COMPLETION_INDEX": "0", "MANYHANDS_PODS": "0"}, "at least 1, got '0'"),
        ({"PET_NNODES": "2"}, "PET_MASTER_ADDR is not set"),
    ],
)
def test_what_is_missing_is_named(variables, words):
    with pytest.raises(ValueError, match=words):
        Pod.read(variables)


def test_the_key_comes_from_a_file_or_from_a_variable_that_is_removed(tmp_path):
    JobKey.new().write(tmp_path / "key")
    with key_of_pod({"MANYHANDS_KEY_FILE": str(tmp_path / "key")}) as path:
        assert path == tmp_path / "key"
    variables = {"MANYHANDS_KEY": (tmp_path / "key").read_text()}
    with key_of_pod(variables) as path:
        assert path.read_text() == (tmp_path / "key").read_text()
        assert path.stat().st_mode & 0o77 == 0
    assert not path.exists()
    assert variables == {}
    wrong = {"MANYHANDS_KEY_FILE": str(tmp_path / "no")}
    for given, words in (
        ({}, "neither MANYHANDS_KEY_FILE nor MANYHANDS_KEY is set"),
        (wrong, "the pod must mount the Secret"),
        ({"MANYHANDS_KEY": "é"}, "does not contain the key"),
    ):
        with pytest.raises(ValueError, match=words), key_of_pod(given):
            pass


@pytest.fixture
def places():
    try:
        with network(2, 125e6) as made:
            yield made
    except NotPermitted as reason:
        pytest.skip(str(reason))


def inside(place, names, *command):
    """A command in a namespace whose /etc/hosts is a file of the test's own, as in a pod."""
    shell = 'mount --bind "$0" /etc/hosts && exec "$@"'
    words = ("unshare", "--mount", "--propagation", "private", "sh", "-c", shell, str(names))
    return place.inside(*words, *command)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("strategy", ["allreduce()", "asynchronous()"])
def test_two_pods_train_together(start, tmp_path, places, strategy):
    if os.geteuid() != 0:
        pytest.skip("names in a namespace need root: its /etc/hosts is a bind mount")
    names = tmp_path / "hosts"
    names.write_text("127.0.0.1 localhost\n")
    JobKey.new().write(tmp_path / "key")
    common = (*MANYHANDS, "train", str(ROOT / "examples" / "mnist.py"), "--hosts", "kubernetes")
    options = ("--strategy", strategy, "--samples", "6000", "--output", str(tmp_path / "run"))
    pods = {}

    def begin(index):
        variables = {
            **OURS,
            "JOB_COMPLETION_INDEX": str(index),
            "POD_IP": places[index].address,
            "MANYHANDS_WORKERS_PER_POD": "1",
            "MANYHANDS_KEY_FILE": str(tmp_path / "key"),
            "HOSTNAME": f"lenet-{index}",
            "TORCH_CPP_LOG_LEVEL": "ERROR",
        }
        command = inside(places[index], names, *common, *options)
        pods[index] = start(*command, **variables)

    # The second pod is up before the first one has a name.
    begin(1)
    wait_for(lambda: "is not up yet" in pods[1].text(), 60, "it waits")
    with names.open("a") as file:
        file.write(f"{places[0].address} lenet-0.pods\n")
    begin(0)
    assert pods[0].finish(200) == 0, pods[0].text() + pods[1].text()
    assert pods[1].finish(30) == 0, pods[1].text()
    run = Run(tmp_path / "run")
    assert run.samples == 6000
    assert run.metrics["accuracy"] > 0.2
    assert {process.header.host for process in run.trace.workers} == {"lenet-0", "lenet-1"}
    assert (tmp_path / "run-lenet-1" / "logs").is_dir()
