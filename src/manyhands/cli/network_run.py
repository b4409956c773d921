"""`manyhands train --network`: every worker behind its own link, on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from manyhands.cli.exit import leave
from manyhands.cluster import Cluster
from manyhands.failure import RunFailed
from manyhands.files.run_folders import check_free, new_folder, release, stamp
from manyhands.lab.network_run import train_spread
from manyhands.lab.networks.namespaces import NetworkShape, NotPermitted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def train(script: Path, arguments: list[str], options: Mapping[str, Any], network: str) -> None:
    """Run `manyhands train` with these options in a network of namespaces."""
    chosen = dict(options)
    workers = chosen.pop("workers") or Cluster.local().default_workers()
    asked = chosen.pop("output")
    if chosen.pop("hosts") is not None:
        leave("manyhands: --network creates the hosts itself: omit --hosts")
    words = [str(script), *_written(chosen), *(["--", *arguments] if arguments else ())]
    output = asked
    try:
        shape = NetworkShape.read(network)
        if asked is None:
            output = new_folder(Path("runs") / f"{stamp()}-{workers}")
        else:
            check_free(asked)
        code = train_spread(words, shape, workers, output)
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


def _written(options: Mapping[str, Any]) -> Iterator[str]:
    """Options as command-line arguments."""
    for name, value in options.items():
        for one in value if isinstance(value, list) else [value]:
            if one is True:
                yield f"--{name}"
            elif one is not None and one is not False:
                yield f"--{name}={one}"
