"""`manyhands train --network` and `--cluster`: a network of namespaces on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from manyhands.cli.exit import leave
from manyhands.cluster import Cluster
from manyhands.failure import RunFailed
from manyhands.files.run_folders import check_free, new_folder, release, stamp
from manyhands.lab.network_run import train_on_cluster, train_spread
from manyhands.lab.networks.namespaces import NetworkShape, NotPermitted
from manyhands.lab.networks.sites import check_live

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


def train(
    script: Path, arguments: list[str], options: Mapping[str, Any], network: str | None
) -> None:
    """Run `manyhands train` with these options in a network of namespaces."""
    chosen = dict(options)
    workers, cluster = chosen.pop("workers"), chosen.pop("cluster")
    asked = chosen.pop("output")
    name = "network" if cluster is None else "cluster"
    if chosen.pop("hosts") is not None:
        leave(f"manyhands: --{name} creates the hosts itself: omit --hosts")
    if network is not None and cluster is not None:
        leave("manyhands: --cluster determines the network: omit --network")
    words = [str(script), *written(chosen), *(["--", *arguments] if arguments else ())]
    output = asked
    try:
        run, workers = _runner(network, cluster, workers)
        if asked is None:
            output = new_folder(Path("runs") / f"{stamp()}-{workers}")
        else:
            check_free(asked)
        code = run(words, output)
    except (ValueError, NotPermitted) as error:
        if asked is None and output is not None:
            release(output)
        leave(f"manyhands: {error}")
    except RunFailed as failure:
        leave(f"manyhands: {failure}", 1)
    except KeyboardInterrupt:
        leave("manyhands: interrupted; all processes are ended", 130)
    else:
        raise typer.Exit(code)


def _runner(
    network: str | None, cluster: str | None, workers: int | None
) -> tuple[Callable[[list[str], Path], int], int]:
    """What makes the network and runs in it, and the number of workers."""
    if cluster is None:
        shape = NetworkShape.read(network or "")
        count = workers or Cluster.local().default_workers()
        return lambda words, output: train_spread(words, shape, count, output), count
    declared = Cluster.parse(cluster)
    check_live(declared)
    count = declared.default_workers()
    if len(declared.hosts) == 1:
        raise ValueError(f"one host needs no network: use --workers {count} instead of --cluster")
    declared.check_workers(workers or count)
    return lambda words, output: train_on_cluster(words, declared, output), count


def written(options: Mapping[str, Any]) -> Iterator[str]:
    """Options as command-line arguments."""
    for field, value in options.items():
        name = {"values": "set"}.get(field, field.replace("_", "-"))
        for one in value if isinstance(value, list) else [value]:
            if one is True:
                yield f"--{name}"
            elif one is not None and one is not False:
                yield f"--{name}={one}"
