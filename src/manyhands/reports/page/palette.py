"""Colours of a page: one for every strategy, in every chart, and others for parts of the time.

Strategies have Okabe and Ito's colours, which the colour-blind can tell apart, and a dash and a
mark of their own, for print in black and so that curves which lie upon each other are all seen.
Parts of the time have Paul Tol's light ones, so that no part is taken for a strategy.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from manyhands.reports.comparison.standings import ALONE


@dataclass(frozen=True, slots=True)
class Look:
    """How a strategy is drawn."""

    colour: str
    dash: str
    """As SVG's stroke-dasharray; empty: solid."""
    symbol: str
    """As Plotly names marks."""

    @property
    def cover(self) -> float:
        """The share of a line's length that is drawn: what it hides of a line beneath it."""
        lengths = [float(each.removesuffix("px")) for each in self.dash.split(",") if each]
        return sum(lengths[::2]) / sum(lengths) if lengths else 1.0


_COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#B8A800")
"""Their yellow is darkened, because it is too light for a line on white."""
_BLACK: Final = "#333333"
_SYMBOLS: Final = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star")
_DASHES: Final = ("", "7px,3px", "2px,2px", "9px,3px,2px,3px", "14px,4px", "4px,6px")
_DOTS: Final = "1px,4px"

PARTS: Final = {
    "compute": "#77AADD",
    "wait": "#EE8866",
    "communication": "#44BB99",
    "coding": "#AAAA00",
    "data": "#EEDD88",
    "evaluation": "#FFAABB",
    "other": "#DDDDDD",
}
PATTERNS: Final = {  # What costs time without training is hatched, for print in black.
    "compute": "",
    "wait": "/",
    "communication": "\\",
    "coding": "x",
    "data": "",
    "evaluation": "",
    "other": "",
}


def looks(strategies: Iterable[str]) -> dict[str, Look]:
    """A look for each; one worker alone, which the others are held against, is dotted in black.

    Colours come again after seven strategies and dashes after six, so pairs after 42.
    """
    found: dict[str, Look] = {}
    number = 0
    for strategy in dict.fromkeys(strategies):
        if strategy == ALONE:
            found[strategy] = Look(_BLACK, _DOTS, "circle-open")
            continue
        turn, place = divmod(number, len(_COLOURS))
        found[strategy] = Look(
            _COLOURS[place],
            _DASHES[number % len(_DASHES)],
            _SYMBOLS[(place + turn) % len(_SYMBOLS)],
        )
        number += 1
    return found
