"""Faults written as sentences: `crash worker 2 at 20 s`, `cut host b from 60 s to 70 s`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from manyhands.faults.fault import (
    RESTART,
    CoordinatorCrash,
    Crash,
    CutHost,
    FullDisk,
    Pause,
    RandomFaults,
)
from manyhands.notation import NotationError
from manyhands.units import seconds as read_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from manyhands.faults.fault import Fault, Way

_WHO = r"(?:(?P<role>worker|server) (?P<number>\d{1,9})|(?P<coordinator>(?:the )?coordinator))"
_TIME = r"\d{1,12}(?:\.\d{1,12})? ?(?:s|ms|min)?"
_WHEN = (
    rf"(?:from (?P<start>{_TIME})(?: to (?P<stop>{_TIME}))?"
    rf"|at (?P<at>{_TIME})(?: for (?P<length>ever|{_TIME}))?)"
)
_CRASH = re.compile(rf"(?:crash|kill) {_WHO} at (?P<at>{_TIME})(?P<ever> for ever)?")
_STOP = re.compile(rf"(?:stop|pause) {_WHO} {_WHEN}")
_CUT = re.compile(
    rf"cut host (?P<host>[A-Za-z0-9._-]{{1,80}})(?: (?P<way>incoming|outgoing|both))? {_WHEN}"
)
_DISK = re.compile(rf"full disk {_WHEN}")
_RANDOM = re.compile(rf"random every (?P<every>{_TIME})(?:,? seed (?P<seed>\d{{1,18}}))?")
_SENTENCE = re.compile(r"[A-Za-z]+ +[A-Za-z]")
_UNIT = re.compile(r"(?<=[0-9]) ?s(?= ?[,)\]])")
_FORMS = (
    "crash worker 2 at 20 s; crash server 0 at 20 s; stop worker 1 from 30 s to 45 s; "
    "cut host b from 60 s to 70 s; full disk from 80 s to 90 s; random every 15 s, seed 3"
)


def is_sentence(part: str) -> bool:
    """Whether a part of a text is a sentence, and not a call such as `crash(worker=3)`."""
    return _SENTENCE.match(part) is not None


def without_units(part: str) -> str:
    """A call whose seconds are written with their unit, as the notation reads it.

    >>> without_units("random(every=15s, seed=3)")
    'random(every=15, seed=3)'
    """
    return _UNIT.sub("", part)


def read_sentence(part: str) -> Fault:
    """The fault that a sentence describes.

    Raises:
        NotationError: it is no such sentence; the message lists the forms.

    >>> print(read_sentence("stop worker 1 from 30 s to 45 s"))
    pause(worker=1, at=30.0, seconds=15.0)
    """
    text = " ".join(part.split())
    try:
        fault = _read(text)
    except ValueError as error:
        raise NotationError(str(error), part, 0) from None
    if fault is not None:
        return fault
    if text.startswith("slow "):
        raise NotationError(
            "a worker is slowed for the whole run, by --slow 2:4x (slow= in Python)", part, 0
        )
    raise NotationError(f"no fault is written like this; expected one of: {_FORMS}", part, 0)


def _read(text: str) -> Fault | None:
    for pattern, make in _SENTENCES:
        if found := pattern.fullmatch(text):
            return make(found)
    return None


def _crash(found: re.Match[str]) -> Fault:
    restart = None if found["ever"] else RESTART
    at = _seconds(found["at"])
    if found["coordinator"]:
        if restart is None:
            raise ValueError("a run cannot continue without the coordinator: leave out 'for ever'")
        return CoordinatorCrash(at=at, restart=restart)
    return Crash(*_numbers(found), at=at, restart=restart)


def _stop(found: re.Match[str]) -> Fault:
    if found["coordinator"]:
        raise ValueError("the coordinator cannot be stopped: stop a worker or a server")
    at, length = _when(found)
    return Pause(*_numbers(found), at=at, seconds=length)


def _cut(found: re.Match[str]) -> Fault:
    at, length = _when(found)
    ways: dict[str | None, Way] = {"incoming": "incoming", "outgoing": "outgoing"}
    return CutHost(found["host"], at=at, seconds=length, way=ways.get(found["way"], "both"))


def _full_disk(found: re.Match[str]) -> Fault:
    at, length = _when(found)
    return FullDisk(at=at, seconds=length)


def _random(found: re.Match[str]) -> Fault:
    return RandomFaults(_seconds(found["every"]), seed=int(found["seed"] or 0))


_SENTENCES: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Fault]], ...] = (
    (_CRASH, _crash),
    (_STOP, _stop),
    (_CUT, _cut),
    (_DISK, _full_disk),
    (_RANDOM, _random),
)


def _numbers(found: re.Match[str]) -> tuple[int | None, int | None]:
    """The numbers of the worker and of the server that a sentence names; one of them is None."""
    number = int(found["number"])
    return (number, None) if found["role"] == "worker" else (None, number)


def _when(found: re.Match[str]) -> tuple[float, float | None]:
    """When a fault begins, and for how many seconds it lasts; None for ever."""
    at = _seconds(found["start"] or found["at"])
    if found["stop"] is not None:
        stop = _seconds(found["stop"])
        if stop <= at:
            raise ValueError(f"the end must be after the begin at {at:g} s, got {stop:g} s")
        return at, round(stop - at, 9)
    if found["length"] in (None, "ever"):
        return at, None
    return at, _seconds(found["length"])


def _seconds(text: str) -> float:
    if text.endswith("min"):
        return 60.0 * read_seconds(text.removesuffix("min").strip())
    return read_seconds(text)
