"""Runs on the machines of other systems: `manyhands kubernetes`, and `train --hosts SYSTEM`.

What they do is loaded only when one is called, as in `manyhands.cli.app`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from manyhands.cli.options import (
    LR,
    Arguments,
    CheckpointEvery,
    Durability,
    Epochs,
    EvaluateEvery,
    JobName,
    Keep,
    Patience,
    Samples,
    Script,
    Seconds,
    Seed,
    Strategy,
    Target,
    Values,
)

SYSTEMS = ("kubernetes", "ray")
"""What `manyhands train --hosts` takes in place of a list of hosts."""


def train_on(
    system: str, script: Path, arguments: list[str], options: Mapping[str, Any], job: str | None
) -> None:
    """Train on the hosts that a system has for this run."""
    if system == "ray":
        from manyhands.cli.ray import train  # noqa: PLC0415 - see above
    else:
        from manyhands.cli.kubernetes import train  # noqa: PLC0415
    train(script, arguments, options, job)


def kubernetes(
    script: Script,
    arguments: Arguments = None,
    *,
    image: Annotated[str, typer.Option(help="Container image of the pods, with Manyhands in it.")],
    pods: Annotated[int, typer.Option(min=1, help="Number of pods.")] = 2,
    workers_per_pod: Annotated[int, typer.Option(min=1, help="Number of workers of a pod.")] = 1,
    gpus_per_pod: Annotated[int, typer.Option(min=0, help="Number of GPUs of a pod.")] = 0,
    memory: Annotated[
        str | None, typer.Option(help="Memory of a pod, as Kubernetes writes it: 8Gi.")
    ] = None,
    claim: Annotated[
        str | None,
        typer.Option(
            help="PersistentVolumeClaim for the run's folder, which all pods can mount; default: "
            "the folder is lost with the pods."
        ),
    ] = None,
    in_image: Annotated[
        bool,
        typer.Option(
            "--in-image", help="The script is a path in the image; default: a copy is sent along."
        ),
    ] = False,
    name: Annotated[
        str | None, typer.Option(help="Name of the run in Kubernetes; default: the script's.")
    ] = None,
    namespace: Annotated[str | None, typer.Option(help="Namespace in Kubernetes.")] = None,
    kind: Annotated[
        str, typer.Option(help="What to write: job, or trainjob for Kubeflow's Trainer.")
    ] = "job",
    with_key: Annotated[
        bool,
        typer.Option(
            "--with-key",
            help="Write a Secret with a new key too, in clear text; default: the Secret exists.",
        ),
    ] = False,
    strategy: Strategy = None,
    epochs: Epochs = None,
    samples: Samples = None,
    seconds: Seconds = None,
    target: Target = None,
    seed: Seed = None,
    lr: LR = None,
    evaluate_every: EvaluateEvery = None,
    job: JobName = None,
    values: Values = None,
    durability: Durability = None,
    patience: Patience = None,
    checkpoint: CheckpointEvery = None,
    keep: Keep = None,
    output: Annotated[
        Path | None, typer.Option(help="File to write; default: the terminal.")
    ] = None,
) -> None:
    """Write a manifest for Kubernetes: a Job whose pods train a script's job together."""
    from manyhands.cli.kubernetes import write  # noqa: PLC0415 - see above

    cluster = {
        "image": image,
        "pods": pods,
        "workers_per_pod": workers_per_pod,
        "gpus_per_pod": gpus_per_pod,
        "memory": memory,
        "claim": claim,
        "name": name,
        "namespace": namespace,
    }
    training = {
        "strategy": strategy,
        "epochs": epochs,
        "samples": samples,
        "seconds": seconds,
        "target": target,
        "seed": seed,
        "lr": lr,
        "evaluate_every": evaluate_every,
        "job": job,
        "values": values,
        "durability": durability,
        "patience": patience,
        "checkpoint": checkpoint,
        "keep": keep,
    }
    text = (script, arguments or [], cluster, training)
    write(*text, kind, output, in_image=in_image, with_key=with_key)
