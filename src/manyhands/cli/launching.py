"""Runs on the machines of other systems: `manyhands kubernetes`, and `train --hosts SYSTEM`.

What they do is loaded only when one is called, as in `manyhands.cli.app`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from manyhands.cli.options import (
    Arguments,
    Durability,
    JobName,
    Patience,
    Script,
    Strategy,
    Values,
    changes,
    takes,
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


@takes(
    strategy=Strategy,
    **changes("epochs", "samples", "seconds", "target", "seed", "lr", "evaluate_every"),
    job=JobName,
    values=Values,
    durability=Durability,
    patience=Patience,
    **changes("checkpoint", "keep"),
)
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
    output: Annotated[
        Path | None, typer.Option(help="File to write; default: the terminal.")
    ] = None,
    **training: Any,
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
    text = (script, arguments or [], cluster, training)
    write(*text, kind, output, in_image=in_image, with_key=with_key)
