"""Manifests for Kubernetes: an indexed Job with a headless Service, or Kubeflow's TrainJob.

Every pod executes the same command, `manyhands train … --hosts kubernetes`, and finds its part in
environment variables: see `manyhands.launchers.pod`. The key of the run is in a Secret that the
manifest names; the manifest does not contain it, unless that was asked for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal

from manyhands.launchers import pod
from manyhands.launchers.yaml_text import write_yaml

if TYPE_CHECKING:
    from collections.abc import Sequence

    from manyhands.launchers.yaml_text import YamlValue

Kind = Literal["job", "trainjob"]
_LONGEST = 52
"""Characters of a name: a pod's host name adds its number, and Kubernetes allows 63."""
_NAME = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_ENTRY = re.compile(r"[A-Za-z0-9._-]{1,253}")
_KEY_FOLDER = "/run/manyhands"
_SCRIPT_FOLDER = "/job"
_RUNS = "/runs"
_USER = 1000
_GRACE = 120
"""Seconds from Kubernetes' request to stop until it kills: enough for a last checkpoint."""
_RETRIES = 3
_LARGEST_SCRIPT = 900_000
"""Bytes of a script in a ConfigMap, which may have 1 MiB."""


@dataclass(frozen=True, kw_only=True)
class KubernetesJob:
    """A run on the pods of a Kubernetes cluster.

    Raises:
        ValueError: Kubernetes would refuse one of these values.

    Example:
        >>> job = KubernetesJob(name="lenet", image="manyhands", script="/work/mnist.py", pods=2)
        >>> job.hosts
        'lenet-0:1, lenet-1:1'
    """

    name: str
    """Name of the Job, of its Service and of its pods."""
    image: str
    script: str
    """Path of the script in the image; or its name, if `source` has its text."""
    pods: int
    workers_per_pod: int = 1
    source: str | None = None
    """Text of the script, for a ConfigMap; None if the image has it."""
    arguments: Sequence[str] = field(default=())
    """Further options of `manyhands train`, and arguments of the script."""
    checkpoints: bool = False
    """Whether the run stores checkpoints, from which a replaced pod continues."""
    claim: str | None = None
    """The PersistentVolumeClaim for the run's folder, which all pods can mount."""
    gpus_per_pod: int = 0
    memory: str | None = None
    """Memory of each pod, as Kubernetes writes it: 8Gi."""
    namespace: str | None = None
    key: str | None = None
    """The run's key in clear text, as hexadecimal digits; None: its Secret exists."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or len(self.name) > _LONGEST:
            raise ValueError(
                f"{self.name!r} is not a name for Kubernetes: use up to {_LONGEST} small letters, "
                "digits and -, a letter first; choose one with --name"
            )
        if self.namespace is not None and not _NAMESPACE.fullmatch(self.namespace):
            raise ValueError(f"{self.namespace!r} is not the name of a namespace of Kubernetes")
        if self.source is not None and not _ENTRY.fullmatch(PurePosixPath(self.script).name):
            raise ValueError(
                f"a ConfigMap cannot have a file {PurePosixPath(self.script).name!r}: rename the "
                "script with letters, digits and -._ only"
            )
        for what, count in (("pods", self.pods), ("workers per pod", self.workers_per_pod)):
            if count < 1:
                raise ValueError(f"{what} must be at least 1, got {count}")
        if not self.image or re.search(r"\s", self.image):
            raise ValueError(f"{self.image!r} is not the name of an image")
        if self.source is not None and len(self.source.encode()) > _LARGEST_SCRIPT:
            raise ValueError(
                f"{self.script} is too large for a ConfigMap ({len(self.source.encode()):,} bytes, "
                f"at most {_LARGEST_SCRIPT:,}): copy it into the image and use --in-image"
            )

    @property
    def hosts(self) -> str:
        """The hosts of the run, as `manyhands train --hosts` takes them."""
        return pod.hosts_text(self.name, self.pods, self.workers_per_pod)

    @property
    def secret(self) -> str:
        """The name of the Secret with the run's key."""
        return f"{self.name}-key"

    @property
    def secret_command(self) -> str:
        """The command that creates the Secret, with a new key."""
        where = f" --namespace {self.namespace}" if self.namespace else ""
        create = f"kubectl create secret generic {self.secret}{where}"
        return f'{create} --from-literal={pod.KEY_ENTRY}="$(openssl rand -hex 32)"'

    def text(self, kind: Kind = "job") -> str:
        """The manifest, as YAML.

        Raises:
            ValueError: this kind cannot have one of the settings.
        """
        comment = "# Contains the run's key: keep this file secret.\n"
        if self.key is None:
            words = "# The run's key is in a Secret, which is created once:"
            comment = f"{words}\n#   {self.secret_command}\n"
        documents = self._trainjob() if kind == "trainjob" else self._job()
        return comment + write_yaml(*documents)

    def _metadata(self, name: str) -> dict[str, YamlValue]:
        where: dict[str, YamlValue] = {"namespace": self.namespace} if self.namespace else {}
        return {"name": name, **where, "labels": {"app.kubernetes.io/name": self.name}}

    def _documents_before(self) -> list[dict[str, YamlValue]]:
        found: list[dict[str, YamlValue]] = []
        if self.key is not None:
            found.append(
                {
                    "apiVersion": "v1",
                    "kind": "Secret",
                    "metadata": self._metadata(self.secret),
                    "type": "Opaque",
                    "stringData": {pod.KEY_ENTRY: self.key},
                }
            )
        if self.source is not None:
            found.append(
                {
                    "apiVersion": "v1",
                    "kind": "ConfigMap",
                    "metadata": self._metadata(f"{self.name}-script"),
                    "data": {PurePosixPath(self.script).name: self.source},
                }
            )
        return found

    def _command(self, script: str, *options: str) -> list[YamlValue]:
        words = ["train", script, "--hosts", "kubernetes", *options, *self.arguments]
        # Kubernetes replaces $(NAME), and reads $$ as $.
        return [word.replace("$", "$$") for word in words]

    def _resources(self) -> dict[str, YamlValue]:
        requests: dict[str, YamlValue] = {"cpu": str(self.workers_per_pod)}
        limits: dict[str, YamlValue] = {}
        if self.memory is not None:
            requests["memory"] = limits["memory"] = self.memory
        if self.gpus_per_pod:
            limits["nvidia.com/gpu"] = self.gpus_per_pod
        return {"requests": requests, **({"limits": limits} if limits else {})}

    def _job(self) -> list[dict[str, YamlValue]]:
        label: dict[str, YamlValue] = {"app.kubernetes.io/name": self.name}
        service: dict[str, YamlValue] = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": self._metadata(self.name),
            "spec": {
                "clusterIP": "None",
                # Pods look for the first one while it starts.
                "publishNotReadyAddresses": True,
                "selector": label,
            },
        }
        job: dict[str, YamlValue] = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": self._metadata(self.name),
            "spec": {
                "completionMode": "Indexed",
                "completions": self.pods,
                "parallelism": self.pods,
                # When the first pod is lost, the others fail too and are all replaced.
                "backoffLimit": _RETRIES * self.pods if self.checkpoints and self.claim else 0,
                # Two pods of one number would have one name.
                "podReplacementPolicy": "Failed",
                "template": {"metadata": {"labels": label}, "spec": self._pod_spec()},
            },
        }
        return [*self._documents_before(), service, job]

    def _pod_spec(self) -> dict[str, YamlValue]:
        return {
            "subdomain": self.name,
            "restartPolicy": "Never",
            "enableServiceLinks": False,
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": _GRACE,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": _USER,
                "runAsGroup": _USER,
                "fsGroup": _USER,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [self._container()],
            "volumes": self._volumes(),
        }

    def _container(self) -> YamlValue:
        script = self.script
        mounts: list[YamlValue] = [
            {"name": "key", "mountPath": _KEY_FOLDER, "readOnly": True},
            {"name": "runs", "mountPath": _RUNS},
            {"name": "shared-memory", "mountPath": "/dev/shm"},  # noqa: S108 - in the pod
        ]
        if self.source is not None:
            script = f"{_SCRIPT_FOLDER}/{PurePosixPath(self.script).name}"
            mounts.append({"name": "script", "mountPath": _SCRIPT_FOLDER, "readOnly": True})
        own = {
            pod.JOB: self.name,
            pod.SUBDOMAIN: self.name,
            pod.PODS: str(self.pods),
            pod.WORKERS: str(self.workers_per_pod),
            pod.PORT: str(pod.DEFAULT_PORT),
            pod.KEY_FILE: f"{_KEY_FOLDER}/{pod.KEY_ENTRY}",
        }
        environment: list[YamlValue] = [{"name": name, "value": own[name]} for name in own]
        environment.append(
            {"name": pod.ADDRESS, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
        )
        return {
            "name": "manyhands",
            "image": self.image,
            "command": ["manyhands"],
            # A pod that replaces another one continues the run in this folder.
            "args": self._command(script, "--output", f"{_RUNS}/{self.name}"),
            "workingDir": _RUNS,
            "env": environment,
            "ports": [{"name": "coordinator", "containerPort": pod.DEFAULT_PORT}],
            "resources": self._resources(),
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            },
            "volumeMounts": mounts,
        }

    def _volumes(self) -> list[YamlValue]:
        runs: dict[str, YamlValue] = {"name": "runs"}
        if self.claim is None:
            runs["emptyDir"] = {}
        else:
            runs["persistentVolumeClaim"] = {"claimName": self.claim}
        volumes: list[YamlValue] = [
            {"name": "key", "secret": {"secretName": self.secret, "defaultMode": 0o440}},
            runs,
            # By default a pod has 64 MB of shared memory.
            {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
        ]
        if self.source is not None:
            volumes.append({"name": "script", "configMap": {"name": f"{self.name}-script"}})
        return volumes

    def _trainjob(self) -> list[dict[str, YamlValue]]:
        """Kubeflow gives pods their numbers and names itself; it has no place for volumes."""
        if self.source is not None or self.claim is not None:
            raise ValueError(
                "a TrainJob takes its volumes from its runtime: copy the script into the image and "
                "use --in-image, and omit --claim"
            )
        reference: YamlValue = {"secretKeyRef": {"name": self.secret, "key": pod.KEY_ENTRY}}
        trainer: dict[str, YamlValue] = {
            "image": self.image,
            "command": ["manyhands"],
            "args": self._command(self.script),
            "numNodes": self.pods,
            "numProcPerNode": self.workers_per_pod,
            "resourcesPerNode": self._resources(),
            "env": [
                {"name": pod.KEY, "valueFrom": reference},
                {"name": pod.ADDRESS, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            ],
        }
        trainjob: dict[str, YamlValue] = {
            "apiVersion": "trainer.kubeflow.org/v1alpha1",
            "kind": "TrainJob",
            "metadata": self._metadata(self.name),
            "spec": {"runtimeRef": {"name": "torch-distributed"}, "trainer": trainer},
        }
        return [*self._documents_before(), trainjob]


def name_for(script: str) -> str:
    """A name for Kubernetes from a script's: `My_GPT.py` becomes `my-gpt`.

    >>> name_for("examples/My_GPT.py")
    'my-gpt'
    """
    small = re.sub(r"[^a-z0-9]+", "-", PurePosixPath(script).stem.lower())
    return small.lstrip("0123456789-")[:_LONGEST].strip("-") or "manyhands"
