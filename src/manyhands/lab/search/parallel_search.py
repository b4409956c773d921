"""`search`: finds good values of a job's free parameters by parallel trials."""

from __future__ import annotations

import contextlib
import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from manyhands.cluster import Cluster
from manyhands.files.run_folders import new_folder, release, stamp
from manyhands.free import free_parameters, settled
from manyhands.lab.design import Budget, VirtualConditions, script_of
from manyhands.lab.folder import locked
from manyhands.lab.search.conduct import Conduct
from manyhands.lab.search.display import SearchDisplay
from manyhands.lab.search.job_reading import cuts, extremes, metric_of, shaping
from manyhands.lab.search.journal import IDENTITY, SearchFolder
from manyhands.lab.search.making import (
    LiveTrials,
    TrialSettings,
    VirtualTrials,
    settings_words,
)
from manyhands.lab.search.methods import METHODS, Population, SearchMethod, SearchPlan
from manyhands.lab.search.page import write_page
from manyhands.lab.search.searched import Searched
from manyhands.lab.search.trial import Trial
from manyhands.live.processes.parent_death import signals_raise
from manyhands.script import loading as scripts
from manyhands.strategies import check_job
from manyhands.strategies import strategy as read_strategy
from manyhands.verbs.simulate import plan as plan_virtual

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from manyhands.free import FreeParameter
    from manyhands.job import Job
    from manyhands.lab.design import Script
    from manyhands.lab.search.trial import TrialResult
    from manyhands.virtual import Times


@dataclass(frozen=True, kw_only=True)
class SearchDesign:
    """All settings of a search."""

    source: Callable[..., Job]
    """The function that makes the job."""
    method: SearchMethod
    trials: int
    workers: int
    """Workers of all trials that are under way together."""
    trial_workers: int = 1
    """Workers of each trial."""
    strategy: str | None = None
    metric: str | None = None
    """The metric that is compared, as in `loss` or `min perplexity`; None for the job's."""
    seed: int | None = None
    budget: Budget = field(default_factory=Budget)
    checkpoint: str | None = None
    script: Script | None = None
    """Needed by live trials."""
    virtual: VirtualConditions | None = None

    def identity(self) -> dict[str, str]:
        """The settings by which a folder of a search is recognised."""
        script = self.script
        settings = {
            "script": script and script.path.name,
            "content of the script": script and script.digest,
            "job": script and script.job,
            "arguments": script and " ".join(script.arguments),
            "method": self.method,
            "trials": self.trials,
            "workers": self.workers,
            "workers of a trial": self.trial_workers,
            "strategy": self.strategy,
            "metric": self.metric,
            "seed": self.seed,
            "checkpoint": self.checkpoint,
            "kind": "live" if self.virtual is None else "virtual",
        }
        settings |= vars(self.budget) | (vars(self.virtual) if self.virtual else {})
        return {name: str(value) for name, value in settings.items() if value not in (None, "")}


def search(
    job: Callable[..., Job],
    method: str = "random()",
    *,
    trials: int = 16,
    workers: int | None = None,
    trial_workers: int = 1,
    strategy: str | None = None,
    metric: str | None = None,
    seed: int | None = None,
    epochs: float | None = None,
    samples: int | None = None,
    seconds: float | None = None,
    evaluate_every: str | None = None,
    checkpoint: str | None = None,
    virtual: bool = False,
    times: str | Times | None = None,
    bandwidth: str | float | None = None,
    latency: str | float | None = None,
    cores: int | None = None,
    output: str | Path | None = None,
) -> Searched:
    """Find good values of a job's free parameters by parallel trials.

    Args:
        job: a function that returns the job; its free parameters have an `mh.free` as default
            value. A parameter named `strategy`, or `workers`, decides that of the trial.
        method: "random()", "population(size=8)", "evolution()", "swarm()" or "optuna(sampler=tpe)".
        trials: number of trials. A trial of `population` is a round of a member.
        workers: workers of all trials that are under way together. Default: those of this machine.
        trial_workers: workers of each trial.
        strategy: how each trial is trained. Default: `single()` for one worker, `allreduce()` for
            more.
        metric: what is compared: "accuracy", "loss", or "min perplexity" for a metric of your own
            of which less is better. Default: that of the job's target, or its first.
        seed: seed of the search, and of every run. Default: the job's.
        epochs: train each setting for this many passes over the data, in place of the job's limit.
        samples: train each setting on this many samples, in place of the job's limit.
        seconds: train each setting for this many seconds, in place of the job's limit.
        evaluate_every: when trials are evaluated. Default: the job's.
        checkpoint: when trials store checkpoints. Default: four times.
        virtual: whether trials run on the virtual clock.
        times: compute times of virtual trials, as in `simulate`.
        bandwidth: bandwidth between the hosts of virtual trials.
        latency: latency of their links.
        cores: cores of their hosts.
        output: folder for the search; one that was interrupted is continued. Default: a new one in
            `searches`.

    Returns:
        The results of all trials, the best one, and the path of the report.

    Raises:
        ValueError: the job has no free parameters, an option is out of range, or `output` holds
            another search.

    Example:
        >>> import torch
        >>> import manyhands as mh
        >>> data = torch.utils.data.TensorDataset(torch.eye(2).repeat(32, 1), torch.arange(64) % 2)
        >>> def job(lr=mh.free.log(1e-3, 1.0)):
        ...     return mh.Job(
        ...         model=lambda: torch.nn.Linear(2, 2),
        ...         optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=lr),
        ...         loss=torch.nn.functional.cross_entropy,
        ...         data=data,
        ...         validation=data,
        ...         global_batch=16,
        ...         epochs=2,
        ...     )
        >>> found = mh.search(job, "random()", trials=4, metric="loss", virtual=True)
        >>> len(found.results), found.best.trial.number == found.schedule[-1].number
        (4, True)
    """
    if scripts.is_loading():
        raise RuntimeError(
            "mh.search was called while a worker executed the script: put the call below "
            'if __name__ == "__main__": so that only the first process makes it'
        )
    given = (times, bandwidth, latency, cores)
    if not virtual and any(one is not None for one in given):
        raise ValueError(
            "times, bandwidth, latency and cores describe virtual trials: virtual=True"
        )
    _check_source(job)
    design = SearchDesign(
        source=job,
        method=METHODS.read(method),
        trials=trials,
        workers=workers or Cluster.local().default_workers(),
        trial_workers=trial_workers,
        strategy=strategy,
        metric=metric,
        seed=seed,
        budget=Budget(
            epochs=epochs, samples=samples, seconds=seconds, evaluate_every=evaluate_every
        ),
        checkpoint=checkpoint,
        script=script_of(scripts.made(job), job, sys._getframe(1), required=not virtual),
        virtual=VirtualConditions(times=times, bandwidth=bandwidth, latency=latency, cores=cores)
        if virtual
        else None,
    )
    return carry_out(design, None if output is None else Path(output))


def _check_source(source: object) -> dict[str, FreeParameter]:
    found = free_parameters(source) if callable(source) else {}
    if not found:
        raise ValueError(
            "a search needs a job with free parameters: a function that returns the job, as in "
            "def job(lr=mh.free.log(1e-4, 1e-1)): return mh.Job(…)"
        )
    return found


def carry_out(design: SearchDesign, output: Path | None = None) -> Searched:
    """Make the trials of a search, show its progress, and write its report.

    Raises:
        ValueError: it cannot be made; nothing was started.
    """
    parameters = _check_source(design.source)
    if design.virtual is not None and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise ValueError(
            "a process that has used CUDA cannot be forked: search before CUDA is used, or with "
            "live trials"
        )
    if design.trials < 1:
        raise ValueError(f"trials must be at least 1, not {design.trials}")
    if not 1 <= design.trial_workers <= design.workers:
        raise ValueError(
            f"a trial has {design.trial_workers} workers, of {design.workers} in all: give more "
            "workers, or fewer for each trial"
        )
    first = design.budget.of(scripts.made(design.source), design.seed)
    metric, less = metric_of(first, design.metric)
    plan = SearchPlan(
        parameters=parameters,
        trials=design.trials,
        seed=first.seed,
        at_once=max(1, design.workers // design.trial_workers),
        less_is_better=less,
        cuts=cuts(first),
        fixed=shaping(design.source, parameters)
        if isinstance(design.method, Population)
        else frozenset(),
    )
    design.method.check(plan)
    settings = TrialSettings(
        budget=design.budget,
        seed=first.seed,
        strategy=design.strategy,
        workers=design.trial_workers,
        checkpoint=design.checkpoint,
        threads=max(1, Cluster.local().hosts[0].cores // design.workers),
    )
    _check_trials(design, settings, parameters, first)
    folder = SearchFolder(output or new_folder(Path("searches") / stamp()))
    script = design.script and design.script.inside(folder.path)
    try:
        with locked(folder.path, design.identity(), IDENTITY, "search"), signals_raise():
            if script is not None:
                script.write()
            making = _making(design, settings, script)
            # Once, before several processes do it at the same time; an error is that of each run.
            with contextlib.suppress(Exception):
                first.make_ready()
            with SearchDisplay(plan, metric) as display:
                results = Conduct(
                    plan,
                    design.method,
                    settings,
                    making,
                    folder,
                    design.workers,
                    metric,
                    display.show,
                ).carry_out()
            return _found(design, plan, metric, settings, folder, results)
    except (TypeError, ValueError):
        release(folder.path)
        raise


def _making(
    design: SearchDesign, settings: TrialSettings, script: Script | None
) -> LiveTrials | VirtualTrials:
    if design.virtual is not None:
        return VirtualTrials(design.source, settings, design.virtual)
    if script is None:
        raise ValueError("live trials need a script from which processes load the job")
    return LiveTrials(script, settings)


def _found(
    design: SearchDesign,
    plan: SearchPlan,
    metric: str,
    settings: TrialSettings,
    folder: SearchFolder,
    results: list[TrialResult],
) -> Searched:
    found = Searched(
        folder=folder.path,
        metric=metric,
        less_is_better=plan.less_is_better,
        method=str(design.method),
        results=tuple(results),
        whole=tuple(
            one.trial.number
            for one in results
            if one.is_finished and design.method.is_whole(one, plan)
        ),
    )
    command = ""
    if found.best is not None and design.script is not None:
        command = shlex.join(_command(design, settings, found.best.trial))
    about = {"command": command, "report": folder.report}
    found = Searched(**(vars(found) | about))
    write_page(found, plan, folder.report)
    return found


def _command(design: SearchDesign, settings: TrialSettings, trial: Trial) -> list[str]:
    """The command that trains the job with the values of a trial."""
    script = design.script
    path = script.path if script is not None else Path()
    if path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    words = ["manyhands", "train" if design.virtual is None else "simulate", str(path)]
    words += ["--job", script.job if script is not None else "job", *settings_words(trial.values)]
    words += ["--strategy", settings.strategy_of(trial)]
    words += ["--workers", str(settings.workers_of(trial)), "--seed", str(settings.seed)]
    conditions = vars(design.virtual) if design.virtual is not None else {}
    for name, value in (vars(design.budget) | conditions).items():
        if value is not None:
            words += [f"--{name.replace('_', '-')}", str(value)]
    return words


def _check_trials(
    design: SearchDesign,
    settings: TrialSettings,
    parameters: Mapping[str, FreeParameter],
    first: Job,
) -> None:
    """Refuse strategies that cannot train the job, before anything is started."""
    start = settled(design.source, {})
    strategies = getattr(parameters.get("strategy"), "values", (start.get("strategy"),))
    counts = extremes(parameters["workers"]) if "workers" in parameters else [None]
    for strategy in strategies:
        for count in counts:
            chosen = {"strategy": strategy} if strategy is not None else {}
            chosen |= {"workers": count} if count is not None else {}
            trial = Trial(number=0, values=start | chosen)
            many = settings.workers_of(trial)
            if many > design.workers:
                raise ValueError(
                    f"a trial has up to {many} workers, of {design.workers} in all: give more"
                )
            made = read_strategy(settings.strategy_of(trial))
            made.check(many)
            check_job(made, first, many)
            if design.virtual is not None:
                way = VirtualTrials(design.source, settings, design.virtual)
                plan_virtual(first, way.asked(trial, None, None, goes_on=False), "search")
