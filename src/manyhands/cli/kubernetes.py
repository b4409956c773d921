"""`manyhands kubernetes`, which writes a manifest, and `manyhands train --hosts kubernetes`."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, get_args

import typer

from manyhands.cli.exit import leave
from manyhands.cli.options import written
from manyhands.cli.preload import fork_server_ahead
from manyhands.failure import Refused, RunFailed, refusing
from manyhands.files.private_file import write_private
from manyhands.intervals import Every
from manyhands.launchers.kubernetes import Kind, KubernetesJob, name_for
from manyhands.launchers.pod import Pod, join_first, key_of_pod
from manyhands.live.agent.join import Application
from manyhands.live.hosts.host_list import Hosts
from manyhands.transport.security import JobKey

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def write(
    script: Path,
    arguments: list[str],
    cluster: Mapping[str, Any],
    training: Mapping[str, Any],
    kind: str,
    output: Path | None,
    *,
    in_image: bool,
    with_key: bool,
) -> None:
    """Write the manifest of a run."""
    try:
        job = _job(script, arguments, cluster, training, in_image=in_image, with_key=with_key)
        if kind not in get_args(Kind):
            leave(f"manyhands: the kind {kind!r} is none of {', '.join(get_args(Kind))}")
        text = job.text("trainjob" if kind == "trainjob" else "job")
    except ValueError as error:
        leave(f"manyhands: {error}")
    if output is None:
        typer.echo(text, nl=False)
    elif with_key:
        write_private(output, text)
    else:
        with contextlib.suppress(FileNotFoundError):
            output.unlink()
        output.write_text(text, encoding="utf-8")
    for line in _advice(job, kind, output):
        typer.echo(f"manyhands: {line}", err=True)


def _job(
    script: Path,
    arguments: list[str],
    cluster: Mapping[str, Any],
    training: Mapping[str, Any],
    *,
    in_image: bool,
    with_key: bool,
) -> KubernetesJob:
    if not in_image and not script.is_file():
        raise ValueError(f"there is no file {script}; if it is a path in the image, add --in-image")
    if training["strategy"] is not None:
        _check_strategy(training["strategy"], cluster["pods"] * cluster["workers_per_pod"])
    settings = {name: value for name, value in cluster.items() if name != "name"}
    return KubernetesJob(
        name=cluster["name"] or name_for(str(script)),
        script=str(script),
        source=None if in_image else script.read_text(encoding="utf-8"),
        arguments=(*written(training), *(["--", *arguments] if arguments else ())),
        checkpoints=_stores(training["checkpoint"]),
        key=JobKey.new().text if with_key else None,
        **settings,
    )


def _stores(checkpoint: str | None) -> bool:
    """Whether checkpoints are stored where a replaced pod finds them."""
    return checkpoint is not None and Every.read(checkpoint).on_disk is not None


def _check_strategy(text: str, workers: int) -> None:
    """Raise ValueError if a known strategy cannot have so many workers."""
    from manyhands.strategies import is_known, strategy  # noqa: PLC0415 - only where one is given

    if is_known(text):
        strategy(text).check(workers)


def _advice(job: KubernetesJob, kind: str, output: Path | None) -> list[str]:
    """What remains to be done."""
    lines = [] if job.key else [f"create the Secret with the run's key once: {job.secret_command}"]
    if output is not None:
        lines.append(f"then: kubectl apply -f {output}")
    if job.claim is None and kind == "job":
        lines.append(
            "without --claim the run's folder is lost with the pods; the summary is in the log of "
            f"pod {job.name}-0"
        )
    elif job.checkpoints is False and kind == "job":
        lines.append("without --checkpoint a pod that fails ends the run")
    return lines


def train(script: Path, arguments: list[str], options: Mapping[str, Any], job: str | None) -> None:
    """Train in a pod: the first one leads the run, and the others join it."""
    try:
        with refusing():
            place = Pod.read()
            Hosts.read(place.hosts).check_count(options["workers"])
        with key_of_pod() as key:
            if place.index == 0:
                _lead(place, key, script, arguments, options, job)
            else:
                _join(place, key, script, options["output"])
    except Refused as error:
        leave(f"manyhands: {error}")


def _lead(
    place: Pod,
    key: Path,
    script: Path,
    arguments: list[str],
    options: Mapping[str, Any],
    job: str | None,
) -> None:
    where = {"hosts": place.hosts, "listen": options["listen"] or place.listen, "key_file": key}
    with fork_server_ahead(script, options["strategy"], None, place.hosts):
        from manyhands.cli.train import train as run  # noqa: PLC0415 - loads torch

        run(script, arguments, {**options, **where}, job)


def _join(place: Pod, key: Path, script: Path, output: Path | None) -> None:
    if not script.is_file():
        raise Refused(f"there is no file {script}")
    # The first pod has the folder itself; the others have their logs beside it.
    logs = None if output is None else output.with_name(f"{output.name}-{place.name}")
    application = Application(
        *(place.first_address, place.port, key, place.name, script, place.workers, logs)
    )
    try:
        with fork_server_ahead(script, None, place.workers, None):
            join_first(application, lambda words: typer.echo(f"manyhands: {words}", err=True))
    except RunFailed as failure:
        leave(f"manyhands: {failure}", 1)
    except KeyboardInterrupt:
        leave(f"manyhands: interrupted; the workers of {place.name} are ended", 130)
    typer.echo(f"manyhands: the run is over; the workers of {place.name} have finished", err=True)
