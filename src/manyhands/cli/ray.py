"""`manyhands train --hosts ray`: trains on the nodes of a Ray cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from manyhands.cli.exit import leave
from manyhands.cli.preload import fork_server_ahead
from manyhands.failure import Refused, RunFailed
from manyhands.launchers.ray import on_ray

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def train(script: Path, arguments: list[str], options: Mapping[str, Any], job: str | None) -> None:
    """Train on the nodes of the Ray cluster; this process is the first host."""
    if not script.is_file():
        leave(f"manyhands: there is no file {script}")
    if options["listen"] is not None or options["key_file"] is not None:
        leave("manyhands: with --hosts ray, omit --listen and --key-file: Ray carries the key")
    try:
        with on_ray(options["workers"], script) as there:
            where = {"hosts": there.hosts, "listen": there.listen, "key_file": there.key}
            with fork_server_ahead(script, options["strategy"], None, there.hosts):
                from manyhands.cli.train import train as run  # noqa: PLC0415 - loads torch

                run(script, arguments, {**options, **where, "workers": None}, job)
    except RunFailed as failure:
        leave(f"manyhands: {failure}", 1)
    except Refused as error:
        leave(f"manyhands: {error}")
