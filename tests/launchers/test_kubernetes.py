"""Manifests that Kubernetes accepts, and that mean what was asked for."""

import re
import stat
import subprocess
import sys

import pytest

from manyhands.files.private_file import write_private
from manyhands.launchers.kubernetes import KubernetesJob, name_for
from manyhands.launchers.pod import Pod
from manyhands.live.hosts.invitation import check_key
from support import ROOT

yaml = pytest.importorskip("yaml", reason="comes with kubernetes-validate")
kubernetes_validate = pytest.importorskip("kubernetes_validate")
MNIST = ROOT / "examples" / "mnist.py"
VERSIONS = ("1.29", "1.33", "1.37")
HOSTILE = (
    'a"\nkind: Secret',
    "a: b # c",
    "'; rm -rf /",
    "$(HOME)",
    "$$",
    "{{ .Values }}",
    "&anchor *alias !!python/object",
    "\u2028\x00\x07é漢\U0001f600",
    "yes",
    "1e3",
    "",
)


def made(**changes):
    given = {"name": "lenet", "image": "manyhands:0.1", "script": "/work/mnist.py", "pods": 2}
    return KubernetesJob(**{**given, **changes})


def documents(job, kind="job"):
    return [*yaml.safe_load_all(job.text(kind))]


def command(job, kind="job"):
    last = documents(job, kind)[-1]["spec"]
    if kind == "trainjob":
        return last["trainer"]["args"]
    return last["template"]["spec"]["containers"][0]["args"]


def expanded(word):
    """As Kubernetes reads a word of a command, where no variable is defined that it names."""
    return re.sub(r"\$\$", "$", word)


@pytest.mark.parametrize("kind", ["job", "trainjob"])
def test_the_examples_are_what_the_command_writes(kind):
    script = "/opt/manyhands/examples/mnist.py"
    settings = {"image": "manyhands:0.1", "script": script, "workers_per_pod": 2}
    if kind == "job":
        options = ["--strategy=allreduce()", "--checkpoint=10min"]
        settings |= {"claim": "runs", "checkpoints": True}
    else:
        options = ["--strategy=allreduce()"]
    expected = made(**settings, arguments=options).text(kind)
    assert (ROOT / "examples" / "kubernetes" / f"{kind}.yaml").read_text() == expected


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"pods": 16, "workers_per_pod": 8, "gpus_per_pod": 8, "memory": "64Gi"},
        {"source": MNIST.read_text(), "script": "mnist.py", "key": "0" * 64, "namespace": "ml"},
        {"claim": "runs", "checkpoints": True, "arguments": HOSTILE},
        {"source": "\n".join(HOSTILE), "script": "a.py", "claim": HOSTILE[0]},
    ],
    ids=["plain", "large", "script-and-key", "hostile", "hostile-script"],
)
def test_kubernetes_accepts_the_manifest(version, changes):
    kinds = []
    for document in documents(made(**changes)):
        kubernetes_validate.validate(document, version, strict=True)
        kinds.append(document["kind"])
    assert kinds[-2:] == ["Service", "Job"]
    assert ("ConfigMap" in kinds) == ("source" in changes)
    assert ("Secret" in kinds) == ("key" in changes)


def test_the_schema_refuses_a_wrong_manifest():
    (*_, job) = documents(made())
    job["spec"]["completions"] = "two"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job, VERSIONS[-1], strict=True)


@pytest.mark.parametrize("kind", ["job", "trainjob"])
def test_words_of_the_command_arrive_as_they_were_given(kind):
    arguments = command(made(arguments=HOSTILE), kind)
    assert [expanded(word) for word in arguments][-len(HOSTILE) :] == [*HOSTILE]


def test_a_script_arrives_as_it_was_written():
    for text in (MNIST.read_text(), *HOSTILE, "a\n\n\n", "\n a\n"):
        first = documents(made(source=text, script="a/b.py"))[0]
        assert first["data"] == {"b.py": text}
    assert command(made(source="x = 1\n", script="a/b.py"))[1] == "/job/b.py"


def test_the_pods_find_their_places_by_what_the_manifest_sets():
    service, job = documents(made(pods=3, workers_per_pod=2))
    spec = job["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 3, 3)
    template = spec["template"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == template["metadata"]["labels"]
    assert template["spec"]["subdomain"] == service["metadata"]["name"]
    container = template["spec"]["containers"][0]
    set_ = {one["name"]: one.get("value", "10.0.0.9") for one in container["env"]}
    places = [Pod.read(set_ | {"JOB_COMPLETION_INDEX": str(index)}) for index in range(3)]
    assert {place.hosts for place in places} == {"lenet-0:2, lenet-1:2, lenet-2:2"}
    assert {place.first for place in places} == {"lenet-0.lenet:40001"}
    assert [place.name for place in places] == ["lenet-0", "lenet-1", "lenet-2"]
    assert places[0].listen == "10.0.0.9:40001"
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    assert set_["MANYHANDS_KEY_FILE"] == mounts["key"] + "/key"


def test_a_trainjob_gives_the_pods_their_key_and_nothing_else():
    (trainjob,) = documents(made(workers_per_pod=4, gpus_per_pod=1), "trainjob")
    trainer = trainjob["spec"]["trainer"]
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (2, 4)
    assert trainer["env"][0] == {
        "name": "MANYHANDS_KEY",
        "valueFrom": {"secretKeyRef": {"name": "lenet-key", "key": "key"}},
    }
    with pytest.raises(ValueError, match="use --in-image"):
        made(source="x", script="a.py").text("trainjob")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "Le_Net"}, "not a name for Kubernetes"),
        ({"name": "a" * 53}, "not a name for Kubernetes"),
        ({"name": "a\nkind: Secret"}, "not a name for Kubernetes"),
        ({"namespace": "a\nkind: Secret"}, "not the name of a namespace"),
        ({"image": "a b"}, "not the name of an image"),
        ({"pods": 0}, "pods must be at least 1, got 0"),
        ({"source": "x", "script": "my job.py"}, "rename the script"),
        ({"source": "x" * 1_000_000, "script": "a.py"}, "too large for a ConfigMap"),
    ],
)
def test_what_kubernetes_would_refuse_is_refused_in_words(changes, words):
    with pytest.raises(ValueError, match=words):
        made(**changes)


def test_a_name_is_made_of_the_script():
    assert [*map(name_for, ("a/My_GPT.py", "7.py", "-.py", "2 b.py"))] == [
        *("my-gpt", "manyhands", "manyhands", "b")
    ]


def run(tmp_path, *options):
    return subprocess.run(
        [sys.executable, "-m", "manyhands", "kubernetes", *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_the_command_writes_no_key_unless_it_is_asked_to(tmp_path):
    common = (str(MNIST), "--image", "manyhands:0.1", "--strategy", "ssp(staleness=4)", "--set=a=1")
    done = run(tmp_path, *common, "--checkpoint", "10min", "--", "--size", "3")
    assert done.returncode == 0, done.stderr
    config, service, job = yaml.safe_load_all(done.stdout)
    assert config["data"] == {"mnist.py": MNIST.read_text()}
    arguments = job["spec"]["template"]["spec"]["containers"][0]["args"]
    assert arguments[:4] == ["train", "/job/mnist.py", "--hosts", "kubernetes"]
    assert arguments[-6:] == [
        *("--strategy=ssp(staleness=4)", "--set=a=1", "--checkpoint=10min"),
        *("--", "--size", "3"),
    ]
    assert service["metadata"]["name"] == "mnist"
    assert "kubectl create secret generic mnist-key" in done.stderr
    assert "without --claim" in done.stderr

    done = run(tmp_path, *common, "--with-key", "--output", "job.yaml")
    assert (done.returncode, done.stdout) == (0, "")
    file = tmp_path / "job.yaml"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    secret = next(yaml.safe_load_all(file.read_text()))
    write_private(tmp_path / "key", secret["stringData"]["key"])
    check_key(tmp_path / "key")


def test_the_command_refuses_in_words(tmp_path):
    done = run(tmp_path, "no.py", "--image", "a")
    assert (done.returncode, "add --in-image" in done.stderr) == (2, True), done.stderr
    done = run(tmp_path, "/a.py", "--image", "a", "--in-image", "--kind", "pod")
    assert (done.returncode, "none of job, trainjob" in done.stderr) == (2, True), done.stderr
    options = ("--image", "a", "--in-image", "--pods", "3", "--strategy", "tensor(ways=2)")
    done = run(tmp_path, "/a.py", *options)
    assert (done.returncode, "multiple of ways=2" in done.stderr) == (2, True), done.stderr
