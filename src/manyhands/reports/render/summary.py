"""Summary of a run: what was trained, how well, and where the time went."""

import textwrap
from collections.abc import Iterable

from manyhands.assumptions import SOURCE, Assumption, assumed_words, of_settings
from manyhands.costs.coding_speed import FREE
from manyhands.reports.figures.breakdown import breakdown, coding_seconds
from manyhands.reports.figures.fault_times import fault_times, faults_in_words
from manyhands.reports.figures.not_stored import not_stored
from manyhands.reports.figures.outcome import (
    division,
    ending,
    mishaps,
    parameters_digest,
    refusals,
    settings,
)
from manyhands.reports.figures.residuals import residuals
from manyhands.reports.figures.speed import accounting, epochs, samples_before, throughput
from manyhands.reports.figures.trace_figures import (
    MetricCurve,
    loss_curve,
    staleness,
    staleness_by_process,
    staleness_by_sender,
    traffic,
    validation,
)
from manyhands.reports.figures.worker_shares import uneven_share
from manyhands.reports.formatting import count, duration, plural, size, value
from manyhands.trace import PHASES, Setting, Trace, digest

_WIDTH = 80
_LABEL = 15
_LONG = ("settings", "time", "faults", "not stored")
"""Rows of up to three lines; the others have two."""
_TIED = "\N{NO-BREAK SPACE}"
"""Keeps a figure and its unit on one line; printed as a plain space."""
_SOURCES = ("command line", "script", "torchrun")
"""In this order; what else there is comes after them, defaults last."""


def summary(trace: Trace) -> str:
    """A run in some fifteen lines of 80 columns."""
    lines = textwrap.wrap(
        headline(trace),
        _WIDTH,
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    has_faults = any(setting.name == "faults" for setting in settings(trace))
    for label, words in summary_rows(trace):
        # Explicit settings are shown completely; defaults may be shortened.
        whole = label == "assumed" or (label == "settings" and has_faults)
        most = 6 if whole else 3 if label in _LONG else 2
        lines += _row(label, words, most=most)
    return "\n".join(lines)


def summary_rows(trace: Trace) -> list[tuple[str, str]]:
    """The rows of a run's summary: a label and its words, which may be empty."""
    return [
        ("trained", _trained(trace)),
        ("epochs", _epochs(trace)),
        ("validation", ", ".join(map(_metric, validation(trace).values()))),
        ("loss", _loss(trace)),
        ("time", _time(trace)),
        ("paced", _paced(settings(trace))),
        ("sent", _sent(trace)),
        ("coding", _coding(trace)),
        ("residual", _residual(trace)),
        ("staleness", _staleness(trace)),
        ("samples", _samples(trace)),
        ("shares", uneven_share(trace)),
        ("faults", faults_in_words(fault_times(trace))),
        ("not applied", _not_applied(trace)),
        ("mishaps", _mishaps(trace)),
        ("not stored", not_stored(trace)),
        *(_part(line) for line in division(trace)),
        ("assumed", assumed_words(assumptions(trace))),
        ("settings", _settings(s for s in settings(trace) if _is_shown(s))),
        ("parameters", parameters_digest(trace) or ""),
        # Only virtual runs can be repeated to the bit.
        ("digest", digest(trace) if trace.kind == "virtual" else ""),
        ("trace", _skipped(trace.skipped)),
        ("folder", str(trace.folder) if trace.folder else ""),
    ]


def _row(label: str, words: str, most: int) -> list[str]:
    """A label and its words, wrapped to the width, in so many lines at most."""
    if not words:
        return []
    wrapped = textwrap.wrap(
        words,
        _WIDTH,
        initial_indent=f"  {label}".ljust(_LABEL),
        subsequent_indent=" " * _LABEL,
        # A path or a digest is copied whole or not at all.
        break_long_words=False,
        break_on_hyphens=False,
        max_lines=most,
        placeholder=" …",
    )
    return [line.replace(_TIED, " ") for line in wrapped]


def _part(line: str) -> tuple[str, str]:
    """A part of a divided model: its name is the label."""
    name, _, words = line.partition(": ")
    return name, words


def _not_applied(trace: Trace) -> str:
    """Updates that were refused, by worker."""
    told = []
    for one in refusals(trace):
        who = "an unknown worker" if one.worker is None else f"worker {one.worker}"
        were = "was" if one.updates == 1 else "were"
        told.append(
            f"{one.updates:,} update{plural(one.updates)} of {who} had {one.what} and {were} not "
            f"applied ({one.samples:,} samples, first {one.first})"
        )
    more = f"; so of {len(told) - 1} more workers" if len(told) > 1 else ""
    return told[0] + more if told else ""


def _mishaps(trace: Trace) -> str:
    found = mishaps(trace)
    more = f", and {len(found) - 1} more" if len(found) > 1 else ""
    return found[0] + more if found else ""


def headline(trace: Trace) -> str:
    """What was run, and how it ended."""
    told = {setting.name: setting.value for setting in settings(trace)}
    workers = told.get("workers") or str(len({w.header.rank for w in trace.workers}))
    hosts = told.get("hosts") or str(len({w.header.host for w in trace.workers}))
    kind = "virtual " if trace.kind == "virtual" else ""
    what = (
        f"{told.get('strategy', 'a run')} on {workers} {kind}worker{plural(workers)}, "
        f"{hosts} host{plural(hosts)}"
    )
    end = ending(trace)
    if end.status == "running":
        return f"{what}: is still running; {end.words}"
    if end.status == "unfinished":
        return f"{what}: did not end properly; {end.words}"
    return f"{what}: {end.status}{end.words and f': {end.words}'}"


def _trained(trace: Trace) -> str:
    speed = throughput(trace)
    done = len(epochs(trace))
    before = samples_before(trace)
    since = f" after the {before:,} of the checkpoint" if before else ""
    return (
        f"{speed.samples:,} samples{since}{f', {done:,} epoch{plural(done)}' if done else ''}, "
        f"{duration(speed.seconds)}: {count(speed.rate)} samples/s"
    )


def _epochs(trace: Trace) -> str:
    """How long epochs and evaluations took, which the speed above is made of."""
    speed = throughput(trace)
    told = []
    if speed.first_epoch is not None and speed.later_epoch is not None:
        told.append(
            f"the first {duration(speed.first_epoch)}, then {duration(speed.later_epoch)} each"
        )
    if speed.evaluation is not None:
        told.append(f"each evaluation {duration(speed.evaluation)}")
    return "; ".join(told)


def _metric(metric: MetricCurve) -> str:
    best = ""
    if metric.best is not None and metric.best != metric.last:
        best = f" (best {value(metric.best)} at {duration(metric.best_seconds or 0.0)})"
    return f"{metric.name} {value(metric.last)}{best}"


def _loss(trace: Trace) -> str:
    curve = loss_curve(trace)
    if not curve:
        return ""
    first, last = curve[0], curve[-1]
    if len(curve) == 1:
        return f"{value(last.value)} in training (mean of all {last.samples:,} samples)"
    of_last = last.samples - curve[-2].samples
    return (
        f"{value(last.value)} in training (mean of the last {of_last:,} samples), from "
        f"{value(first.value)} (the first {first.samples:,})"
    )


def _time(trace: Trace) -> str:
    if not trace.workers:
        return ""
    share = breakdown(trace).overall
    parts = {
        "compute": share.compute,
        "wait": share.wait,
        "communication": share.communication,
        **({"coding": share.coding} if share.coding else {}),
        "data": share.data,
        "evaluation": share.evaluation,
        "other": share.other,
    }
    shares = ", ".join(f"{name}{_TIED}{100 * part:.1f}{_TIED}%" for name, part in parts.items())
    return f"{shares}; {duration(throughput(trace).start_up)} to start not counted"


def _sent(trace: Trace) -> str:
    measured = traffic(trace)
    if not measured.measured:
        alone = len({worker.header.rank for worker in trace.workers}) < 2
        # Workers that applied updates themselves, and sent none, wrote into shared memory.
        shared = any(worker.staleness for worker in trace.workers)
        return "nothing" if alone or shared else "not measured"
    words = f"{size(measured.sent)}, {size(measured.sent_per_sample)} per sample"
    if not measured.flows:
        return words
    training, between = measured.flow("training"), measured.flow("training", "between")
    several = any(measured.flow(phase, "between").wire_sent for phase in PHASES)
    where = f"{size(between.wire_sent)} between hosts" if several else "all within the host"
    return f"{words}; {size(training.payload_sent)} of payload in training, {where}"


def _coding(trace: Trace) -> str:
    found = coding_seconds(trace)
    if found is None:
        told = {setting.name: setting.value for setting in settings(trace)}
        is_free = told.get("coding") == FREE
        return "encoding is free here; --coding gives it a speed" if is_free else ""
    servers = f", {duration(found.servers)} on servers" if found.servers else ""
    return f"encoding and decoding took {duration(found.workers)} on workers{servers}"


def _residual(trace: Trace) -> str:
    found = residuals(trace)
    if found is None:
        return ""
    said = []
    if found.at_end is not None:
        said.append(f"norm {value(found.at_end)} not sent at the end")
    if found.lost:
        names = ", ".join(
            f"worker {rank}: norm {value(norm)}" for rank, norm in sorted(found.lost.items())
        )
        said.append(f"lost with {names}")
    if found.with_groups:
        said.append(f"norm {value(found.with_groups)} dropped by workers that were left alone")
    return "; ".join(said)


def _staleness(trace: Trace) -> str:
    spread = staleness(trace)
    if spread is None:
        return "none: lockstep"
    by_sender = staleness_by_sender(trace)
    means = [each.mean for each in (by_sender or staleness_by_process(trace)).values()]
    by = ""
    if len(means) > 1:
        whose = "worker" if by_sender else "process"
        by = f"; means by {whose} {value(min(means))} to {value(max(means))}"
    return (
        f"mean {value(spread.mean)}, 99 % within {spread.p99:,}, at most {spread.most:,} "
        f"({spread.updates:,} updates{by})"
    )


def _samples(trace: Trace) -> str:
    kept = accounting(trace)
    if kept.repeated is None or kept.lost is None:
        return f"{kept.seen:,} seen; repeated and lost ones were not recorded"
    return f"{kept.seen:,} seen, {kept.repeated:,} repeated, {kept.lost:,} lost"


def _settings(given: Iterable[Setting]) -> str:
    by_source: dict[str, list[str]] = {}
    for setting in given:
        by_source.setdefault(setting.source, []).append(f"{setting.name} {setting.value}")

    def order(source: str) -> tuple[int, str]:
        known = _SOURCES.index(source) if source in _SOURCES else len(_SOURCES)
        return known + (source == "default"), source

    return "; ".join(
        f"{source}: {', '.join(by_source[source])}" for source in sorted(by_source, key=order)
    )


def assumptions(trace: Trace) -> tuple[Assumption, ...]:
    """What a virtual run assumed because nothing gave or measured it."""
    return of_settings((s.name, s.value) for s in settings(trace) if s.source == SOURCE)


def _is_shown(setting: Setting) -> bool:
    """Whether a setting has no row of its own."""
    return setting.name != "slow" and setting.source != SOURCE


def _paced(given: Iterable[Setting]) -> str:
    """The workers that were slowed on purpose, which a reader has to know."""
    return next((setting.value for setting in given if setting.name == "slow"), "")


def _skipped(lines: int) -> str:
    return f"{lines:,} line{plural(lines)} could not be read" if lines else ""
